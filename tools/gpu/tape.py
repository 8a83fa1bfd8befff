"""The tape engine's kernels against fp64 and to the bit; times of every form that they have.

check   outputs and all gradients of every write and form, with NaN in every tensor that the engine
        allocates; a repeat, another stream and a replayed CUDA graph to the bit
time    the recurrence in bf16, replayed as a CUDA graph, all sizes and forms in turn in every
        round; beside them E1's recurrence of the same widths in the dense engine's own form

    python tools/gpu/run.py tape [check] [time] [--only cluster] [both=true]

``--only`` chooses forms. With ``both=true``, clusters are timed a second time, as "cluster, not
ahead", whose way back reads nothing for the next round. On a CPU, the backend cpu is checked.

Shape legend: b batch, t time, i channels of the state, n slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import torch

from elman.ops.common.cuda.machine import machine
from elman.ops.dense import passes as dense_passes
from elman.ops.dense.cuda import kernels as dense
from elman.ops.tape.cuda import cluster_config, forms, kernels
from elman.ops.tape.op import Write, dual_memory
from elman.ops.tape.passes import Call, save
from tools.gpu.instruments import (
    distance,
    equal,
    interleaved,
    on_late_stream,
    poisoned,
    recorded,
    replayed_late,
    spread,
)
from tools.gpu.job import Check, Job

WRITES: tuple[Write, ...] = get_args(Write)
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Compared with fp64: batch, steps, slots, channels. One channel of a thread and two, more channels
# than a block takes at a time, and all slots that there may be.
# The last ones are those of clusters: of 8 and of 16 blocks, and with a tape of 64 slots.
SHAPES = (
    *((3, 7, 5, 35), (1, 1, 1, 6), (32, 10, 8, 768), (5, 4, 64, 1290), (2, 3, 1024, 66)),
    *((33, 40, 8, 512), (32, 5, 64, 512), (7, 3, 9, 1024), (4, 6, 1, 64)),
)
TIMED = ((32, 512, 8, 512), (32, 512, 8, 768), (32, 512, 8, 1024), (32, 512, 64, 512))
ROUNDS, WARMUP = 7, 2
NOT_AHEAD = "cluster, not ahead"
Leaves = dict[str, torch.Tensor]
Size = tuple[int, int, int, int]
NAMES = ("states", "last tape", "last state")


def check(job: Job) -> None:
    """Compare every form and write with fp64, then to the bit with itself."""
    # On a CPU there is one form, which has no name.
    names = job.chosen(forms.REASONS) if job.device == "cuda" else ["stepwise"]
    dtypes = LIMITS if job.device == "cuda" else [torch.float32]
    for form in names:
        with only(form):
            for kind, dtype in itertools.product(WRITES, dtypes):
                row = {"what": "fp64", "form": form, "write": kind, "dtype": str(dtype)}
                job.attempt(row, partial(compared, form, kind, dtype, job.device))
            for kind in WRITES:
                row = {"what": "bits", "form": form, "write": kind}
                job.attempt(row, partial(to_the_bit, kind, job.device))


@contextmanager
def only(form: str) -> Iterator[None]:
    """Let every call run in one form."""
    before, name = dict(forms.REASONS), form.partition(",")[0]
    try:
        forms.REASONS.clear()
        forms.REASONS[name] = before[name]
        cluster_config.AHEAD = form != NOT_AHEAD
        forget()
        yield
    finally:
        forms.REASONS.clear()
        forms.REASONS.update(before)
        cluster_config.AHEAD = True
        forget()


def forget() -> None:
    """Let the engine choose anew how calls run."""
    kernels._chosen.cache_clear()
    cluster_config.choose.cache_clear()


def against(form: str, kind: Write, size: Size, dtype: torch.dtype, device: str) -> str | None:
    """Return what speaks against a form for a call."""
    number = "bf16" if dtype == torch.bfloat16 else "fp32"
    here = machine(0 if device == "cuda" else None)
    reason = forms.REASONS[form.partition(",")[0]]
    return reason(forms.Shape(kind, number, size[0], size[3], size[2], *here))


def compared(form: str, kind: Write, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Return the largest relative L2 error of outputs and gradients, by shape."""
    errors, worst = {}, 0.0
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        said = against(form, kind, shape, dtype, device)
        if said is not None:
            errors[name] = f"not run: {said}"
            continue
        narrow = leaves_of(kind, shape, dtype, device)
        wide = {n: leaf.detach().double().requires_grad_() for n, leaf in narrow.items()}
        with poisoned():
            found = all_of(kind, narrow, device, dtype)
        exact = all_of(kind, wide, "reference", dtype)
        by_name = {n: distance(found[n], exact[n]) for n in exact}
        largest = max(by_name, key=lambda n: by_name[n])
        errors[name] = f"{by_name[largest]:.1e} of {largest}"
        worst = max(worst, by_name[largest])
    return {"errors": errors, "worst": worst, "passed": worst <= LIMITS[dtype]}


