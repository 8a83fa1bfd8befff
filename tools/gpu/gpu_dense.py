"""Checks the dense engine's kernels on a GPU against fp64, and times every form that they have.

    python tools/gpu/gpu_dense.py --out FILE [--check] [--time] [--model] [--forms stepwise ...]

Without --check, --time or --model, all three are done, in 60 to 90 s. Each result is one line of
JSON, printed and appended to FILE at once. Checks: outputs and all gradients of every step, with
NaN in every tensor that the engine allocates, and again with resets; repeats, another stream and a
replayed CUDA graph to the bit. Times: of the recurrence in bf16, replayed as a CUDA graph, all
sizes and forms in turn in every round; "products" is a graph of the step's products alone; cuDNN's
GRU runs eagerly. Needs torch, a GPU and this package on PYTHONPATH. With --device cpu, the backend
cpu is checked.
Shape legend: b batch, t time, i channels of the state, s parts of the state.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.kernels.nvrtc import Unit
from elman.ops.common.products import multiply
from elman.ops.dense.cuda import forms, groups, kernels, stepwise
from elman.ops.dense.cuda.group_config import GroupConfig
from elman.ops.dense.cuda.machine import machine
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import CELLS

BATCH, TIME = 32, 512
MORE_SIZES = (("gru", 512), ("gru", 768), ("normalized_scalar", 1280))  # timed, too
SIZES = {"tanh": (512, 768, 1024, 1280, 1536, 2048, 3072, 3584), "lstm": (768, 1024, 1536)}
SIZES |= {"slstm": (816, 1152)}
HEADS = {"slstm": 4}  # steps whose matrix is block-diagonal, where heads divide the channels
ROUNDS, WARMUP = 7, 2
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Compared with fp64: batch, steps, channels, rank. One channel of a thread, then two; then more
# channels than a block has, and factors; then more than a cluster has room for, with several
# launches.
SHAPES = ((3, 7, 35, 0), (1, 1, 6, 0), (32, 9, 512, 0), (5, 4, 1290, 0), (4, 9, 128, 32))
RESET_SHAPES = ((5, 7, 34, 0), (32, 9, 512, 0))  # compared once more, with resets
LARGE, LARGE_STEPS = ((33, 5, 2050, 0), (70, 4, 3584, 0)), ("tanh", "mix", "lstm")
BITS = ("tanh", "gru", "lstm", "slstm", "normalized_scalar")  # steps of the checks to the bit
Leaves = dict[str, Tensor]
# What speaks against a form: groups are run where the estimate is against them, too.
REASONS = forms.REASONS | {"groups": forms.groups_cannot}


def main() -> None:
    """Do what was asked for; the exit status is 1 if a check failed."""
    given = parse()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    everything = not (given.check or given.time or given.model)
    report = partial(write, given.out)
    wanted = [name for name in given.forms or forms.REASONS if name in forms.REASONS]
    report({"what": "machine", "device": device_name(given.device), "torch": torch.__version__})
    passed = True
    if given.check or everything:
        passed = checks(wanted, given, report)
    if given.device == "cuda" and (given.time or everything):
        sizes = [
            (step, width)
            for step, widths in SIZES.items()
            for width in widths
            if step in given.steps and width in (given.sizes or widths)
        ]
        times(wanted, sizes, report)
        more_times(wanted, given.steps, report)
    if given.device == "cuda" and (given.model or everything):
        for form in wanted:
            guarded({"what": "model", "model": "e1_1280x6", "form": form}, form, model, report)
    report({"what": "end", "passed": passed})
    raise SystemExit(0 if passed else 1)


def parse() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of lines of JSON")
    for part in ("check", "time", "model"):
        parser.add_argument(f"--{part}", action="store_true", help="this part alone")
    parser.add_argument("--forms", nargs="+", help="those of forms.py; all by default")
    parser.add_argument("--steps", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--sizes", nargs="+", type=int, help="channels that are timed; all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def write(path: Path, line: dict[str, Any]) -> None:
    """Print a result and append it to the file."""
    text = json.dumps(line)
    print(text, flush=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text + "\n")


def device_name(device: str) -> str:
    """Return what people call the device."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def guarded(
    row: dict[str, Any],
    form: str,
    call: Callable[[], dict[str, Any]],
    report: Callable[[dict[str, Any]], None],
) -> bool:
    """Report what a call in a form returns, or its error; return whether it passed."""
    began = time.perf_counter()
    try:
        with only(form):
            found = call()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:500], "passed": False}
    report(row | found | {"s": round(time.perf_counter() - began, 2)})
    return bool(found.get("passed", True))


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
    return forms.Shape(step, number, batch, channels, rank, *here)


