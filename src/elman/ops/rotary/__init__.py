"""Rotary positions of queries and keys that lie side by side in one projection."""
