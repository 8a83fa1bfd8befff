"""Calls of the dense engine: sizes, random tensors, resets."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.dense import custom_op
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS

# Batch, steps, channels, rank; 0 is one matrix. With two threads the first two share a step by
# channels, the third by rows of the batch.
SIZES = {
    "channels": (3, 7, 200, 0),
    "channels-low-rank": (9, 3, 150, 70),
    "rows": (37, 4, 66, 0),
    "one-thread": (2, 5, 21, 0),
    "one-row-one-step": (1, 1, 5, 0),
    "rank-1": (2, 3, 9, 1),
    "rows-low-rank": (35, 2, 120, 40),
}
# Sizes of the emulated CUDA kernels; the second has more channels than a block.
EMULATED = {"even": (3, 4, 22, 0), "wide": (2, 2, 300, 0), "even-low-rank": (2, 3, 8, 4)}
# A block-diagonal matrix: the last number is that of its heads. With two threads the first size
# shares a step by channels; in the third a thread of a GPU has two channels.
HEADS = {
    "heads": (3, 5, 200, 0, 4),
    "heads-rows": (37, 3, 66, 0, 3),
    "even-heads": (3, 4, 20, 0, 5),
    "odd-heads": (2, 3, 21, 0, 7),
    "one-head": (1, 1, 5, 0, 1),
}
# For finite differences.
TINY = {"tiny": (3, 4, 2, 0), "tiny-low-rank": (3, 4, 3, 2)}
SOME = ("tanh", "lstm", "slstm", "gru", "gru_reset_after", "normalized_scalar", "two_gates")
"""Steps of all kinds: plain, more parts of the state, a second product, a norm."""
Leaves = dict[str, Tensor]


def draw(step: str, size: str, dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call by name; no matrix is symmetric."""
    cell, (b, t, i, rank, *of) = CELLS[step], (SIZES | EMULATED | TINY | HEADS)[size]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) / over

    leaves = {"input 0": normal(b, t, cell.blocks * i)}
    leaves |= {f"input {n + 1}": normal(b, t, i) for n in range(cell.others)}
    if rank:
        leaves["outer"] = normal(cell.blocks * i, rank, over=rank**0.5)
        leaves["inner"] = normal(rank, i, over=i**0.5)
    elif of:
        shape = (of[0], cell.blocks * i // of[0], i // of[0])
        leaves["matrix"] = normal(*shape, over=shape[2] ** 0.5)
    else:
        leaves["matrix"] = normal(cell.blocks * i, i, over=i**0.5)
    leaves |= {"scale": normal(1)} if cell.scale else {}
    leaves |= {"extra": normal(i, i, over=i**0.5)} if cell.extra else {}
    leaves |= {f"state {n}": normal(b, i) for n in range(cell.states)}
    if step == "slstm":  # n, a sum of weights, is positive
        leaves["state 2"].abs_().add_(0.5)
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def call(
    step: str, leaves: Leaves, backend: str, resets: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the states of all steps and the parts of the last one."""

    def of(*words: str) -> list[Tensor]:
        return [leaf for name, leaf in leaves.items() if name.split()[0] in words]

    y, last = dense_recurrence(
        step,
        of("input"),
        of("matrix", "outer", "inner"),
        of("state"),
        parameters=of("scale", "extra"),
        backend=backend,
        resets_bt=resets,
    )
    return y, *last


def arguments(step: str, leaves: Leaves, resets: Tensor | None) -> tuple[object, ...]:
    """Return what the operator is called with, behind step, backend and whether to keep states."""
    inputs = [leaf for name, leaf in leaves.items() if name.startswith("input")]
    matrices = [leaves[name] for name in ("matrix", "outer", "inner") if name in leaves]
    parameters = [leaves[name] for name in ("scale", "extra") if name in leaves]
    state = torch.stack([leaves[f"state {n}"] for n in range(CELLS[step].states)])
    return inputs, matrices, parameters, state.detach(), resets


OPERATOR = custom_op.DENSE.operator


def resets_of(leaves: Leaves) -> Tensor:
    """Return resets at the first, second, a middle and the last step, or nowhere, by row."""
    batch, steps, _ = leaves["input 0"].shape
    resets = torch.zeros(batch, steps, dtype=torch.bool)
    for row, places in enumerate(([0, steps // 2], [min(1, steps - 1), steps - 1], [])):
        resets[row::3, places] = True
    return resets
