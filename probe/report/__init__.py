"""Comparing runs: tables, plot, page, wandb, and the watcher that keeps them up to date."""
