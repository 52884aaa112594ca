"""Comparing runs: tables, corrected rates, plot, page, wandb, and the watcher that keeps them up to date."""
