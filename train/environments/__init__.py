"""nextturn's tasks for other trainers: problems in pieces, asking when a fact is missing, and the user's doubt (verifiers 0.4)."""
