"""When two tensors are the same: the numbers of a comparison and their tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
# A kernel reads the bf16 numbers that the reference reads, so that nearly all of such an error is
# common to both: where it is large, the kernel is at most this part of it from the reference, or
# the usual bound. Measured on cells whose errors are 0.02 to 0.23: 0.002 to 0.007, whatever those.
OWN_SHARE = 0.25


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from what it should be.

    Attributes:
        tensor: Its name.
        relative_l2: |found - wanted| / |wanted|; infinite where a tensor of zeros is not zero.
        cosine: Of the two as vectors; 1 for two tensors of zeros.
        max_abs: Largest difference of two elements.
        tolerance: Largest ``relative_l2`` that passes.
        reference: ``relative_l2`` of the reference itself in this precision; None if not asked.
        apart: |found - that reference| / |wanted|; None if not asked.
        usual: The tolerance that ``reference`` has widened; None if it has not.
        most_apart: Largest ``apart`` that passes beyond ``usual``.
    """

    tensor: str
    relative_l2: float
    cosine: float
    max_abs: float
    tolerance: float
    reference: float | None = None
    apart: float | None = None
    usual: float | None = None
    most_apart: float = math.inf

    @property
    def passed(self) -> bool:
        """Whether it is close enough; a number that is not finite never is."""
        # Written so that NaN fails.
        close = self.relative_l2 <= self.tolerance and self.cosine >= LEAST_COSINE
        return close and not self._astray

    @property
    def excused(self) -> bool:
        """Whether it passes only because the reference itself is as far off in this precision."""
        return self.passed and self._beyond

    @property
    def error(self) -> str:
        """The error beside its tolerance, in words: the one that fails, if only one does."""
        if self._astray and self.relative_l2 <= self.tolerance:
            return (
                f"is {self.apart:.1e} from the reference in the same precision, "
                f"tolerance {self.most_apart:.1e}"
            )
        return f"has a relative error of {self.relative_l2:.1e}, tolerance {self.tolerance:.1e}"

    @property
    def _beyond(self) -> bool:
        return self.usual is not None and self.relative_l2 > self.usual

    @property
    def _astray(self) -> bool:
        """Whether an error that the reference would excuse is not the reference's."""
        return self._beyond and self.apart is not None and not self.apart <= self.most_apart


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


def compare_beside(
    name: str, found: Tensor, own: Tensor, wanted: Tensor, precision: str, *, shared: bool
) -> Comparison:
    """Compare with the tolerance that the reference's own result in this precision allows.

    Args:
        name: Name of the tensor.
        found: What a run computed.
        own: What the reference computes in the same precision.
        wanted: What it computes in fp64.
        precision: Of the run.
        shared: Whether the run rounds where the reference does, so that it is held to be near it.
    """
    error = compare(name, own, wanted, 0.0).relative_l2
    usual, most = TOLERANCES[precision], tolerance(precision, error)
    one = compare(name, found, wanted, most)
    apart = compare(name, found, own, 0.0).relative_l2
    size = float(torch.linalg.norm(wanted.double()))
    if size > 0 and math.isfinite(apart):
        apart *= float(torch.linalg.norm(own.double())) / size
    held = shared and precision == "bf16"
    return replace(
        one,
        reference=error,
        apart=apart,
        usual=usual if most > usual else None,
        most_apart=max(usual, OWN_SHARE * error) if held else math.inf,
    )


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
