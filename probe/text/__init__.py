"""Chat templates, words, and answers in text."""
