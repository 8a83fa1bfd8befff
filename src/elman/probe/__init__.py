"""What a model's state remembers: one file for each measurement of ``mode=probe``."""
