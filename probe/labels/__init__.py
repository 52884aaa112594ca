"""Labels of user turns by annotators: the page, and how far a judge agrees; and finished runs judged again."""
