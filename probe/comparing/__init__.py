"""Several finished runs held against each other: read, paired, drawn, and written as pages."""
