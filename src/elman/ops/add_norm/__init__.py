"""Residual add and RMSNorm in one: the language model's step from one layer to the next."""
