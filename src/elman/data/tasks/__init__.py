"""Tasks: rows with known answers, made from numbers alone instead of read from files."""
