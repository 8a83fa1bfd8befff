"""Calls of the tape engine: sizes, random tensors, resets."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.tape import custom_op, passes
from elman.ops.tape.op import dual_memory
from elman.ops.tape.recurrences import CELLS

# Batch, steps, slots, channels. With two threads those of `rows` share a step by rows of the batch;
# `one-thread` and `one-step` are too small to share; the others are shared by channels. A segment
# between checkpoints has about sqrt(steps) steps, so that most sizes end within one.
SIZES = {
    "channels": (3, 7, 4, 200),
    "odd": (9, 11, 5, 131),
    "many-slots": (5, 6, 13, 120),
    "one-slot": (4, 5, 1, 136),
    "one-row": (1, 9, 8, 280),
    "rows": (37, 4, 3, 66),
    "one-thread": (2, 5, 3, 21),
    "one-step": (1, 1, 2, 5),
}
# For finite differences; a segment has three steps.
TINY = {"tiny": (3, 7, 3, 2)}
# Of the emulated CUDA kernels. A thread has one channel where their number is odd, two otherwise;
# slots are taken eight at a time. Segments between checkpoints have ceil(sqrt(steps)) steps.
EMULATED = {
    "odd-35": (2, 5, 9, 35),  # segments of 3 and 2 steps, two warps with channels
    "step-alone": (1, 1, 2, 5),
    "one-slot-one-row": (1, 4, 1, 7),  # two whole segments
    "even": (2, 7, 3, 34),  # segments of 3, 3 and 1
    "slots-35": (1, 3, 35, 6),  # more than a warp has lanes
    "wide": (1, 2, 2, 131),  # three times as many as a block has threads
}
SOME = tuple(CELLS)
Leaves = dict[str, Tensor]


def draw(write: str, size: str, dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call by name; no matrix is symmetric, no slot is another's."""
    b, t, n, i = (SIZES | TINY | EMULATED)[size]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) / over

    leaves = {"input": normal(b, t, i), "W_h": normal(i, i, over=i**0.5)}
    if write == "full":
        leaves["W_r"] = normal(i, i, over=i**0.5)
    leaves |= {"tape": normal(b, n, i), "state": normal(b, i)}
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def call(
    write: str, leaves: Leaves, backend: str, resets: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states of all steps, the last tape and the last state."""
    given = (leaves.get(name) for name in ("input", "W_h", "W_r"))
    return dual_memory(
        *given,  # type: ignore[arg-type]
        leaves["tape"],
        leaves["state"],
        write=write,  # type: ignore[arg-type]
        backend=backend,
        resets_bt=resets,
    )


def arguments(write: str, leaves: Leaves, resets: Tensor | None) -> tuple[object, ...]:
    """Return what the operator is called with, behind write, backend and whether to keep states."""
    matrix = torch.cat([leaves[name] for name in ("W_h", "W_r") if name in leaves]).detach()
    return leaves["input"], matrix, leaves["tape"], leaves["state"], resets


OPERATOR = custom_op.TAPE.operator


def resets_of(leaves: Leaves) -> Tensor:
    """Return resets by row: at the first and a middle step, around a checkpoint, or nowhere.

    Those around it are on the checkpoint, on the step behind it and on the last step.
    """
    batch, steps, _ = leaves["input"].shape
    resets = torch.zeros(batch, steps, dtype=torch.bool)
    kept = min(passes.interval(steps), steps - 1)
    around = [kept, min(kept + 1, steps - 1), steps - 1]
    for row, places in enumerate(([0, steps // 2], around, [], [kept - 1])):
        resets[row::4, places] = True
    return resets