# ---- checks


def checks(
    wanted: list[str], given: argparse.Namespace, report: Callable[[dict[str, Any]], None]
) -> bool:
    """Compare every step and form with fp64, then to the bit with itself."""
    if given.device == "cuda" and "stepwise" in wanted:
        compile_stepwise(given.steps)
    if given.device == "cuda" and "groups" in wanted:
        compile_groups(given.steps)
    passed, dtypes = True, LIMITS if given.device == "cuda" else [torch.float32]
    for form, step, dtype in itertools.product(wanted, given.steps, dtypes):
        row = {"what": "check", "form": form, "step": step, "dtype": str(dtype)}
        call = partial(compared, form, step, dtype, given.device)
        passed &= guarded(row, form, call, report)
        call = partial(compared, form, step, dtype, given.device, resets=True)
        passed &= guarded(row | {"resets": True}, form, call, report)
    for form, step in itertools.product(wanted, [s for s in given.steps if s in BITS]):
        row = {"what": "bits", "form": form, "step": step}
        passed &= guarded(row, form, partial(to_the_bit, form, step, given.device), report)
    return passed


def compile_stepwise(steps: list[str]) -> None:
    """Compile kernels side by side."""
    major, minor = torch.cuda.get_device_capability()
    configs = [
        stepwise.StepConfig(step, dtype, torch.float32, vector)
        for step, dtype, vector in itertools.product(steps, LIMITS, (1, 2))
    ]

    def compiled(one: stepwise.StepConfig) -> None:
        fast = one.io == torch.bfloat16
        text = stepwise.unit_text(one)
        Unit(text, f"dense {one.step}", f"sm_{major}{minor}", fast).cubin()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, configs))


def compile_groups(steps: list[str]) -> None:
    """Compile kernels side by side."""
    major, minor = torch.cuda.get_device_capability()
    shapes = [
        shape_of(step, torch.bfloat16, batch, channels, rank, "cuda")
        for step in steps
        for batch, _, channels, rank in shapes_of(step)
    ]
    configs = {
        config
        for shape, back in itertools.product(shapes, (False, True))
        if REASONS["groups"](shape) is None and (config := forms.group_config(shape, back=back))
    }

    def compiled(one: GroupConfig) -> None:
        step = next(name for name, cell in CELLS.items() if cell == one.cell)
        label = f"dense {step} {'backward' if one.back else 'forward'} groups"
        Unit(groups.unit_text(one), label, f"sm_{major}{minor}", fast=True).cubin()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, configs))


def shapes_of(step: str) -> tuple[tuple[int, int, int, int], ...]:
    """Return the shapes in which a step is checked: batch, steps, channels, rank."""
    return SHAPES + (LARGE if step in LARGE_STEPS else ())


def compared(
    form: str, step: str, dtype: torch.dtype, device: str, *, resets: bool = False
) -> dict[str, Any]:
    """Return the largest relative L2 error of outputs and gradients, by shape."""
    errors: dict[str, Any] = {}
    worst = 0.0
    for batch, steps, channels, rank in RESET_SHAPES if resets else shapes_of(step):
        name = f"{batch}x{steps}x{channels} rank {rank}"
        shape = shape_of(step, dtype, batch, channels, rank, device)
        against = REASONS[form](replace(shape, resets=resets))
        if against is not None:
            errors[name] = f"not run: {against}"
            continue
        narrow = leaves_of(step, (batch, steps, channels, rank), dtype, device)
        wide = {n: leaf.detach().double().requires_grad_() for n, leaf in narrow.items()}
        resets_bt = torch.rand(batch, steps, device=device) < 0.3 if resets else None
        with poisoned():
            backend = "cuda" if device == "cuda" else "cpu"
            found = all_of(step, narrow, backend, resets_bt=resets_bt)
        exact = all_of(step, wide, "reference", dtype, resets_bt)
        by_name = {n: distance(found[n], exact[n], size_of(exact, n)) for n in exact}
        largest = max(by_name, key=lambda n: by_name[n])
        errors[name] = f"{by_name[largest]:.1e} of {largest}"
        worst = max(worst, by_name[largest])
    return {"errors": errors, "worst": worst, "passed": worst <= LIMITS[dtype]}


