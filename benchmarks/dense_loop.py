"""Times the dense engine on a CPU beside a plain loop over time and PyTorch's own layers, in fp32.

    python benchmarks/dense_loop.py [--steps tanh,lstm] [--shapes 8x256x512] [--rounds 7]

Two comparisons, each forward and backward with all gradients, in interleaved rounds.
``recurrence``: the engine and the reference (one product and a few elementwise calls a step,
gradients by autograd) from the same inputs. ``layer``: the engine with its input product, beside
torch.nn.RNN, LSTM or GRU of the same width. Times are medians; a ratio is the engine's time over
the other's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS

PEERS: dict[str, Callable[..., torch.nn.Module]] = {
    "tanh": torch.nn.RNN,
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
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
        inputs = drive.split([cell.blocks * i, *[i] * cell.others], dim=-1)
        h_bti, _ = dense_recurrence(step, inputs, [matrix], state, parameters=own, backend="cpu")
        _pull(h_bti, [x_bti, weight, bias, matrix, *own], pull)

    return run


def _pull(out: Tensor, leaves: list[Tensor], pull: Tensor) -> None:
    torch.autograd.grad(out, leaves, pull)


def compare(name: str, pair: list[Callable[[], None]], rounds: int) -> None:
    """Print the medians of two candidates and their ratio."""
    times: list[list[float]] = [[], []]
    for run in pair:
        run()
    for _ in range(rounds):
        for run, seen in zip(pair, times, strict=True):
            began = time.perf_counter()
            run()
            seen.append(time.perf_counter() - began)
    own, other = (median(seen) * 1e3 for seen in times)
    ratio = median(a / b for a, b in zip(*times, strict=True))
    print(f"| {name} | {own:.1f} | {other:.1f} | {ratio:.2f} |", flush=True)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="tanh,lstm,gru,mix,normalized")
    parser.add_argument("--shapes", default="8x256x512")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    print("| what | engine, ms | other, ms | ratio |\n|---|---|---|---|")
    for text in given.shapes.split(","):
        b, t, i = map(int, text.split("x"))
        for step in given.steps.split(","):
            pair = [recurrence(step, (b, t, i), backend) for backend in ("cpu", "reference")]
            compare(f"recurrence {step}, {text}, over a loop", pair, given.rounds)
            if step in PEERS:
                layers = [layer(step, (b, t, i), peer) for peer in (False, True)]
                compare(f"layer {step}, {text}, over torch.nn", layers, given.rounds)


if __name__ == "__main__":
    main()
