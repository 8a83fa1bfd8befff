"""Compares the matrix-state engine with a plain PyTorch loop over time, in fp32.

    python benchmarks/matrix_loop.py [--cells e70,e88] [--shapes 16x16,8x32,8x64] [--busy] ...

The loop is the obvious one: it indexes each step, holds the whole state in one tensor, stacks the
outputs, and leaves the gradients to autograd. Both compute only the recurrence from the same
leaves, without activations before it or gates after it. In each round each one runs twice in a row,
and the second time counts: the first run must get back the memory that the other one returned to
the system, which does not happen in training. Times are medians of interleaved rounds, with the
fastest in brackets; the ratio is of the medians. With --busy they are CPU time of one thread, which
is still meaningful on a machine that others use.

Shape legend: b batch, t time, h heads, n columns of the state, v rows, i = h n.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.ops.common.slices import Slice
from elman.ops.matrix_state.op import run
from elman.ops.matrix_state.plan import Plan


@dataclass(frozen=True)
class Subject:
    """One cell: its plan's words and the sequences that it reads beside k, q and v."""

    cell: str
    extra: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    nonlinearity: str = "tanh"


SUBJECTS = {
    "e70": Subject("decayed", ("decay",), words=(("decay", "sigmoid"),)),
    "e71": Subject("read_gated", ("g0",), ("p0", "p1")),
    "e73": Subject("column_gated", ("z",), words=(("z_act", "tanh"),)),
    "e73cp": Subject("delta", ("z",), words=(("key", "zk"),), nonlinearity="linear"),
    "e75": Subject("row_gated_delta", ("g0",), ("p0",)),
    "e88": Subject("delta", ("decay",), words=(("decay", "sigmoid"),)),
}


def loop(name: str, given: dict[str, Tensor], heads: int) -> Tensor:
    """Return y_bthv of the cell, one step after the other.

    ``given`` holds the sequences [B, T, H * width] and the parameters [H, rows].
    """
    parts = {key: x if key[0] == "p" else x.unflatten(-1, (heads, -1)) for key, x in given.items()}
    k_bthn, q_bthn, v_bthv = parts["k"], parts["q"], parts["v"]
    batch, steps, _, n = k_bthn.shape
    s_bhvn = k_bthn.new_zeros(batch, heads, v_bthv.shape[-1], n)
    outputs = []
    for t in range(steps):
        k_bh1n, v_bhv = k_bthn[:, t, :, None, :], v_bthv[:, t]
        s_bhvn = STEPS[name](
            s_bhvn,
            k_bh1n,
            v_bhv,
            {x: parts[x][:, t] for x in SUBJECTS[name].extra},
            [parts[p] for p in SUBJECTS[name].parameters],
        )
        outputs.append((s_bhvn * q_bthn[:, t, :, None, :]).sum(-1))
    return torch.stack(outputs, 1)


Extra = dict[str, Tensor]


def _read(s: Tensor, k: Tensor) -> Tensor:
    return (s * k).sum(-1)


