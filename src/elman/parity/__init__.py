"""Checks kernels against the fp64 reference: outputs, states and every gradient of a layer."""
