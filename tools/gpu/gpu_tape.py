"""Checks the tape engine's kernels on a GPU against fp64, and times them.

    python tools/gpu/gpu_tape.py --out FILE [--check] [--time]

Without --check or --time, both are done. Each result is one line of JSON, printed and appended to
FILE at once. Checks: outputs and all gradients of every write, with NaN in every
tensor that the engine allocates; a repeat, another stream and a replayed CUDA graph to the bit.
Times: of the recurrence in bf16, replayed as a CUDA graph. Needs torch, a GPU and this package on
PYTHONPATH. With --device cpu, the backend cpu is checked.
Shape legend: b batch, t time, i channels of the state, n slots.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from gpu_dense import (  # type: ignore[import-not-found]
    device_name,
    distance,
    equal,
    poisoned,
    recorded,
    seconds,
    write,
)

from elman.ops.tape.cuda import stepwise
from elman.ops.tape.op import Write, dual_memory
from elman.ops.tape.results import Inputs

WRITES: tuple[Write, ...] = get_args(Write)
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Compared with fp64: batch, steps, slots, channels. One channel of a thread and two, more channels
# than a block takes at a time, and all slots that there may be.
SHAPES = ((3, 7, 5, 35), (1, 1, 1, 6), (32, 10, 8, 768), (5, 4, 64, 1290), (2, 3, 1024, 66))
TIMED = ((32, 512, 8, 512), (32, 512, 8, 768), (32, 512, 64, 512))
ROUNDS = 7
Leaves = dict[str, torch.Tensor]
NAMES = ("states", "last tape", "last state")


def main() -> None:
    """Do what was asked for; the exit status is 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of lines of JSON")
    parser.add_argument("--check", action="store_true", help="this part alone")
    parser.add_argument("--time", action="store_true", help="this part alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = partial(write, given.out)
    report({"what": "machine", "device": device_name(given.device), "torch": torch.__version__})
    passed = True
    if given.check or not given.time:
        passed = checks(given.device, report)
    if given.device == "cuda" and (given.time or not given.check):
        for kind, shape in itertools.product(WRITES, TIMED):
            timed(kind, shape, report)
    report({"what": "end", "passed": passed})
    raise SystemExit(0 if passed else 1)


def checks(device: str, report: Callable[[dict[str, Any]], None]) -> bool:
    """Compare every write with fp64, then to the bit with itself."""
    passed = True
    for kind, dtype in itertools.product(WRITES, LIMITS if device == "cuda" else [torch.float32]):
        errors, worst = {}, 0.0
        for shape in SHAPES:
            narrow = leaves_of(kind, shape, dtype, device)
            wide = {n: leaf.detach().double().requires_grad_() for n, leaf in narrow.items()}
            with poisoned():
                found = all_of(kind, narrow, device, dtype)
            exact = all_of(kind, wide, "reference", dtype)
            by_name = {n: distance(found[n], exact[n], exact[n].norm()) for n in exact}
            largest = max(by_name, key=lambda n: by_name[n])
            errors["x".join(map(str, shape))] = f"{by_name[largest]:.1e} of {largest}"
            worst = max(worst, by_name[largest])
        row = {"what": "check", "write": kind, "dtype": str(dtype), "errors": errors}
        report(row | {"worst": worst, "passed": worst <= LIMITS[dtype]})
        passed &= worst <= LIMITS[dtype]
    for kind in WRITES:
        same = to_the_bit(kind, device)
        report({"what": "bits", "write": kind, "same": same, "passed": all(same.values())})
        passed &= all(same.values())
    return passed


def leaves_of(
    kind: Write, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> Leaves:
    """Return the tensors of a call, of numbers that the dtype has.

    They are small: large states align the slots with themselves, weights jump between 0 and 1, and
    gradients magnify the rounding of any engine a thousand times.
    """
    b, t, n, i = shape
    draw = torch.Generator(device).manual_seed(1)

    def normal(*size: int, over: float = 1.0) -> torch.Tensor:
        return (torch.randn(size, generator=draw, device=device) / over).to(dtype)

    leaves = {"input": normal(b, t, i, over=4), "W_h": normal(i, i, over=2 * i**0.5).float()}
    leaves |= {"W_r": normal(i, i, over=2 * i**0.5).float()} if kind == "full" else {}
    leaves |= {"tape": normal(b, n, i, over=2).float(), "state": normal(b, i, over=4).float()}
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


def all_of(kind: Write, leaves: Leaves, backend: str, io: torch.dtype) -> Leaves:
    """Return outputs and gradients by name; gradients of outputs are numbers that ``io`` has."""
    matrices = (leaves["W_h"], leaves.get("W_r"))
    states = (leaves["tape"], leaves["state"])
    outputs = dual_memory(leaves["input"], *matrices, *states, write=kind, backend=backend)
    spread = [torch.linspace(-1, 1, o.numel(), device=o.device).sin() for o in outputs]
    pulls = [p.to(io).reshape(o.shape).to(o.dtype) for p, o in zip(spread, outputs, strict=True)]
    pulled = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    found = {name: out.detach() for name, out in zip(NAMES, outputs, strict=True)}
    return found | {f"d {name}": g for name, g in zip(leaves, pulled, strict=True)}


def to_the_bit(kind: Write, device: str) -> dict[str, bool]:
    """Compare a call with its repeat, with one on another stream and with a replayed graph."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    leaves = leaves_of(kind, (32, 10, 8, 768), dtype, device)
    call = partial(all_of, kind, backend=device, io=dtype)
    first = call(leaves)
    same = {"repeat": equal(first, call(leaves))}
    if device == "cuda":
        same["stream"] = equal(first, on_another_stream(call, leaves))
        static = {name: torch.zeros_like(leaf).requires_grad_() for name, leaf in leaves.items()}
        graph, held = recorded(lambda: call(static))
        with torch.no_grad():
            for name, leaf in leaves.items():
                static[name].copy_(leaf)
        graph.replay()
        torch.cuda.synchronize()
        same["graph"] = equal(first, held)
    return same


def on_another_stream(call: Callable[[Leaves], Leaves], leaves: Leaves) -> Leaves:
    """Run a call on a stream that gets its inputs late."""
    side = torch.cuda.Stream()
    late = {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        with torch.no_grad():
            for name, leaf in leaves.items():
                late[name].copy_(leaf)
        found = call({name: leaf.requires_grad_() for name, leaf in late.items()})
    torch.cuda.synchronize()
    return found


def timed(
    kind: Write, shape: tuple[int, int, int, int], report: Callable[[dict[str, Any]], None]
) -> None:
    """Time both passes, replayed as graphs; "backward" has the large products, too."""
    leaves = leaves_of(kind, shape, torch.bfloat16, "cuda")
    plain = {name: leaf.detach() for name, leaf in leaves.items()}
    matrix = torch.cat([plain[name] for name in ("W_h", "W_r") if name in plain])
    given = Inputs(plain["input"], matrix, plain["tape"], plain["state"])
    results = stepwise.forward(kind, given, True)
    dy = torch.randn_like(results.y_bti)
    calls = {
        "forward": lambda: stepwise.forward(kind, given, True),
        "backward": lambda: stepwise.backward(kind, dy, None, None, given, results),
    }
    for name, call in calls.items():
        graph, _held = recorded(call)
        taken = [seconds(graph.replay) * 1e6 / shape[1] for _ in range(ROUNDS)]
        eager = min(seconds(call) for _ in range(2)) * 1e6 / shape[1]
        row = {"what": "time", "write": kind, "shape": shape, "pass": name}
        report(
            row
            | {"us_a_step": round(statistics.median(taken), 2), "low": round(min(taken), 2)}
            | {"high": round(max(taken), 2), "eager": round(eager, 2)}
        )


if __name__ == "__main__":
    main()
