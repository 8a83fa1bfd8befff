"""Cell Mamba2: a linear matrix state per head with a scalar decay; package mamba-ssm."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.common.options import expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value

OPTIONS = {
    "n_state": Option(128, "columns of a head's state (d_state)", minimum=1, size=True),
    "expansion": expansion("width of all heads together", 2.0),
    "head_dim": Option(64, "rows of a head's state (headdim)", minimum=1, size=True),
    "n_groups": Option(
        1, "groups of heads, each with its own B, C and output norm (ngroups)", minimum=1, size=True
    ),
    "d_conv": Option(4, "taps of the convolution on x, B and C", minimum=2, size=True),
    "a_min": Option(1.0, "smallest initial decay rate A (A_init_range)", above=0, in_kernel=False),
    "a_max": Option(16.0, "largest initial decay rate A (A_init_range)", above=0, in_kernel=False),
    "dt_min": Option(0.001, "smallest initial time step", above=0, in_kernel=False),
    "dt_max": Option(0.1, "largest initial time step", above=0, in_kernel=False),
    "dt_floor": Option(
        1e-4, "initial time steps are at least this (dt_init_floor)", above=0, in_kernel=False
    ),
    "chunk_size": Option(
        0,
        "steps computed at once, a power of two; it changes the speed alone, 0 is what is fastest",
        minimum=0,
    ),
}


def heads_fit(dim: int, options: Mapping[str, Value]) -> None:
    """Raise UserError if the channels are no whole heads and groups, or a range is empty."""
    wide_enough(dim, options)
    ratio, size, groups = options["expansion"], options["head_dim"], options["n_groups"]
    assert isinstance(ratio, float)
    assert isinstance(size, int)
    assert isinstance(groups, int)
    width = int(dim * ratio)
    if width % size:
        below, above = width // size * size, (width // size + 1) * size
        near = f"{_ratio(dim, below)} or {_ratio(dim, above)}" if below else _ratio(dim, above)
        raise UserError(
            f"model.expansion={ratio:g}: {width} channels are not a whole number of heads of "
            f"{size}; use model.expansion={near}, or another model.head_dim"
        )
    heads = width // size
    if heads % groups:
        near_groups = next(n for n in range(min(groups, heads), 0, -1) if heads % n == 0)
        raise UserError(
            f"model.n_groups={groups}: does not divide {heads} heads; "
            f"use model.n_groups={near_groups}"
        )
    _check_ranges(options)


def _check_ranges(options: Mapping[str, Value]) -> None:
    for name in ("a", "dt"):
        if f"{name}_min" not in options:
            continue
        low, high = options[f"{name}_min"], options[f"{name}_max"]
        assert isinstance(low, float)
        assert isinstance(high, float)
        if low > high:
            raise UserError(
                f"model.{name}_min={low:g}: above model.{name}_max={high:g}; "
                f"use model.{name}_min={high:g} or less"
            )
    chunk = options.get("chunk_size", 0)
    assert isinstance(chunk, int)
    if chunk & (chunk - 1):
        below = 1 << (chunk.bit_length() - 1)
        raise UserError(
            f"model.chunk_size={chunk}: not a power of two; "
            f"use model.chunk_size={below} or {2 * below}"
        )


def _ratio(dim: int, width: int) -> str:
    """Return the shortest decimal whose truncated width is ``width``."""
    # dim times the nearest number may round to less than the width: the next one is in reach, too.
    nearest = width / dim
    for near in (nearest, math.nextafter(nearest, math.inf)):
        for digits in range(1, 18):
            text = f"{near:.{digits}g}"
            if int(dim * float(text)) == width:
                return text
    raise AssertionError(f"no decimal times {dim} is {width}")


def no_resets(options: Mapping[str, Value]) -> str:
    """Return why no layer of this package can zero its state where a document starts."""
    return "its package has no reset of a row's state"


def state_numbers(dim: int, options: Mapping[str, Value]) -> int:
    """Return how many numbers the states of all heads of a layer have."""
    ratio, columns = options["expansion"], options["n_state"]
    assert isinstance(ratio, float)
    assert isinstance(columns, int)
    return int(dim * ratio) * columns


def _scan_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """5 a number of the state and step: the decay 1, the write 2, the read 2."""
    return 5 * state_numbers(dim, options) * len(positions)


CELL = Cell(
    name="mamba2",
    engine="ssd",
    layer="elman.models.cells.ssd.mamba2_layer:Mamba2",
    equation="S' = exp(-dt A) S + dt x B^T, y = S' C + D x, out = norm(y o silu(z))",
    source="Dao and Gu 2024; lm-and-training specification 5.1",
    no_resets=no_resets,
    options=OPTIONS,
    backends=("reference", "triton"),
    rule=heads_fit,
    package="mamba-ssm",
    scan_flops=_scan_flops,
)
