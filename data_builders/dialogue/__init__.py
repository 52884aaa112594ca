"""Conversations about problems: the policy's own solutions, a simulated user, and the models that are asked."""