def _e70(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    return torch.tanh(torch.sigmoid(x["decay"])[..., None] * s + v[..., None] * k)


def _e71(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    a = torch.sigmoid(x["g0"] + p[0] + p[1] * _read(s, k))
    return torch.tanh(a[..., None] * s + ((1 - a) * v)[..., None] * k)


def _e73(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    return torch.tanh(s * torch.tanh(x["z"][..., None, :]) + v[..., None] * k)


def _e73cp(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    return s + (v - _read(s * x["z"][..., None, :], k))[..., None] * k


def _e75(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    gate = torch.sigmoid(x["g0"] + p[0])
    return torch.tanh(gate[..., None] * s + (v - _read(s, k))[..., None] * k)


def _e88(s: Tensor, k: Tensor, v: Tensor, x: Extra, p: list[Tensor]) -> Tensor:
    return torch.tanh(torch.sigmoid(x["decay"])[..., None] * s + (v - _read(s, k))[..., None] * k)


STEPS = {"e70": _e70, "e71": _e71, "e73": _e73, "e73cp": _e73cp, "e75": _e75, "e88": _e88}


@dataclass
class Case:
    """One cell at one shape, with its leaves."""

    name: str
    plan: Plan
    sequences: dict[str, Tensor]
    parameters: dict[str, Tensor]
    pull_bthv: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        """Everything that gets a gradient."""
        return [*self.sequences.values(), *self.parameters.values()]

    def forward(self, way: str) -> Tensor:
        """Return y by the engine or by the loop."""
        if way == "loop":
            return loop(self.name, self.sequences | self.parameters, self.plan.heads)
        return run(self.plan, list(self.sequences.values()), self.parameters, None, backend=way)[0]

    def both(self, way: str) -> list[Tensor]:
        """Run forward and backward; return the gradients."""
        return list(torch.autograd.grad(self.forward(way), self.leaves, self.pull_bthv))


def make_case(name: str, batch: int, steps: int, heads: int, n: int) -> Case:
    """Return a case: unit-length keys, everything else standard normal."""
    subject = SUBJECTS[name]
    roles = ("k", "q", "v", *subject.extra)
    plan = Plan(
        subject.cell,
        heads,
        n,
        n,
        tuple((role, Slice(number, 0)) for number, role in enumerate(roles)),
        nonlinearity=subject.nonlinearity,
        **dict(subject.words),  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    made = {role: torch.randn(batch, steps, heads, plan.width(role)) for role in roles}
    made["k"] = made["k"] / made["k"].norm(dim=-1, keepdim=True)
    sequences = {role: x.flatten(2).requires_grad_() for role, x in made.items()}
    shapes = {p: plan.parameter_shape(p) for p in subject.parameters}
    parameters = {p: torch.rand(shape).requires_grad_() for p, shape in shapes.items()}
    return Case(name, plan, sequences, parameters, torch.randn(batch, steps, heads, n))


def check(case: Case) -> None:
    """Compare every gradient of the two ways."""
    for ours, theirs in zip(case.both("cpu"), case.both("loop"), strict=True):
        error = float((ours - theirs).norm() / theirs.norm())
        assert error < 1e-4, (case.name, error)


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return how long one call takes."""
    began = clock()
    call()
    return clock() - began


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return milliseconds of forward with backward by way, one a round; the first is left out."""
    times: dict[str, list[float]] = {"loop": [], "cpu": []}
    for _ in range(rounds + 1):
        for way, found in times.items():
            case.both(way)
            found.append(1e3 * seconds(lambda way=way: case.both(way), clock))  # type: ignore[misc]
    return {way: found[1:] for way, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Matrix-state engine and a loop in PyTorch.")
    parser.add_argument("--cells", default=",".join(SUBJECTS), help="names, separated by commas")
    parser.add_argument("--shapes", default="16x16,8x32,8x64", help="heads x n_state")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="CPU time of one thread")
    given = parser.parse_args()
    clock = time.process_time if given.busy else time.perf_counter
    if given.busy:
        torch.set_num_threads(1)
    print(
        f"{torch.get_num_threads()} threads, B={given.batch_size} T={given.chunk_size}, fp32; "
        f"forward with backward in ms, median (fastest) of {given.rounds}\n\n"
        "| cell | heads x n | loop | engine | ratio |\n|---|---|---|---|---|"
    )
    for shape in given.shapes.split(","):
        heads, n = map(int, shape.split("x"))
        for name in given.cells.split(","):
            case = make_case(name, given.batch_size, given.chunk_size, heads, n)
            check(case)
            times = measure(case, given.rounds, clock)
            cells = [f"{statistics.median(t):.1f} ({min(t):.1f})" for t in times.values()]
            ratio = statistics.median(times["loop"]) / statistics.median(times["cpu"])
            print(f"| {name} | {shape} | {cells[0]} | {cells[1]} | {ratio:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
