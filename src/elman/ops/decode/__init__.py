"""What one byte of text after another asks for: products of a few rows, and the draw of a byte."""
