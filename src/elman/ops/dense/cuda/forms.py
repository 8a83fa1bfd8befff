"""Which kernels run a call of the dense engine on an NVIDIA GPU, and why. Imports no torch.

Forms, the fastest first: a form is taken where it has nothing to say against a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.ops.common.cuda.clusters import (
    MULTIPROCESSORS,
    clusters_at_once,
    clusters_cannot,
)
from elman.ops.common.cuda.forms import Form, first_that_runs, runs_every_call
from elman.ops.dense.cuda.cluster_config import ClusterConfig
from elman.ops.dense.cuda.cluster_config import choose as choose_config
from elman.ops.dense.cuda.group_config import (
    SHARED_LIMITS,
    GroupConfig,
    Machine,
    microseconds,
    stepwise_microseconds,
)
from elman.ops.dense.cuda.group_config import choose as choose_groups
from elman.ops.dense.recurrences import compiled_cell


@dataclass(frozen=True)
class Shape:
    """What the choice depends on.

    Args:
        step: Name of the step.
        number: What the inputs are in: ``bf16`` or ``fp32``.
        batch: Rows.
        channels: Channels of the state.
        rank: Rank of the recurrent matrix's factors; 0 is one matrix.
        capability: Compute capability of the GPU.
        multiprocessors: How many it has; 0 is unknown.
        resets: Whether the call has resets.
        heads: Blocks of a block-diagonal recurrent matrix; 1 is a full one.
    """

    step: str
    number: str
    batch: int
    channels: int
    rank: int
    capability: tuple[int, int]
    multiprocessors: int = 0
    resets: bool = False
    heads: int = 1


GROUP_STATES = 2
"""Parts of the state that groups carry."""


def _cluster(shape: Shape) -> str | None:
    channels = shape.channels // shape.heads
    if against := clusters_cannot(shape.number, shape.capability, channels):
        return against
    configs = (cluster_config(shape, back=back) for back in (False, True))
    if not all(configs):
        return "the matrix does not fit into the registers and shared memory of 16 multiprocessors"
    return None


def cluster_config(shape: Shape, *, back: bool) -> ClusterConfig | None:
    """Return how a pass runs as clusters, or None where they have no room for the matrix."""
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    size = (shape.channels // shape.heads, shape.batch, multiprocessors)
    return choose_config(cell, *size, back=back, resets=shape.resets, heads=shape.heads)


def _groups(shape: Shape) -> str | None:
    return groups_cannot(shape) or _groups_lose(shape)


def groups_cannot(shape: Shape) -> str | None:
    """Return why groups cannot run a call, or None; whether they should is another question."""
    cell, (major, minor) = compiled_cell(shape.step), shape.capability
    if cell.states > GROUP_STATES:
        return f"it carries h and c, and the state of step {shape.step} has {cell.states} parts"
    if shape.heads > 1:
        return f"it multiplies by one matrix, and there is one for each of {shape.heads} heads"
    if shape.number != "bf16":
        return f"its products are in bf16, this call is in {shape.number}"
    if shape.capability not in SHARED_LIMITS:
        known = ", ".join(f"{one}.{other}" for one, other in sorted(SHARED_LIMITS))
        return f"it runs on compute capability {known}, this is {major}.{minor}"
    if cell.norm or cell.extra:
        return "the step has more than one product and one exchange"
    if shape.channels % 2:
        return f"it computes pairs of channels, and there are {shape.channels}"
    if all(group_config(shape, back=back) for back in (False, True)):
        return None
    where = f"{shape.multiprocessors or MULTIPROCESSORS} multiprocessors"
    return f"the matrix does not fit into the registers and shared memory of {where}"


def _groups_lose(shape: Shape) -> str | None:
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    configs = [config for back in (False, True) if (config := group_config(shape, back=back))]
    both = sum(microseconds(one, shape.batch, multiprocessors) for one in configs)
    stepwise = 2 * stepwise_microseconds(cell, shape.channels, shape.batch, shape.rank)
    if both >= stepwise:
        return (
            f"by estimate a step forward and back would take {both:.0f} us, and step by step it "
            f"takes {stepwise:.0f}"
        )
    return None


def calls_at_once(shape: Shape) -> float:
    """Return how many calls the GPU runs at a time, each as fast as alone; 1 if it is not known."""
    passes = [cluster_config(shape, back=back) for back in (False, True)]
    if choose(shape).name != "cluster":
        return 1
    most = clusters_at_once(shape.multiprocessors or MULTIPROCESSORS)
    rows = [(most[one.cluster], math.ceil(shape.batch / one.rows)) for one in passes if one]
    return min(clusters / (shape.heads * parts) for clusters, parts in rows)


def group_config(shape: Shape, *, back: bool) -> GroupConfig | None:
    """Return how a pass runs as groups, or None where all blocks have no room for the matrix."""
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    machine = Machine(multiprocessors, SHARED_LIMITS[shape.capability])
    size = (shape.channels, shape.batch, machine)
    return choose_groups(cell, *size, back=back, resets=shape.resets)


REASONS: dict[str, Callable[[Shape], str | None]] = {
    "cluster": _cluster,
    "groups": _groups,
    "stepwise": runs_every_call,
}
"""By form, the fastest first: returns what speaks against it for a call, or None."""

WORK: Mapping[str, str] = {
    "cluster": "one launch for the whole sequence, the matrix kept in the cluster's blocks",
    "groups": "one launch for the whole sequence, the matrix kept in {blocks} blocks that hand the "
    "state to each other through the L2 cache",
    "stepwise": "{products} and {kernels} per step",
}
"""By form: what it does."""


def choose(shape: Shape) -> Form:
    """Return the fastest form that runs a call."""
    return first_that_runs(REASONS, shape, _work)


def _work(name: str, shape: Shape) -> str:
    extra = compiled_cell(shape.step).extra
    products = (2 if shape.rank else 1) + extra
    counted = {"products": _counted(products, "product"), "kernels": _counted(1 + extra, "kernel")}
    if name == "groups":
        config = group_config(shape, back=False)
        counted["blocks"] = str(config.group if config else 0)
    return WORK[name].format(**counted)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
