"""Labels of user turns by annotators: the page, corrected rates, and how far a judge agrees."""
