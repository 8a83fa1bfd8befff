"""Times the tape engine on a CPU beside a plain loop over time and beside E1, in fp32.

    python benchmarks/tape_loop.py [--writes full] [--slots 8] [--shapes 8x256x512] [--rounds 7]

Forward and backward with all gradients, in interleaved rounds. ``loop``: the same recurrence on the
reference backend, gradients by autograd. ``recurrence of E1``: the dense engine's ``tanh`` at the
same size. ``layer``: whole layers E23 and E1, both on the CPU kernels. Times are medians of
elapsed time, or with --processor-time of the processor's, which other programs of a busy machine
disturb less and which says something for one thread alone; a ratio is the tape engine's time over
the other's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from dense_loop import compare, recurrence

from elman.layers import E1, E23
from elman.ops.tape.op import Write, dual_memory

Shape = tuple[int, int, int]


def tape(write: Write, slots: int, shape: Shape, backend: str) -> Callable[[], None]:
    """Return a call of the bare recurrence, forward and backward."""
    b, t, i = shape
    matrices = [torch.randn(i, i) / i**0.5 for _ in range(2 if write == "full" else 1)]
    input_bti, pull_bti = torch.randn(b, t, i), torch.randn(b, t, i)
    tape_bni, state_bi = torch.randn(slots, i).expand(b, -1, -1), torch.zeros(b, i)
    leaves = [one.requires_grad_() for one in (input_bti, *matrices)]
    second = matrices[1] if write == "full" else None

    def run() -> None:
        given = (input_bti, matrices[0], second, tape_bni, state_bi)
        h_bti, *_ = dual_memory(*given, write=write, backend=backend)
        torch.autograd.grad(h_bti, leaves, pull_bti)

    return run


def layer(kind: type[E1] | type[E23], shape: Shape, **options: object) -> Callable[[], None]:
    """Return a call of a whole layer, forward and backward."""
    b, t, i = shape
    made = kind(i, backend="cpu", **options)
    x_btd, pull_btd = torch.randn(b, t, i, requires_grad=True), torch.randn(b, t, i)
    leaves = [x_btd, *made.parameters()]
    return lambda: _pull(made(x_btd)[0], leaves, pull_btd)


def _pull(out: torch.Tensor, leaves: list[torch.Tensor], pull: torch.Tensor) -> None:
    torch.autograd.grad(out, leaves, pull)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", default="full,identity,shared")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--shapes", default="8x256x512")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    print("| what | engine, ms | other, ms | ratio |\n|---|---|---|---|")
    for text in given.shapes.split(","):
        b, t, i = map(int, text.split("x"))
        shape, slots = (b, t, i), given.slots
        for write in given.writes.split(","):
            name, own = f"{write}, {slots} slots, {text}", tape(write, slots, shape, "cpu")
            e1 = recurrence("tanh", shape, "cpu")
            compare(f"{name}, over the recurrence of E1", [own, e1], given.rounds)
            loop = tape(write, slots, shape, "reference")
            compare(f"{name}, over a loop", [own, loop], given.rounds)
            layers = [layer(E23, shape, n_slots=slots, write=write), layer(E1, shape)]
            compare(f"layer, {name}, over E1", layers, given.rounds)


if __name__ == "__main__":
    main()