def leaves_of(kind: Write, shape: Size, dtype: torch.dtype, device: str) -> Leaves:
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


def to_the_bit(kind: Write, device: str) -> dict[str, Any]:
    """Compare a call with its repeat, with one on another stream and with a replayed graph."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    leaves = leaves_of(kind, (32, 10, 8, 768), dtype, device)
    call = partial(all_of, kind, backend=device, io=dtype)
    first = call(leaves)
    same = {"repeat": equal(first, call(leaves))}
    if device == "cuda":
        same["stream"] = equal(first, on_late_stream(call, leaves))
        same["graph"] = equal(first, replayed_late(call, leaves))
    return {"same": same, "passed": all(same.values())}


def time(job: Job) -> None:
    """Time every write, size and form, and E1 of the same widths."""
    names = job.chosen(forms.REASONS) + [NOT_AHEAD] * job.settings["both"]
    graphs: dict[tuple[str, str, Size, str], tuple[torch.cuda.CUDAGraph, Any]] = {}
    for shape, form in itertools.product(TIMED, names):
        for kind in WRITES:
            row = {"what": "recording", "form": form, "write": kind, "shape": shape}
            if said := against(form, kind, shape, torch.bfloat16, "cuda"):
                job.report(row | {"not run": said})
                continue
            with only(form):
                made = job.made(row, partial(passes, kind, shape)) or {}
            graphs |= {(form, kind, shape, name): one for name, one in made.items()}
    for width in sorted({shape[3] for shape in TIMED}):
        for name, one in of_e1(width).items():
            graphs["E1", "", (32, 512, 0, width), name] = one
    calls = {key: graph.replay for key, (graph, _) in graphs.items()}
    for key, rounds in interleaved(calls, ROUNDS, warmup=WARMUP).items():
        row = dict(zip(("form", "write", "shape", "pass"), key, strict=True))
        job.report(row | spread(rounds, key[2][1]))


def passes(kind: Write, shape: Size) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return both passes as graphs; "backward" has the large products, too."""
    leaves = leaves_of(kind, shape, torch.bfloat16, "cuda")
    plain = {name: leaf.detach() for name, leaf in leaves.items()}
    matrix = torch.cat([plain[name] for name in ("W_h", "W_r") if name in plain])
    read = (plain["input"], matrix, plain["tape"], plain["state"])
    call = Call(kind, "cuda", True, *read, None)
    results = kernels.forward(call)
    saved = save(call, results)._replace(dy_bti=torch.randn_like(results.y_bti))
    return {
        "forward": recorded(lambda: kernels.forward(call)),
        "backward": recorded(lambda: kernels.backward(saved)),
    }


def of_e1(width: int) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return both passes of E1's recurrence as graphs, in the form that the dense engine takes."""
    x = torch.randn(32, 512, width, device="cuda").bfloat16()
    matrix = torch.randn(width, width, device="cuda") / width**0.5
    first = torch.zeros(1, 32, width, device="cuda")
    call = dense_passes.Call("tanh", "cuda", True, [x], [matrix], [], first, None)
    saved = dense_passes.save(call, dense.forward(call))._replace(dy_bti=x)
    return {
        "forward": recorded(lambda: dense.forward(call)),
        "backward": recorded(lambda: dense.backward(saved)),
    }


CHECK = Check(
    {"check": check, "time": time},
    names=lambda: forms.REASONS,
    settings={"both": False},
    on_cpu=("check",),
)
