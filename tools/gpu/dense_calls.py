"""A call of the dense engine, in the form that is asked for, with its outputs and gradients.

Shape legend: b batch, t time, i channels of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from elman.ops.common.cuda.machine import machine
from elman.ops.dense.cuda import forms, kernels
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS
from tools.gpu.job import Job, Row

Leaves = dict[str, Tensor]
HEADS = {"slstm": 4}  # steps whose matrix is block-diagonal, where heads divide the channels
# What speaks against a form: groups are run where the estimate is against them, too.
REASONS = forms.REASONS | {"groups": forms.groups_cannot}


def guarded(job: Job, row: Row, form: str, call: Callable[[], Row]) -> None:
    """Report what a call in a form returns, or its error."""

    def in_form() -> Row:
        with only(form):
            return call()

    job.attempt(row, in_form)


@contextmanager
def only(form: str) -> Iterator[None]:
    """Let every call run in one form."""
    before = dict(forms.REASONS)
    try:
        forms.REASONS.clear()
        forms.REASONS[form] = REASONS[form]
        kernels._chosen.cache_clear()
        yield
    finally:
        forms.REASONS.clear()
        forms.REASONS.update(before)
        kernels._chosen.cache_clear()


def shape_of(
    step: str, dtype: torch.dtype, batch: int, channels: int, rank: int, device: str
) -> forms.Shape:
    """Return what forms look at."""
    number = "bf16" if dtype == torch.bfloat16 else "fp32"
    here = machine(0 if device == "cuda" else None)
    heads = heads_of(step, channels)
    return forms.Shape(step, number, batch, channels, rank, *here, heads=heads)


def leaves_of(
    step: str, size: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> Leaves:
    """Return the tensors of a call; no matrix is symmetric, and products lose none of its bits."""
    cell, (b, t, i, rank) = CELLS[step], size
    draw = torch.Generator(device).manual_seed(1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=draw, device=device) / over).to(dtype)

    leaves = {"input 0": normal(b, t, cell.blocks * i)}
    leaves |= {f"input {n + 1}": normal(b, t, i) for n in range(cell.others)}
    if rank:
        leaves["outer"] = normal(cell.blocks * i, rank, over=rank**0.5).float()
        leaves["inner"] = normal(rank, i, over=i**0.5).float()
    else:
        leaves["matrix"] = normal(*matrix_shape(step, i), over=i**0.5).float()
    leaves |= {"scale": normal(1).float()} if cell.scale else {}
    leaves |= {"extra": normal(i, i, over=i**0.5).float()} if cell.extra else {}
    leaves |= {f"state {n}": normal(b, i).float() for n in range(cell.states)}
    if step == "slstm":  # n, a sum of weights, is positive
        leaves["state 2"].abs_().add_(0.5)
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


def matrix_shape(step: str, channels: int) -> tuple[int, ...]:
    """Return the shape of a step's recurrent matrix: of one, or of one for each head."""
    rows, heads = CELLS[step].blocks * channels, heads_of(step, channels)
    return (heads, rows // heads, channels // heads) if heads > 1 else (rows, channels)


def heads_of(step: str, channels: int) -> int:
    """Return how many matrices stand side by side in a step's recurrent matrix."""
    heads = HEADS.get(step, 1)
    return 1 if channels % heads else heads


def run(
    step: str, leaves: Leaves, backend: str, resets_bt: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the states of all steps and the parts of the last one."""

    def of(*words: str) -> list[Tensor]:
        return [leaf for name, leaf in leaves.items() if name.split()[0] in words]

    matrices, own = of("matrix", "outer", "inner"), of("scale", "extra")
    given = (of("input"), matrices, of("state"))
    y, last = dense_recurrence(step, *given, parameters=own, backend=backend, resets_bt=resets_bt)
    return y, *last


def all_of(
    step: str,
    leaves: Leaves,
    backend: str,
    io: torch.dtype | None = None,
    resets_bt: Tensor | None = None,
) -> Leaves:
    """Return outputs and gradients by name.

    Args:
        step: Name of the step.
        leaves: What it reads.
        backend: What runs it.
        io: Dtype to which gradients of the outputs are rounded; None is that of the states.
        resets_bt: Where rows begin anew; None: nowhere.
    """
    outputs = run(step, leaves, backend, resets_bt)
    io = io or outputs[0].dtype
    spread = [torch.linspace(-1, 1, o.numel(), device=o.device) for o in outputs]
    pulls = [
        p.sin().to(io).reshape(o.shape).to(o.dtype) for p, o in zip(spread, outputs, strict=True)
    ]
    if step == "slstm":
        # What c exp(m) and n exp(m) give: a gradient of m beyond that jumps between the arguments
        # of a maximum, which differ by less than bf16 tells here and there.
        _, _, c, n, _ = (out.detach() for out in outputs)
        pulls[4] = c * pulls[2] + n * pulls[3]
    pulled = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    found = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
    return found | {f"d {name}": g for name, g in zip(leaves, pulled, strict=True)}
