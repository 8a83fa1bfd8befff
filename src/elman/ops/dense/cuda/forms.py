"""Which kernels run a call of the dense engine on an NVIDIA GPU, and why. Imports no torch.

Forms, the fastest first: a form is taken where it has nothing to say against a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elman.ops.dense.cuda.cluster_config import CAPABILITIES, MULTIPROCESSORS, ClusterConfig
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
    """

    step: str
    number: str
    batch: int
    channels: int
    rank: int
    capability: tuple[int, int]
    multiprocessors: int = 0


@dataclass(frozen=True)
class Form:
    """The form that was chosen.

    Args:
        name: A key of :data:`REASONS`.
        why: What it does, and why no faster one: a sentence for people.
    """

    name: str
    why: str


def _cluster(shape: Shape) -> str | None:
    if reason := _against_one_launch(shape, list(CAPABILITIES), "9.0 or 10.0"):
        return reason
    configs = (cluster_config(shape, back=back) for back in (False, True))
    if not all(configs):
        return "the matrix does not fit into the registers and shared memory of 16 multiprocessors"
    return None


def _against_one_launch(
    shape: Shape, capabilities: Sequence[tuple[int, int]], named: str
) -> str | None:
    """Return what speaks against both forms that run a sequence in one launch."""
    cell = compiled_cell(shape.step)
    if shape.number != "bf16":
        return f"its products are in bf16, this call is in {shape.number}"
    if shape.capability not in capabilities:
        major, minor = shape.capability
        return f"it needs compute capability {named}, this is {major}.{minor}"
    if cell.norm or cell.extra:
        second = "a norm over the channels" if cell.norm else "a second product"
        return f"the step has {second}"
    if shape.channels % 2:
        return f"it computes pairs of channels, and there are {shape.channels}"
    return None


def cluster_config(shape: Shape, *, back: bool) -> ClusterConfig | None:
    """Return how a pass runs as clusters, or None where they have no room for the matrix."""
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    return choose_config(cell, shape.channels, shape.batch, multiprocessors, back=back)


def _groups(shape: Shape) -> str | None:
    if reason := _against_one_launch(shape, list(SHARED_LIMITS), "8.0 to 10.0, or 12.0"):
        return reason
    multiprocessors = shape.multiprocessors or MULTIPROCESSORS
    configs = [config for back in (False, True) if (config := group_config(shape, back=back))]
    if len(configs) < 2:
        where = f"the registers and shared memory of {multiprocessors} multiprocessors"
        return f"the matrix does not fit into {where}"
    cell, batch = compiled_cell(shape.step), shape.batch
    taken = max(microseconds(one, batch, multiprocessors) for one in configs)
    stepwise = stepwise_microseconds(cell, shape.channels, batch, shape.rank)
    if taken >= stepwise:
        return (
            f"a step would take about {taken:.0f} us, and {stepwise:.0f} step by step (estimates)"
        )
    return None


def group_config(shape: Shape, *, back: bool) -> GroupConfig | None:
    """Return how a pass runs as groups, or None where all blocks have no room for the matrix."""
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    machine = Machine(multiprocessors, SHARED_LIMITS[shape.capability])
    return choose_groups(cell, shape.channels, shape.batch, machine, back=back)


def _stepwise(shape: Shape) -> None:
    """Return nothing: this form runs every call."""


REASONS: dict[str, Callable[[Shape], str | None]] = {
    "cluster": _cluster,
    "groups": _groups,
    "stepwise": _stepwise,
}
"""By form, the fastest first: returns what speaks against it for a call, or None."""

WORK: Mapping[str, str] = {
    "cluster": "one launch for the whole sequence, the matrix kept in the cluster's blocks",
    "groups": "one launch for the whole sequence, the matrix kept in blocks that exchange the state "
    "through the L2 cache",
    "stepwise": "{products} and {kernels} per step",
}
"""By form: what it does."""


def choose(shape: Shape) -> Form:
    """Return the fastest form that runs a call."""
    against: list[str] = []
    for name, reason in REASONS.items():
        said = reason(shape)
        if said is None:
            why = f"{name}: {_work(name, shape)}"
            return Form(name, "; ".join([why, *against]))
        against.append(f"not {name}: {said}")
    raise AssertionError(shape)


def _work(name: str, shape: Shape) -> str:
    extra = compiled_cell(shape.step).extra
    products = (2 if shape.rank else 1) + extra
    counted = {"products": _counted(products, "product"), "kernels": _counted(1 + extra, "kernel")}
    return WORK[name].format(**counted)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
