"""Compares two tensors: the numbers of a comparison and their tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Largest relative L2 error, by precision of the run. tf32 is fp32 whose products round their
# factors to 11 bits (2^-11 = 4.9e-4), as Triton's products do; a layer chains a few such products.
TOLERANCES = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 3e-3, "bf16": 2e-2}
LEAST_COSINE = 0.999
# A run may have this many times the error of the reference in the same precision, where that is
# more than the tolerance: any code loses digits in sums that nearly cancel. So far only in fp32.
SLACK = 1.5
_MOST = {"fp64": 1e-9, "fp32": 1e-3, "tf32": 1e-2, "bf16": math.inf}
# A kernel reads the same bf16 numbers as the reference, so both share nearly all of such an error.
# Where the error is large, the kernel may differ from the reference by at most this share of it, or
# by the usual bound. Measured on cells with errors of 0.02 to 0.23: 0.002 to 0.007 in every case.
OWN_SHARE = 0.25
# A sum that nearly cancels is as exact as its terms allow, and says nothing of their size. A tensor
# of few such sums may be this many times as wrong as the reference is by rounding such terms. The
# norm of many sums shows the size of their terms, because they do not all cancel.
_ROUNDINGS, _FEW = 4.0, 32
# What fp32, whose range bf16 has, too, keeps with fewer digits or not at all.
_UNDERFLOW = 2.0**-126


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from what it should be.

    Attributes:
        tensor: Its name.
        relative_l2: |found - wanted| / |wanted|; infinite where a tensor of zeros is not zero. Of
            a tensor that nearly cancels, the divisor is larger: see :func:`least_norm`.
        cosine: Of the two as vectors; 1 for two tensors of zeros.
        max_abs: Largest difference of two elements.
        tolerance: Largest ``relative_l2`` that passes.
        reference: ``relative_l2`` of the reference itself in this precision; None if not computed.
        apart: |found - that reference| / |wanted|; None if not computed.
        usual: The tolerance before ``reference`` widened it; None if it was not widened.
        most_apart: Largest ``apart`` that passes if ``relative_l2`` exceeds ``usual``.
        widened: How many times |wanted| the divisor of ``relative_l2`` is; 1 unless the tensor
            nearly cancels.
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
    widened: float = 1.0

    @property
    def passed(self) -> bool:
        """Whether it is close enough; a number that is not finite never passes."""
        # Written so that NaN fails.
        close = self.relative_l2 <= self.tolerance and self.cosine >= self.least_cosine
        return close and not self._astray

    @property
    def least_cosine(self) -> float:
        """Least cosine that passes.

        A vector with a relative error of e has a cosine of at least sqrt(1 - e^2), and any cosine
        if e is more than 1. Where the reference's own error or a near cancellation widened the
        tolerance beyond what ``LEAST_COSINE`` allows, that is the bound; otherwise the tolerance
        would promise what the cosine refuses.
        """
        if self.usual is None and self.widened == 1.0:
            return LEAST_COSINE
        most = self.tolerance * self.widened
        if self.widened > 1.0 and most > 1.0:
            return -1.0
        return min(LEAST_COSINE, math.sqrt(max(0.0, 1.0 - most**2)))

    @property
    def excused(self) -> bool:
        """Whether it passes only because the reference has a similar error in this precision."""
        return self.passed and self._beyond

    @property
    def error(self) -> str:
        """The error and its tolerance, in words; if only one of the criteria fails, that one."""
        if self.relative_l2 <= self.tolerance and self._astray:
            return (
                f"is {self.apart:.1e} from the reference in the same precision, "
                f"tolerance {self.most_apart:.1e}"
            )
        if self.relative_l2 <= self.tolerance and not self.passed:
            return f"has a cosine of {self.cosine:.6f}, least {self.least_cosine:.6f}"
        return f"has a relative error of {self.relative_l2:.1e}, tolerance {self.tolerance:.1e}"

    @property
    def _beyond(self) -> bool:
        return self.usual is not None and self.relative_l2 > self.usual

    @property
    def _astray(self) -> bool:
        """Whether the error exceeds ``usual`` and is not the error that the reference has, too."""
        return self._beyond and self.apart is not None and not self.apart <= self.most_apart


def compare(
    name: str, found: Tensor, wanted: Tensor, tolerance: float, least: float = 0.0
) -> Comparison:
    """Compare two tensors; both are converted to fp64.

    The error is relative to the whole tensor, because absolute bounds on elements have passed
    wrong kernels (lm-and-training specification 7).

    Args:
        name: Name of the tensor.
        found: What a run computed.
        wanted: What it should be.
        tolerance: Largest relative error that passes.
        least: The error is relative to this number if the tensor's norm is less.
    """
    assert found.shape == wanted.shape, f"{name}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    return _compared(name, _Vector(found), _Vector(wanted), tolerance, least)


class _Vector:
    """The numbers of a tensor in fp64, and their norm, which is computed once."""

    def __init__(self, tensor: Tensor) -> None:
        self.numbers = tensor.detach().double().flatten()
        self.norm = float(torch.linalg.norm(self.numbers))

    def error(self, wanted: _Vector, difference: Tensor, least: float = 0.0) -> float:
        """Return the relative error; NaN if a number is not finite."""
        if not (math.isfinite(self.norm) and math.isfinite(wanted.norm)):
            return math.nan
        size = max(wanted.norm, least)
        if size == 0.0:
            return 0.0 if self.norm == 0.0 else math.inf
        return float(torch.linalg.norm(difference)) / size


def _compared(
    name: str, found: _Vector, wanted: _Vector, tolerance: float, least: float
) -> Comparison:
    difference = found.numbers - wanted.numbers
    relative = found.error(wanted, difference, least)
    if math.isnan(relative):
        return Comparison(name, math.nan, math.nan, math.nan, tolerance)
    max_abs = float(torch.linalg.norm(difference, math.inf)) if difference.numel() else 0.0
    size = max(wanted.norm, least)
    widened = size / wanted.norm if wanted.norm else math.inf if size else 1.0
    if wanted.norm == 0.0:
        same = float(found.norm == 0.0)
        return Comparison(name, relative, same, max_abs, tolerance, widened=widened)
    cosine = float(torch.dot(found.numbers, wanted.numbers)) if found.norm else 0.0
    cosine /= (found.norm * wanted.norm) or 1.0
    return Comparison(name, relative, cosine, max_abs, tolerance, widened=widened)


def compare_beside(
    name: str,
    found: Tensor,
    own: Tensor,
    wanted: Tensor,
    precision: str,
    *,
    shared: bool,
    terms: float = 0.0,
    least: float = 0.0,
) -> Comparison:
    """Compare, with a tolerance that considers the reference's own error in this precision.

    A gradient of one number is a sum that may nearly cancel, and its rounding is that of its terms.
    Where many numbers are summed up to many, the norm shows that; of one number it does not, and
    the reference's error is a single draw. So in bf16 its error is relative to its terms' size.

    Args:
        name: Name of the tensor.
        found: What a run computed.
        own: The reference's result in the same precision.
        wanted: The reference's result in fp64.
        precision: Precision of the run.
        shared: Whether the run rounds at the same places as the reference. If so, it must be near
            the reference's result.
        terms: About the norm of what a gradient of one number adds up.
        least: As for :func:`compare`.
    """
    assert found.shape == own.shape == wanted.shape, name
    if wanted.numel() == 1 and precision == "bf16":
        least = max(least, terms)
    a, b, c = (_Vector(one) for one in (found, own, wanted))
    error = b.error(c, b.numbers - c.numbers, least)
    usual, most = TOLERANCES[precision], tolerance(precision, error)
    one = _compared(name, a, c, most, least)
    apart = a.error(b, a.numbers - b.numbers)
    size = max(c.norm, least)
    if size > 0 and math.isfinite(apart):
        apart *= b.norm / size
    held = shared and precision == "bf16"
    return replace(
        one,
        reference=error,
        apart=apart,
        usual=usual if most > usual else None,
        most_apart=max(usual, OWN_SHARE * error) if held else math.inf,
    )


def least_norm(precision: str, numbers: int, rounding: float) -> float:
    """Return the norm to which the error of sums that nearly cancel or underflow is relative.

    With it, an error of a few times ``rounding`` passes where the sums are few. If they do not
    cancel, it is far less than their own norm. In bf16, where rounding is large, other rules hold.

    Args:
        precision: ``fp64``, ``fp32``, ``tf32`` or ``bf16``.
        numbers: Elements of the tensor.
        rounding: The absolute error that the reference makes in this precision, as
            :meth:`elman.parity.experiment.Experiment.rounding` returns it.
    """
    floor = _UNDERFLOW * math.sqrt(numbers)
    if precision != "bf16" and numbers <= _FEW and math.isfinite(rounding):
        floor = max(floor, _ROUNDINGS * rounding)
    return floor / TOLERANCES[precision]


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
