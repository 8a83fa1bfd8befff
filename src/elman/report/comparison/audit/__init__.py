"""The audit of a comparison: what was held equal, what was not, and what the files do not say."""
