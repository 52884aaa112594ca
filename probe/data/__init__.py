"""Files, tables and conversations as rows of data."""
