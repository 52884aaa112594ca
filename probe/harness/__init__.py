"""The user-turn probe as a task of lm-evaluation-harness."""
