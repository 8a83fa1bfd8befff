"""Compares the channel engine with PyTorch loops over time: milliseconds, best of several rounds.

    python benchmarks/channel_loop.py [--steps e65,e68] [--batch-size 8] [--dim 512] ...

It times three ways of running one recurrence with its self gate, forward only and with backward, in
interleaved rounds:

- ``plain``: the obvious loop, which indexes each step, applies biases and activations, stacks.
- ``reference``: the reference backend, which computes everything without the state before the loop.
- ``cpu``: the engine.

Shape legend: b batch, t time, c channels of the state.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.channel.op import run
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import row_blocks

ROUNDS = 5
WAYS = ("plain", "reference", "cpu")

Step = Callable[..., Tensor]
sigmoid, tanh = torch.sigmoid, torch.tanh


def _e34(h: Tensor, x: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return tanh(x + c * h + b)


def _rms_norm(v: Tensor) -> Tensor:
    return v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def _e59(h: Tensor, x: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    return _rms_norm(h + alpha * (x + b))


def _e59b(h: Tensor, x: Tensor, g: Tensor, b: Tensor, bg: Tensor) -> Tensor:
    return _rms_norm(h + sigmoid(g + bg) * (x + b))


def _e61(h: Tensor, a: Tensor, v: Tensor, ba: Tensor, bv: Tensor) -> Tensor:
    a = sigmoid(a + ba)
    return a * h + (1 - a) * (v + bv)


def _tied(h: Tensor, x: Tensor, b: Tensor) -> Tensor:
    a = sigmoid(x + b)
    return a * h + (1 - a) * tanh(x + b)


def _e62(h: Tensor, k: Tensor, v: Tensor, bk: Tensor, bv: Tensor) -> Tensor:
    k = sigmoid(k + bk)
    return (1 - k) * h + k * tanh(v + bv)


def _e64(h: Tensor, a: Tensor, x: Tensor, ba: Tensor, b: Tensor) -> Tensor:
    a = sigmoid(a + ba)
    return a * h + (1 - a) * tanh(h + x + b)


def _e65(h: Tensor, a: Tensor, x: Tensor, ba: Tensor, b: Tensor, c: Tensor) -> Tensor:
    a = sigmoid(a + ba)
    return a * h + (1 - a) * tanh(c * h + x + b)


def _e67(h: Tensor, a: Tensor, x: Tensor, ba: Tensor, b: Tensor, c: Tensor) -> Tensor:
    a = sigmoid(a + c * h + ba)
    return a * h + (1 - a) * tanh(x + b)


def _e68(h: Tensor, a: Tensor, x: Tensor, ba: Tensor, b: Tensor, c: Tensor, bg: Tensor) -> Tensor:
    a = sigmoid(a + ba)
    return a * h + (1 - a) * tanh(x + b) * sigmoid(c * h + bg)


def _g(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x + 0.5, sigmoid(x))


def _mingru(h: Tensor, x: Tensor, z: Tensor) -> Tensor:
    z = sigmoid(z)
    return (1 - z) * h + z * _g(x)


def _minlstm(h: Tensor, x: Tensor, f: Tensor, i: Tensor) -> Tensor:
    f, i = sigmoid(f), sigmoid(i)
    return (f * h + i * _g(x)) / (f + i)


def _e74_delta(s: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return tanh(s * (1 - k * k) + v * k)


PLAIN: dict[str, Step] = {
    "e34": _e34,
    "e59": _e59,
    "e59b": _e59b,
    "e61": _e61,
    "tied": _tied,
    "e62": _e62,
    "e64": _e64,
    "e65": _e65,
    "e67": _e67,
    "e68": _e68,
    "mingru": _mingru,
    "minlstm": _minlstm,
    "e74_delta_tanh": _e74_delta,
}


@dataclass
class Case:
    """One recurrence with its tensors, the first being the fused projection."""

    step: str
    leaves: list[Tensor]
    state_bc: Tensor
    pull_btc: Tensor

    def forward(self, way: str) -> Tensor:
        """Return the gated output."""
        cell, (fused, *parameters) = CELLS[self.step], self.leaves
        if way == "plain":
            parts = fused.chunk(len(cell.inputs), -1)
            return self._plain(parts, parameters)
        places = row_blocks(dict.fromkeys(cell.inputs, self.state_bc.shape[1]))
        plan = Plan(self.step, tuple(places.items()), self_gate=True)
        named = dict(zip(cell.parameters, parameters, strict=True))
        return run(plan, (fused,), named, self.state_bc, backend=way)[0]

    def _plain(self, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
        h, states = self.state_bc, []
        for t in range(parts[0].shape[1]):
            h = PLAIN[self.step](h, *(part[:, t] for part in parts), *parameters)
            states.append(h)
        y_btc = torch.stack(states, 1)
        return y_btc * functional.silu(y_btc)

    def both(self, way: str) -> None:
        """Run forward and backward."""
        torch.autograd.grad(self.forward(way), self.leaves, self.pull_btc)


def make_case(step: str, batch: int, steps: int, channels: int) -> Case:
    """Return a case with inputs of layers at their start."""
    cell = CELLS[step]
    torch.manual_seed(0)
    fused = torch.randn(batch, steps, len(cell.inputs) * channels)
    parameters = [torch.rand(1 if n in cell.scalars else channels) for n in cell.parameters]
    leaves = [leaf.requires_grad_() for leaf in (fused, *parameters)]
    shape = (batch, steps, channels)
    return Case(step, leaves, torch.zeros(batch, channels), torch.randn(shape))


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(case: Case, rounds: int) -> dict[str, tuple[float, float]]:
    """Return milliseconds forward and forward with backward, by way; rounds are interleaved."""
    best = {way: [float("inf")] * 2 for way in WAYS}
    for _ in range(rounds + 1):  # the first round warms up
        for way in WAYS:
            forward = seconds(lambda way=way: case.forward(way))  # type: ignore[misc]
            both = seconds(lambda way=way: case.both(way))  # type: ignore[misc]
            best[way] = [min(best[way][0], forward), min(best[way][1], both)]
    return {way: (1e3 * forward, 1e3 * both) for way, (forward, both) in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Channel engine and loops in PyTorch.")
    parser.add_argument("--steps", default=",".join(PLAIN), help="names, separated by commas")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print(
        f"{torch.get_num_threads()} threads, B={given.batch_size} T={given.chunk_size} "
        f"D={given.dim}, fp32; ms forward / with backward, best of {given.rounds}"
    )
    for step in given.steps.split(","):
        case = make_case(step, given.batch_size, given.chunk_size, given.dim)
        times = measure(case, given.rounds)
        line = "; ".join(f"{way} {f:.2f} / {b:.2f}" for way, (f, b) in times.items())
        ratios = ", ".join(f"{times[way][1] / times['cpu'][1]:.0f}x" for way in WAYS[:2])
        print(f"{step}: {line}; {ratios}", flush=True)


if __name__ == "__main__":
    main()
