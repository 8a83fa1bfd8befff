"""What passes a comparison with the reference, and what a failure says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.parity.compare import compare, compare_beside, least_norm


def at_angle(error: float) -> tuple[Tensor, Tensor]:
    """Return a vector and one of the same length with about this relative error."""
    angle = 2 * math.asin(error / 2)
    return torch.tensor([1.0, 0.0]), torch.tensor([math.cos(angle), math.sin(angle)])


def test_an_error_as_large_as_the_references_own_passes() -> None:
    wanted, found = at_angle(0.07)
    own = found * torch.tensor([1.0, -1.0])
    one = compare_beside("y", found, own, wanted, "bf16", shared=False)
    assert one.passed
    assert one.excused
    assert one.cosine < 0.999
    assert one.least_cosine == pytest.approx(math.sqrt(1 - one.tolerance**2))


def test_the_references_error_excuses_no_larger_one() -> None:
    wanted, own = at_angle(0.07)
    _, found = at_angle(0.12)
    one = compare_beside("y", found, own, wanted, "bf16", shared=False)
    assert not one.passed
    assert one.error == "has a relative error of 1.2e-01, tolerance 1.1e-01"


def test_a_cosine_that_fails_alone_is_named() -> None:
    wanted, found = at_angle(0.07)
    one = compare("y", found, wanted, 0.1)
    assert not one.passed
    assert one.least_cosine == 0.999
    assert one.error == "has a cosine of 0.997550, least 0.999000"


def test_a_number_that_is_not_finite_never_passes() -> None:
    wanted, own = at_angle(0.07)
    found = torch.tensor([math.nan, 0.0])
    one = compare_beside("y", found, own, wanted, "bf16", shared=False)
    assert not one.passed
    assert one.error == "has a relative error of nan, tolerance 1.1e-01"


@pytest.mark.parametrize("rounding", [math.inf, math.nan])
def test_a_reference_that_overflows_excuses_no_error(rounding: float) -> None:
    least = least_norm("fp32", 1, rounding)
    wanted = torch.tensor([1.0])
    assert not compare("d D", 1.05 * wanted, wanted, 1e-4, least).passed
