"""Times the dense and the tape engine on a CPU beside loops over time and PyTorch's layers, fp32.

    python benchmarks/dense_loop.py [--steps tanh,lstm] [--writes full] [--slots 8]
        [--shapes 8x256x512] [--rounds 7] [--processor-time]

Comparisons, each forward and backward with all gradients, in interleaved rounds.
``recurrence``: the engine and the reference (one product and a few elementwise calls a step,
gradients by autograd) from the same inputs. ``layer``: the engine with its input product, beside
torch.nn.RNN, LSTM or GRU of the same width. ``tape``: E23's recurrence beside that of E1 (the step
``tanh``) and beside the reference; and the layers E23 and E1. Times are medians; a ratio is the
engine's time over the other's. With --processor-time they are what one thread has used of its
processor, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from elman.layers import E1, E23
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS
from elman.ops.tape.op import Write, dual_memory
from elman.ops.tape.recurrences import CELLS as WRITES

Clock = Callable[[], float]

PEERS: dict[str, Callable[..., torch.nn.Module]] = {
    "tanh": torch.nn.RNN,
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "gru_reset_after": torch.nn.GRU,
}


def recurrence(step: str, shape: tuple[int, int, int], backend: str) -> Callable[[], None]:
    """Return a call of the bare recurrence, forward and backward."""
    (b, t, i), cell = shape, CELLS[step]
    inputs = [torch.randn(b, t, cell.blocks * i), *(torch.randn(b, t, i),) * cell.others]
    matrix = torch.randn(cell.blocks * i, i) / i**0.5
    own = [torch.randn(i, i) / i**0.5] if cell.extra else [torch.ones(1)] if cell.scale else []
    state = [torch.zeros(b, i) for _ in range(cell.states)]
    leaves = [one.requires_grad_() for one in (*inputs, matrix, *own)]
    pull = torch.randn(b, t, i)

    def run() -> None:
        h_bti, _ = dense_recurrence(step, inputs, [matrix], state, parameters=own, backend=backend)
        torch.autograd.grad(h_bti, leaves, pull)

    return run


def layer(step: str, shape: tuple[int, int, int], peer: bool) -> Callable[[], None]:
    """Return a call of a whole layer, forward and backward: PyTorch's own, or the engine's."""
    (b, t, i), cell = shape, CELLS[step]
    x_bti, pull = torch.randn(b, t, i, requires_grad=True), torch.randn(b, t, i)
    if peer:
        module = PEERS[step](i, i, batch_first=True)
        leaves = [x_bti, *module.parameters()]
        return lambda: _pull(module(x_bti)[0], leaves, pull)
    rows = (cell.blocks + cell.others) * i
    weight = (torch.randn(rows, i) / i**0.5).requires_grad_()
    bias = torch.zeros(rows, requires_grad=True)
    matrix = (torch.randn(cell.blocks * i, i) / i**0.5).requires_grad_()
    own = [(torch.randn(i, i) / i**0.5).requires_grad_()] if cell.extra else []
    state = [torch.zeros(b, i) for _ in range(cell.states)]

    def run() -> None:
        drive = torch.nn.functional.linear(x_bti, weight, bias)
        parts = [cell.blocks * i, *[i] * cell.others]
        inputs = drive.split(parts, dim=-1) if cell.others else [drive]
        h_bti, _ = dense_recurrence(step, inputs, [matrix], state, parameters=own, backend="cpu")
        _pull(h_bti, [x_bti, weight, bias, matrix, *own], pull)

    return run


def tape(write: Write, slots: int, shape: tuple[int, int, int], backend: str) -> Callable[[], None]:
    """Return a call of the bare tape recurrence, forward and backward."""
    b, t, i = shape
    first = (torch.randn(i, i) / i**0.5).requires_grad_()
    second = (torch.randn(i, i) / i**0.5).requires_grad_() if write == "full" else None
    input_bti, pull_bti = torch.randn(b, t, i, requires_grad=True), torch.randn(b, t, i)
    given = (input_bti, first, second, torch.randn(b, slots, i), torch.zeros(b, i))
    leaves = [one for one in given[:3] if one is not None]

    def run() -> None:
        h_bti, *_ = dual_memory(*given, write=write, backend=backend)
        _pull(h_bti, leaves, pull_bti)

    return run


def cell(made: E1 | E23, shape: tuple[int, int, int]) -> Callable[[], None]:
    """Return a call of a cell's whole layer, forward and backward."""
    x_btd, pull_btd = torch.randn(*shape, requires_grad=True), torch.randn(*shape)
    leaves = [x_btd, *made.parameters()]
    return lambda: _pull(made(x_btd)[0], leaves, pull_btd)


def _pull(out: Tensor, leaves: list[Tensor], pull: Tensor) -> None:
    torch.autograd.grad(out, leaves, pull)


def compare(name: str, pair: list[Callable[[], None]], rounds: int, clock: Clock) -> None:
    """Print the medians of two candidates and their ratio."""
    times: list[list[float]] = [[], []]
    for run in pair:
        run()
    for _ in range(rounds):
        for run, seen in zip(pair, times, strict=True):
            began = clock()
            run()
            seen.append(clock() - began)
    own, other = (median(seen) * 1e3 for seen in times)
    ratio = median(a / b for a, b in zip(*times, strict=True))
    print(f"| {name} | {own:.1f} | {other:.1f} | {ratio:.2f} |", flush=True)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="tanh,lstm,gru,mix,normalized", help="'' for none")
    parser.add_argument("--writes", default=",".join(WRITES), help="of the tape; '' for none")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--shapes", default="8x256x512")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true")
    given = parser.parse_args()
    clock = time.perf_counter
    if given.processor_time:
        clock = time.process_time
        torch.set_num_threads(1)
    print("| what | engine, ms | other, ms | ratio |\n|---|---|---|---|")
    for text in given.shapes.split(","):
        b, t, i = map(int, text.split("x"))
        for step in filter(None, given.steps.split(",")):
            of_step(step, (b, t, i), given.rounds, clock)
        for write in filter(None, given.writes.split(",")):
            of_write(write, given.slots, (b, t, i), given.rounds, clock)


def of_step(step: str, shape: tuple[int, int, int], rounds: int, clock: Clock) -> None:
    """Compare a step of the dense engine with a loop, and its layer with PyTorch's."""
    size = "x".join(map(str, shape))
    pair = [recurrence(step, shape, backend) for backend in ("cpu", "reference")]
    compare(f"recurrence {step}, {size}, over a loop", pair, rounds, clock)
    if step in PEERS:
        layers = [layer(step, shape, peer) for peer in (False, True)]
        compare(f"layer {step}, {size}, over torch.nn", layers, rounds, clock)


def of_write(
    write: Write, slots: int, shape: tuple[int, int, int], rounds: int, clock: Clock
) -> None:
    """Compare a write of the tape engine with E1 and with a loop, and layer E23 with E1."""
    name = f"{write}, {slots} slots, {'x'.join(map(str, shape))}"
    own, loop = (tape(write, slots, shape, backend) for backend in ("cpu", "reference"))
    e1 = recurrence("tanh", shape, "cpu")
    compare(f"recurrence tape {name}, over E1", [own, e1], rounds, clock)
    compare(f"recurrence tape {name}, over a loop", [own, loop], rounds, clock)
    e23 = E23(shape[2], n_slots=slots, write=write, backend="cpu")
    layers = [cell(e23, shape), cell(E1(shape[2], backend="cpu"), shape)]
    compare(f"layer e23 {name}, over e1", layers, rounds, clock)


if __name__ == "__main__":
    main()
