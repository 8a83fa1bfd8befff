"""Subword tokens: what turns the bytes of a text into ids and back, byte for byte."""
