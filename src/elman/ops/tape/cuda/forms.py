"""Which kernels run a call of the tape engine on an NVIDIA GPU, and why. Imports no torch.

Forms, the fastest first: a form is taken where it has nothing to say against a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.ops.common.cuda.clusters import MULTIPROCESSORS, clusters_cannot
from elman.ops.common.cuda.forms import Form, first_that_runs, runs_every_call
from elman.ops.tape.cuda.cluster_config import ClusterConfig
from elman.ops.tape.cuda.cluster_config import choose as choose_config
from elman.ops.tape.recurrences import compiled_cell


@dataclass(frozen=True)
class Shape:
    """What the choice depends on.

    Args:
        write: Which value is written.
        number: What the input is in: ``bf16`` or ``fp32``.
        batch: Rows.
        channels: Channels of the state.
        slots: Of the tape.
        capability: Compute capability of the GPU.
        multiprocessors: How many it has; 0 is unknown.
        resets: Whether rows begin anew somewhere.
    """

    write: str
    number: str
    batch: int
    channels: int
    slots: int
    capability: tuple[int, int]
    multiprocessors: int = 0
    resets: bool = False


def _cluster(shape: Shape) -> str | None:
    if shape.resets:
        return "it has no resets"
    if against := clusters_cannot(shape.number, shape.capability, shape.channels):
        return against
    for back in (False, True):
        if cluster_config(shape, back=back) is None:
            which = "three copies of the tape" if back else "the tape"
            return (
                f"the matrices and {which} do not fit into the registers and shared memory of 16 "
                "multiprocessors"
            )
    return None


def cluster_config(shape: Shape, *, back: bool) -> ClusterConfig | None:
    """Return how a pass runs as clusters, or None where they have no room for it."""
    cell, multiprocessors = compiled_cell(shape.write), shape.multiprocessors or MULTIPROCESSORS
    size = (shape.channels, shape.slots, shape.batch)
    return choose_config(cell, *size, multiprocessors, back=back)


REASONS: dict[str, Callable[[Shape], str | None]] = {
    "cluster": _cluster,
    "stepwise": runs_every_call,
}
"""By form, the fastest first: returns what speaks against it for a call, or None."""

WORK: Mapping[str, str] = {
    "cluster": "one launch for the whole sequence, matrices and tapes kept in the cluster's blocks",
    "stepwise": "1 product and 1 kernel per step",
}
"""By form: what it does."""


def choose(shape: Shape) -> Form:
    """Return the fastest form that runs a call."""
    return first_that_runs(REASONS, shape, lambda name, _: WORK[name])
