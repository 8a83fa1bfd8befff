"""When two tensors are the same: the numbers of a comparison and their tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Largest relative L2 error, by precision of the run. tf32 is fp32 whose products round their
# factors to 11 bits (2^-11 = 4.9e-4), as Triton's products do; a layer has a few of them in turn.
TOLERANCES = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 3e-3, "bf16": 2e-2}
LEAST_COSINE = 0.999
# A run may be this much worse than the reference in the same precision, where that is larger:
# rounding takes digits from sums that nearly cancel, whoever computes them. In fp32 only so far.
SLACK = 1.5
_MOST = {"fp64": 1e-9, "fp32": 1e-3, "tf32": 1e-2, "bf16": math.inf}


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from what it should be.

    Attributes:
        tensor: Its name.
        relative_l2: |found - wanted| / |wanted|; infinite where a tensor of zeros is not zero.
        cosine: Of the two as vectors; 1 for two tensors of zeros.
        max_abs: Largest difference of two elements.
        tolerance: Largest ``relative_l2`` that passes.
    """

    tensor: str
    relative_l2: float
    cosine: float
    max_abs: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is close enough; a number that is not finite never is."""
        # Written so that NaN fails.
        return self.relative_l2 <= self.tolerance and self.cosine >= LEAST_COSINE


def compare(name: str, found: Tensor, wanted: Tensor, tolerance: float) -> Comparison:
    """Compare two tensors; both are taken to fp64.

    lm-and-training specification 7: relative errors of whole tensors, because absolute bounds on
    elements have passed wrong kernels.
    """
    assert found.shape == wanted.shape, f"{name}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    a, b = found.detach().double().flatten(), wanted.detach().double().flatten()
    if not (a.isfinite().all() and b.isfinite().all()):
        return Comparison(name, math.nan, math.nan, math.nan, tolerance)
    difference = a - b
    max_abs = float(difference.abs().max()) if a.numel() else 0.0
    norm_a, norm_b = float(torch.linalg.norm(a)), float(torch.linalg.norm(b))
    if norm_b == 0.0:
        same = norm_a == 0.0
        return Comparison(name, 0.0 if same else math.inf, float(same), max_abs, tolerance)
    relative = float(torch.linalg.norm(difference)) / norm_b
    cosine = float(torch.dot(a, b)) / (norm_a * norm_b) if norm_a else 0.0
    return Comparison(name, relative, cosine, max_abs, tolerance)


def tolerance(precision: str, reference_error: float) -> float:
    """Return the largest relative error that passes.

    Args:
        precision: ``fp64``, ``fp32``, ``tf32`` or ``bf16``.
        reference_error: The error of the reference in that precision.
    """
    fixed = TOLERANCES[precision]
    if not math.isfinite(reference_error):
        return fixed
    return min(max(fixed, SLACK * reference_error), _MOST[precision])
