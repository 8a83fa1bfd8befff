"""The loss of a large vocabulary in chunks beside that from whole logits: numbers, memory, times.

    python tools/gpu/run.py vocabulary [numbers] [sizes] [vocabulary=50281] [dim=1664] [rows=32]
        [steps=512]

``numbers`` compares loss and gradients of both ways with fp64, under autocast; each runs twice with
the same bits, and a CUDA graph of the chunks has the same bits, too. ``sizes`` gives the peak of
memory that each way allocates beside its inputs, forward and backward, and their times in turn. On
a CPU the numbers are of small sizes, and the peak is that of a process of its own, without times:

    python tools/gpu/run.py vocabulary sizes --device cpu rows=4 dim=256
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.cross_entropy import chunk_of, mean_in_chunks
from elman.ops.linear import linear
from tools.gpu.instruments import distance, equal, interleaved, replayed
from tools.gpu.job import Check, Job, Row

_SMALL = {"vocabulary": 1003, "dim": 40, "rows": 2, "steps": 37, "chunk": 16}
"""What is compared on a CPU."""
_FEW = {"rows": 4, "chunk": 640}
"""What is compared with fp64 on a GPU, besides the settings."""
WAYS = ("whole", "chunks")


class Case:
    """Hidden states, a head and targets, with the two ways from these to loss and gradients."""

    def __init__(self, device: str, vocabulary: int, dim: int, positions: int, chunk: int) -> None:
        torch.manual_seed(0)
        self.device, self.chunk = device, chunk
        self.x_nd = torch.randn(positions, dim, device=device).requires_grad_()
        self.weight_vd = (
            torch.empty(vocabulary, dim, device=device).normal_(0, 0.1).requires_grad_()
        )
        self.targets_n = torch.randint(vocabulary, (positions,), device=device)

    def loss(self, way: str) -> Tensor:
        """Return the mean loss."""
        if way == "chunks":
            return mean_in_chunks(self.x_nd, self.weight_vd, self.targets_n, self.chunk)
        wide = torch.promote_types(self.x_nd.dtype, torch.float32)
        logits_nv = linear(self.x_nd, self.weight_vd)
        return functional.cross_entropy(logits_nv.to(wide), self.targets_n)

    def results(self, way: str) -> list[Tensor]:
        """Return loss and gradients under autocast."""
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.loss(way)
        return [loss.detach(), *torch.autograd.grad(loss, [self.x_nd, self.weight_vd])]

    def exact(self) -> list[Tensor]:
        """Return loss and gradients in fp64."""
        leaves = [one.detach().double().requires_grad_() for one in (self.x_nd, self.weight_vd)]
        loss = functional.cross_entropy(functional.linear(*leaves), self.targets_n)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def numbers(job: Job) -> None:
    """Compare both ways with fp64, with themselves, and with a replay."""
    at = dict(job.settings) | (_FEW if job.device == "cuda" else _SMALL)
    made = partial(Case, job.device, at["vocabulary"], at["dim"], at["rows"] * at["steps"])
    job.attempt({**at}, lambda: _compared(made(at["chunk"])))


def _compared(case: Case) -> Row:
    exact, first = case.exact(), {way: case.results(way) for way in WAYS}
    found: Row = {}
    for way, results in first.items():
        found[way] = [distance(one, right) for one, right in zip(results, exact, strict=True)]
        found[f"{way} again"] = equal(case.results(way), results)
    found["hidden gradient has the same bits"] = torch.equal(first["whole"][1], first["chunks"][1])
    right = all(a <= 1.1 * b + 1e-6 for a, b in zip(found["chunks"], found["whole"], strict=True))
    found["passed"] = right and found["chunks again"]
    if case.device == "cuda":
        found["replayed"] = equal(replayed(partial(case.results, "chunks")), first["chunks"])
        found["passed"] &= found["replayed"]
    return found


def sizes(job: Job) -> None:
    """Report peak memory and milliseconds of both ways."""
    at = job.settings
    positions = at["rows"] * at["steps"]
    chunk = chunk_of(positions, at["vocabulary"]) or positions
    case = Case(job.device, at["vocabulary"], at["dim"], positions, chunk)
    for way in WAYS:
        job.measure({"way": way, "positions": positions, "chunk": chunk}, partial(_peak, case, way))
    if job.device == "cpu":
        return
    calls = {way: partial(case.results, way) for way in WAYS}
    job.measure({"dim": at["dim"], "vocabulary": at["vocabulary"]}, lambda: _times(calls, at))


def _peak(case: Case, way: str) -> Row:
    if case.device == "cpu":
        return {"peak_gb": round(_peak_of_a_fork(partial(case.results, way)) / 1e9, 3)}
    case.results(way)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    case.results(way)
    return {"peak_gb": round((torch.cuda.max_memory_allocated() - before) / 1e9, 3)}


def _peak_of_a_fork(call: Callable[[], Any]) -> int:
    """Return the bytes by which a call raises the peak of a process that has made nothing yet."""
    ours, theirs = multiprocessing.Pipe()

    def child() -> None:
        torch.set_num_threads(1)  # a fork has no threads of the pool
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        theirs.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    kib: int = ours.recv()
    process.join()
    return 1024 * kib


def _times(calls: dict[str, partial[list[Tensor]]], at: Mapping[str, Any]) -> Row:
    timed = interleaved(calls, at["rounds"], warmup=2)
    found: Row = {
        f"{way}_ms": round(1e3 * statistics.median(each), 2) for way, each in timed.items()
    }
    return found | {"chunks_over_whole": round(found["chunks_ms"] / found["whole_ms"], 3)}


CHECK = Check(
    {"numbers": numbers, "sizes": sizes},
    settings={"vocabulary": 50281, "dim": 1664, "rows": 32, "steps": 512, "rounds": 7},
    on_cpu=("numbers", "sizes"),
)
