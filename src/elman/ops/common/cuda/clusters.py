"""What thread-block clusters can do, and which calls they cannot run. Imports no torch."""

from __future__ import annotations

CAPABILITIES = ((9, 0), (10, 0))
"""Compute capabilities of GPUs with clusters of 16 blocks and enough shared memory."""
MULTIPROCESSORS = 132
"""Those of an H200."""
SHARED_LIMIT = 232448
"""Bytes of shared memory that a block may have, compute capability 9.0 and 10.0."""
MAX_ROWS = 8
"""Rows of the batch for a cluster: the width of a tile of the product."""
HOP = {1: 350, 2: 400, 4: 450, 8: 500, 16: 600}
"""By the blocks of a cluster: clocks until a word is delivered, measured."""
INBOUND = {1: 16, 2: 16, 4: 16, 8: 16, 16: 8}
"""Bytes that a block receives in a clock, about, when all send to all."""
_AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
"""By the blocks of a cluster: how many clusters an H200 runs at once, measured."""


def clusters_at_once(multiprocessors: int) -> dict[int, int]:
    """Return how many clusters a GPU runs at once, by the blocks of a cluster."""
    return {c: max(1, n * multiprocessors // MULTIPROCESSORS) for c, n in _AT_ONCE.items()}


def clusters_cannot(number: str, capability: tuple[int, int], channels: int) -> str | None:
    """Return why no cluster can run a call, or None.

    Args:
        number: What the inputs are in: ``bf16`` or ``fp32``.
        capability: Compute capability of the GPU.
        channels: Channels of the state.
    """
    if number != "bf16":
        return f"its products are in bf16, this call is in {number}"
    if capability not in CAPABILITIES:
        major, minor = capability
        return f"it needs compute capability 9.0 or 10.0, this is {major}.{minor}"
    if channels % 2:
        return f"it computes pairs of channels, and there are {channels}"
    return None


def rounded_up(number: int, unit: int) -> int:
    """Return the smallest multiple of a unit that is not below a number."""
    return -(-number // unit) * unit