def distance(found: Tensor, exact: Tensor, size: Tensor) -> float:
    """Return the L2 error relative to a size; a NaN counts as 9."""
    error = float((found.double() - exact).norm() / (size + 1e-30))
    return error if error == error else 9.0


def size_of(exact: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the norm that an error is relative to.

    The gradient of a single number is a sum of terms that may cancel. Its rounding is that of the
    terms, which are about as large as the gradients of the pre-activations.
    """
    norm = exact[name].norm()
    return norm if exact[name].numel() > 1 else torch.maximum(norm, exact["d input 0"].norm())


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
    rows, heads = CELLS[step].blocks * channels, HEADS.get(step, 1)
    if heads == 1 or channels % heads:
        return rows, channels
    return heads, rows // heads, channels // heads


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
    pulled = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    found = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
    return found | {f"d {name}": g for name, g in zip(leaves, pulled, strict=True)}


@contextmanager
def poisoned() -> Iterator[None]:
    """Let every new tensor be NaN until something is written to it."""
    places = ((Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like"))
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), make in zip(places, before, strict=True):
            setattr(owner, name, lambda *a, make=make, **k: filled(make(*a, **k)))
        yield
    finally:
        for (owner, name), make in zip(places, before, strict=True):
            setattr(owner, name, make)


def filled(tensor: Tensor) -> Tensor:
    """Return a tensor full of NaN."""
    return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor


def to_the_bit(form: str, step: str, device: str) -> dict[str, Any]:
    """Compare a call with its repeat, with one on another stream and with a replayed graph."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = (32, 9, 512, 0)
    against = REASONS[form](shape_of(step, dtype, size[0], size[2], 0, device))
    if against is not None:
        return {"not run": against}
    leaves = leaves_of(step, size, dtype, device)
    backend = "cuda" if device == "cuda" else "cpu"
    first = all_of(step, leaves, backend)
    same = {"repeat": equal(first, all_of(step, leaves, backend))}
    if device == "cuda":
        same["stream"] = equal(first, on_another_stream(step, leaves))
        same["graph"] = equal(first, replayed(step, leaves))
    return {"same": same, "passed": all(same.values())}


def equal(one: Leaves, other: Leaves) -> bool:
    """Return whether tensors agree to the bit."""
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def on_another_stream(step: str, leaves: Leaves) -> Leaves:
    """Run a call on a stream that gets its inputs late."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    late = {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        with torch.no_grad():
            for name, leaf in leaves.items():
                late[name].copy_(leaf)
        found = all_of(step, {n: x.requires_grad_() for n, x in late.items()}, "cuda")
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return found


def replayed(step: str, leaves: Leaves) -> Leaves:
    """Record a call on zeros and replay it on the numbers."""
    static = {name: torch.zeros_like(leaf).requires_grad_() for name, leaf in leaves.items()}
    graph, held = recorded(lambda: all_of(step, static, "cuda"))
    with torch.no_grad():
        for name, leaf in leaves.items():
            static[name].copy_(leaf)
    graph.replay()
    torch.cuda.synchronize()
    return {name: tensor.clone() for name, tensor in held.items()}


def recorded(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a call as a CUDA graph, and its results; the graph keeps alive what the call reads."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()
    graph.call = call  # type: ignore[attr-defined]
    return graph, held


# ---- times


Timed = tuple[str, int, str, str]
"""Step, channels, form and pass."""


def times(
    wanted: list[str], sizes: list[tuple[str, int]], report: Callable[[dict[str, Any]], None]
) -> None:
    """Time the recurrence of steps in every size and form, and their products alone."""
    calls: dict[Timed, Callable[[], None]] = {}
    kept: list[Any] = []
    for step, width in sizes:
        for name in ("products", *wanted):
            row = {"what": "recording", "step": step, "d": width, "form": name}
            try:
                if name == "products":
                    made = products_alone(step, width)
                else:
                    made = passes(name, step, width, report)
            except Exception as error:
                report(row | {"error": f"{type(error).__name__}: {error}"[:500]})
                continue
            for direction, (graph, held) in made.items():
                calls[step, width, name, direction] = graph.replay
                kept.append((graph, held))
    rounds: dict[Timed, list[float]] = {key: [] for key in calls}
    for number in range(WARMUP + ROUNDS):
        for key, call in calls.items():
            taken = seconds(call)
            if number >= WARMUP:
                rounds[key].append(taken)
    for (step, width, name, direction), taken_s in rounds.items():
        us = [round(s * 1e6 / TIME, 3) for s in taken_s]
        row = {"what": "time", "step": step, "d": width, "form": name, "pass": direction}
        report(row | {"us_a_step": statistics.median(us), "low": min(us), "high": max(us)})


def passes(
    form: str, step: str, width: int, report: Callable[[dict[str, Any]], None]
) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return the passes of a form as graphs; "backward" has the large products, too."""
    shape = shape_of(step, torch.bfloat16, BATCH, width, 0, "cuda")
    row = {"step": step, "d": width, "form": form}
    if against := REASONS[form](shape):
        report({"what": "recording", **row, "not run": against})
        return {}
    leaves = leaves_of(step, (BATCH, TIME, width, 0), torch.bfloat16, "cuda")
    x, matrix, *first = (leaf.detach() for leaf in leaves.values())
    first_sbi = torch.stack(first)
    dx, dy = torch.randn_like(x), torch.randn_like(x[..., :width])

    def forwards() -> Any:
        return kernels.forward(step, [x], [matrix], [], first_sbi, True)

    with only(form):
        results = forwards()
        forward = recorded(forwards)
        backward = recorded(
            lambda: kernels.backward(step, dy, None, [matrix], [], first_sbi, results)
        )
        eager = min(seconds(forwards) for _ in range(2))
    why = forms.choose(shape).why
    us = round(eager * 1e6 / TIME, 2)
    report({"what": "eager", **row, "forward_us_a_step": us, "why": why})
    large = recorded(
        lambda: gradients(
            step, [dx], dx[:0], first_sbi, [matrix.to(dx.dtype)], [], first_sbi, results
        )
    )
    return {"forward": forward, "backward": backward, "large products of backward": large}


def more_times(
    wanted: list[str], steps: list[str], report: Callable[[dict[str, Any]], None]
) -> None:
    """Time steps of two products or a norm in every form, and cuDNN's GRU, all in turn."""
    calls: dict[tuple[str, int, str, str], Callable[[], Any]] = {}
    for step, width in (one for one in MORE_SIZES if one[0] in steps):
        made: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
            form: partial(passes_of, form, step, width) for form in wanted
        }
        if step == "gru":
            for dtype in (torch.float16, torch.bfloat16):
                made[f"cuDNN, {dtype}"] = partial(cudnn_gru, width, dtype)
        for form, make in made.items():
            try:
                found = make()
            except Exception as error:
                row = {"what": "recording", "step": step, "d": width, "form": form}
                report(row | {"error": f"{type(error).__name__}: {error}"[:500]})
                continue
            calls |= {(step, width, form, way): call for way, call in found.items()}
    rounds: dict[tuple[str, int, str, str], list[float]] = {key: [] for key in calls}
    for number in range(WARMUP + ROUNDS):
        for key, call in calls.items():
            taken = seconds(call)
            if number >= WARMUP:
                rounds[key].append(taken * 1e6 / TIME)
    for (step, width, form, way), taken_us in rounds.items():
        us = [round(one, 3) for one in taken_us]
        row = {"what": "time", "step": step, "d": width, "form": form, "pass": way}
        report(row | {"us_a_step": statistics.median(us), "low": min(us), "high": max(us)})


