"""Model folders, their weights, and markers of finished ones."""
