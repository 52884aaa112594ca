"""Self-play: conversations that the policy has with itself, or with other models in some roles."""