def passes_of(form: str, step: str, width: int) -> dict[str, Callable[[], Any]]:
    """Return what replays both passes of a step in a form; nothing where it does not run."""
    if forms.REASONS[form](shape_of(step, torch.bfloat16, BATCH, width, 0, "cuda")):
        return {}
    leaves = leaves_of(step, (BATCH, TIME, width, 0), torch.bfloat16, "cuda")
    tensors = {name: leaf.detach() for name, leaf in leaves.items()}

    def of(*words: str) -> list[Tensor]:
        return [one for name, one in tensors.items() if name.split()[0] in words]

    inputs, rest = of("input"), (of("matrix"), of("scale", "extra"), torch.stack(of("state")))
    dy = torch.randn_like(inputs[0][..., :width])
    with only(form):
        results = kernels.forward(step, inputs, *rest, True)
        forward, kept = recorded(lambda: kernels.forward(step, inputs, *rest, True))
        back, kept_too = recorded(lambda: kernels.backward(step, dy, None, *rest, results))
    held = (kept, kept_too)  # for as long as anybody replays

    def replay(graph: torch.cuda.CUDAGraph, _: Any = held) -> None:
        graph.replay()

    return {"forward": partial(replay, forward), "backward": partial(replay, back)}


def cudnn_gru(width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Return what runs both passes of cuDNN's GRU; the products around the recurrence are in it."""
    gru = torch.nn.GRU(width, width, batch_first=True, device="cuda", dtype=dtype)
    x = torch.randn(BATCH, TIME, width, device="cuda", dtype=dtype).requires_grad_()
    y, _ = gru(x)
    dy, read = torch.randn_like(y), [x, *gru.parameters()]
    return {
        "forward": lambda: gru(x),
        "backward": lambda: torch.autograd.grad(y, read, dy, retain_graph=True),
    }


def products_alone(step: str, width: int) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return the products of both passes as graphs: no form of steps can be faster."""
    matrix = torch.randn(matrix_shape(step, width), device="cuda").bfloat16() / width**0.5

    def repeat(left: Tensor, right: Tensor, to: Tensor) -> None:
        for _ in range(TIME):
            multiply(left, right, to)

    def product(right: Tensor) -> tuple[torch.cuda.CUDAGraph, Any]:
        *heads, channels, rows = right.shape
        left = torch.randn(*heads, BATCH, channels, device="cuda").bfloat16()
        to = torch.empty(*heads, BATCH, rows, device="cuda")
        return recorded(partial(repeat, left, right, to))

    return {"forward": product(matrix.mT), "backward": product(matrix)}


def seconds(call: Callable[[], Any]) -> float:
    """Return the time of a call by events on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def model() -> dict[str, Any]:
    """Time a training step of E1 1280x6, replayed as a graph."""
    from elman.models.cells.dense.e1_layer import E1
    from elman.models.language_model import LanguageModel

    torch.manual_seed(0)
    layers = [E1(1280, backend="cuda", device="cuda") for _ in range(6)]
    net = LanguageModel(1280, layers, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True, capturable=True)
    tokens = torch.randint(256, (BATCH, TIME + 1), device="cuda", dtype=torch.uint8)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = net.loss(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    torch.cuda.reset_peak_memory_stats()
    losses = [float(step()) for _ in range(2)]
    peak = torch.cuda.max_memory_allocated()
    eager = min(seconds(step) for _ in range(2))
    graph, loss = recorded(step)
    taken = statistics.median(seconds(graph.replay) for _ in range(ROUNDS))
    losses.append(float(loss))
    return {
        "eager_tok_s": round(BATCH * TIME / eager),
        "replayed_tok_s": round(BATCH * TIME / taken),
        "replayed_ms": round(taken * 1e3, 2),
        "peak_gb": round(peak / 1e9, 2),
        "losses": [round(one, 3) for one in losses],
        "passed": all(one == one for one in losses),
    }


if __name__ == "__main__":
    main()
