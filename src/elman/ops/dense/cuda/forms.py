"""Which kernels run a call of the dense engine on an NVIDIA GPU, and why. Imports no torch.

Forms, the fastest first: a form is taken where it has nothing to say against a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.ops.dense.cuda.cluster_config import CAPABILITIES, MULTIPROCESSORS, ClusterConfig
from elman.ops.dense.cuda.cluster_config import choose as choose_config
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
    """

    step: str
    number: str
    batch: int
    channels: int
    rank: int
    capability: tuple[int, int]
    multiprocessors: int = 0
    resets: bool = False


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
    if shape.number != "bf16":
        return f"its products are in bf16, this call is in {shape.number}"
    if shape.capability not in CAPABILITIES:
        major, minor = shape.capability
        return f"it needs compute capability 9.0 or 10.0, this is {major}.{minor}"
    if shape.channels % 2:
        return f"it computes pairs of channels, and there are {shape.channels}"
    configs = (cluster_config(shape, back=back) for back in (False, True))
    if not all(configs):
        return "the matrix does not fit into the registers and shared memory of 16 multiprocessors"
    return None


def cluster_config(shape: Shape, *, back: bool) -> ClusterConfig | None:
    """Return how a pass runs as clusters, or None where they have no room for the matrix."""
    cell, multiprocessors = compiled_cell(shape.step), shape.multiprocessors or MULTIPROCESSORS
    size = (shape.channels, shape.batch, multiprocessors)
    return choose_config(cell, *size, back=back, resets=shape.resets)


def _stepwise(shape: Shape) -> None:
    """Return nothing: this form runs every call."""


REASONS: dict[str, Callable[[Shape], str | None]] = {"cluster": _cluster, "stepwise": _stepwise}
"""By form, the fastest first: returns what speaks against it for a call, or None."""

WORK: Mapping[str, str] = {
    "cluster": "one launch for the whole sequence, the matrix kept in the cluster's blocks",
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
