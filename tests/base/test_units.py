"""How amounts of memory and time are printed."""

from __future__ import annotations

import pytest

from elman.base.units import GPU_MEMORY, MEMORY, different_sizes, duration, size_text


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [(0, "0.0 kB"), (999, "1.0 kB"), (12_345_678, "12.3 MB"), (4_500_000_000_000, "4,500.0 GB")],
)
def test_a_size_is_in_the_largest_unit_that_it_fills(n_bytes: int, shown: str) -> None:
    assert size_text(n_bytes) == shown


def test_what_a_run_uses_is_in_powers_of_ten_and_what_a_gpu_has_in_powers_of_two() -> None:
    assert MEMORY.text(1_250_000_000, 2) == "1.25 GB"
    assert GPU_MEMORY.text(80 * 2**30, 0) == "80 GiB"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59.6, "1m00s"), (192, "3m12s"), (18_432, "5h07m")]
)
def test_a_duration_has_two_units_at_the_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("needed", "free", "shown"),
    [
        (2_101_000, 0, ("2 MB", "0 MB")),
        (2_101_000, 1_990_000, ("2.1 MB", "2.0 MB")),
        (2_000_100, 1_999_900, ("2.0001 MB", "1.9999 MB")),
        (12_000_000_000, 11_000_000_000, ("12,000 MB", "11,000 MB")),
    ],
)
def test_sizes_that_differ_look_different(needed: int, free: int, shown: tuple[str, str]) -> None:
    assert different_sizes(needed, free) == shown
