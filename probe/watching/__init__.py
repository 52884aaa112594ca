"""Following a training run: which checkpoints are whole, who measures which, and what is kept for it."""
