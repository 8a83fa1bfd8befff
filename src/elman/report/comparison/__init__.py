"""The report of training runs: one table, in the terminal, as CSV, as Markdown and as a page."""
