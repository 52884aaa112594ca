"""What is asked of a model, and how its replies become figures."""
