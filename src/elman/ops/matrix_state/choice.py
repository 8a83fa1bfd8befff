"""Which geometries the CUDA kernels of a plan run with, chosen by arithmetic and not by trial.

The backward pass comes first: it decides how far apart the kept states are. A change of T never
changes anything, and of B only where the number of heads no longer fills the GPU.
Imports no torch.

Symbols: R value rows, N key columns, H heads, B batch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from elman.kernels.nvrtc import Limits
from elman.ops.matrix_state.geometry import Geometry, Types
from elman.ops.matrix_state.plan import Plan

_WARP, _SCHEDULERS = 32, 4


H200 = Limits(132, 227 * 1024, 228 * 1024)
LEAST_ALIGN = 4
"""Bytes of the narrowest copy: what is less aligned is copied from the word in which it begins."""
_RESERVED = 1024  # shared memory that the system takes for each block
_COLUMNS = 8  # of a lane: measured to be best where heads are many
_WIDE = 128  # columns of a state up to which 8 lanes to a row are best
_LEAST_COLUMNS = 4  # of a lane, in the forward pass
_MOST_WARPS = 16  # of a block that hold the state
_MOST_THREADS = 640  # of a block, so that each has its 96 registers
_STEPS = (16, 12, 8)


def choose(plan: Plan, types: Types, heads: int, device: Limits) -> Geometry:
    """Return the geometry for a plan, for sources that lie as evenly as the plan's widths allow.

    Args:
        plan: What is computed.
        types: Types of the kernel.
        heads: B H.
        device: The GPU.
    """
    lanes = _lanes(plan, heads, device)
    whole = math.ceil(plan.rows / (_WARP // lanes))
    most = _MOST_WARPS if _columns(plan.columns, lanes) <= _COLUMNS else 8
    slabs = max(math.ceil(whole / most), _slabs_to_fill(whole, heads, device))
    return _fitted(geometry_of(plan, types, lanes, math.ceil(whole / slabs)), heads, device)


def forward_of(chosen: Geometry, heads: int, device: Limits) -> Geometry:
    """Return the geometry of the forward pass that keeps the states for a backward pass.

    Args:
        chosen: The backward pass's.
        heads: B H.
        device: The GPU.
    """
    warps, places = heads * chosen.slabs * chosen.warps, device.multiprocessors * _SCHEDULERS
    if warps <= 2 * places and (chosen.warps > 1 or warps <= places):
        # Few warps wait for each other's latency: others prepare and finish for them.
        lanes = min(chosen.lanes, _power(chosen.plan.columns / _LEAST_COLUMNS))
        found = replace(_of_lanes(chosen, lanes, chosen.slabs), helped=True)
    elif chosen.columns <= 2 * _COLUMNS < chosen.plan.columns and chosen.lanes > 1:
        # Many do not, and more columns to a lane are fewer instructions.
        found = _of_lanes(chosen, chosen.lanes // 2, 1)
    else:
        found = chosen
    return found if _fits_forward(found, device) else chosen


def _of_lanes(chosen: Geometry, lanes: int, slabs: int) -> Geometry:
    """Return a pass of the same steps with other lanes, and so many slabs to a head or more."""
    plan = chosen.plan
    warps = math.ceil(math.ceil(plan.rows / (_WARP // lanes)) / slabs)
    return geometry_of(plan, chosen.types, lanes, min(_MOST_WARPS, warps), chosen.steps)


def _fits_forward(geometry: Geometry, device: Limits) -> bool:
    widest = replace(geometry, align=LEAST_ALIGN)
    return widest.forward_bytes <= device.shared_bytes and geometry.forward_threads <= _MOST_THREADS


def geometry_of(plan: Plan, types: Types, lanes: int, warps: int, steps: int = 16) -> Geometry:
    """Return the geometry with so many lanes to a row and warps to a block."""
    vector = _vector(plan.columns, lanes)
    geometry = Geometry(plan, types, lanes, warps, vector, steps, LEAST_ALIGN)
    return replace(geometry, align=natural_align(geometry))


def natural_align(geometry: Geometry) -> int:
    """Return the alignment that the widths of a plan and its slabs allow, in bytes."""
    plan, io = geometry.plan, geometry.types.sizes[0]
    widths = (plan.columns, plan.rows, min(plan.rows, geometry.rows))
    return max(LEAST_ALIGN, math.gcd(16, *(width * io for width in widths)))


def _lanes(plan: Plan, heads: int, device: Limits) -> int:
    """Return how many lanes share a row.

    Few columns to a lane make many warps, which hide each other's latency, and leave it registers;
    every doubling of the lanes costs each step a shuffle.
    """
    columns = plan.columns
    lanes = _power(columns / (_COLUMNS if columns <= _WIDE else 2 * _COLUMNS))
    lanes = min(lanes, 8 if columns <= _WIDE else _WARP)
    busy = device.multiprocessors * _SCHEDULERS / 2
    while heads * math.ceil(plan.rows * lanes / _WARP) < busy and columns > 2 * lanes:
        if lanes == _WARP:
            break
        lanes *= 2
    return lanes


def _power(least: float) -> int:
    """Return the least power of two that is no smaller."""
    return 1 << max(0, math.ceil(math.log2(least)))


def _columns(n: int, lanes: int) -> int:
    vector = _vector(n, lanes)
    columns: int = math.ceil(math.ceil(n / lanes) / vector) * vector
    return columns


def _vector(n: int, lanes: int) -> int:
    """Return how many neighbouring columns a lane reads at once: the most without more padding."""
    exact = math.ceil(n / lanes)
    return next(vector for vector in (4, 2, 1) if exact % vector == 0)


def _slabs_to_fill(warps: int, heads: int, device: Limits) -> int:
    """Return into how many slabs a head can be cut before there are more blocks than places."""
    return max(1, min(warps, device.multiprocessors // heads))


def _fitted(geometry: Geometry, heads: int, device: Limits) -> Geometry:
    """Return a geometry with as many steps between checkpoints as shared memory allows."""
    while True:
        wanted = _wanted(geometry, heads, device)
        for resident, steps in itertools.product((wanted, 1), _STEPS):
            fitting = replace(geometry, steps=steps)
            if _resident(fitting, device) >= resident:
                return fitting
        if geometry.warps > 1:
            warps = math.ceil(geometry.warps / 2)
            geometry = geometry_of(geometry.plan, geometry.types, geometry.lanes, warps)
        elif not geometry.scratch:
            geometry = replace(geometry, scratch=True)
        else:
            return replace(geometry, steps=4)


def _resident(geometry: Geometry, device: Limits) -> int:
    """Return how many blocks of the backward pass a multiprocessor holds."""
    # It has to run with sources that lie unevenly, too, which takes a little more.
    if replace(geometry, align=LEAST_ALIGN).backward_bytes > device.shared_bytes:
        return 0
    return device.shared_total // (geometry.backward_bytes + _RESERVED)


def _wanted(geometry: Geometry, heads: int, device: Limits) -> int:
    """Return how many blocks a multiprocessor should hold: all it gets, up to 8 warps."""
    blocks = math.ceil(heads * geometry.slabs / device.multiprocessors)
    return max(1, min(blocks, 8 // geometry.warps))
