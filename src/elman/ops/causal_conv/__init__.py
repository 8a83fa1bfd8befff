"""Depthwise causal convolution over time, with silu behind it or without."""
