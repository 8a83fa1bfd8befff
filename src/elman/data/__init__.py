"""Reads files as one text of raw bytes, builds the default corpus, and draws batches."""
