"""What every command needs: errors, messages, recipes, files."""
