"""The schedule-free update against its library in fp64; times beside PyTorch's and AdamW.

check   20 steps of weights of odd sizes, on and off a boundary of 16 bytes, with a blocked step of
        NaN gradients among them, against the library ``schedulefree`` in fp64, and how far
        PyTorch's operations are from it; a repeat, another stream and a replayed CUDA graph to the
        bit
time    clipping and update, and the update alone, for the weights of whole models, replayed as CUDA
        graphs, all candidates in turn in every round; beside them torch's fused AdamW. The floor is
        the time to move 28 bytes for each weight at the bandwidth of a copy.

    python tools/gpu/run.py optim [check] [time] [--only e88_h32n32_384x4]

``--only`` chooses models to time. On a CPU, PyTorch's operations are checked.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn

from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.optim.schedule_free import MaskedScheduleFree
from tools.gpu.instruments import (
    copy_bytes_per_us,
    distance,
    equal,
    interleaved,
    on_side_stream,
    recorded,
)
from tools.gpu.job import Check, Job

MODELS = ("e88f_h32n16_2432x20", "e88_h32n32_384x4")
SIZES = (
    ((1,), (3,), (127, 33), (2048,), (2049,), (700, 301)),
    ((5,), (4096,), (37,), (1, 1), *(((9,),) * 90)),
)
SETTINGS: dict[str, Any] = {"lr": 3e-2, "betas": (0.9, 0.95), "eps": 1e-8, "warmup_steps": 7}
STEPS, BLOCKED_AT, LIMIT = 20, 9, 1e-5
REPLAYS, ROUNDS = 10, 7
BYTES = 28  # of a weight: four numbers are read and three written


# ---- checks


def drawn(shift: int, dtype: torch.dtype, device: str) -> list[list[nn.Parameter]]:
    """Return two groups of weights at random, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(1)

    def weight(shape: tuple[int, ...]) -> nn.Parameter:
        count = torch.Size(shape).numel()
        flat = torch.empty(count + shift, dtype=dtype, device=device)[shift:]
        flat.copy_(torch.randn(count, generator=generator))
        return nn.Parameter(flat.view(shape))

    return [[weight(shape) for shape in group] for group in SIZES]


def fill(weights: Sequence[nn.Parameter], step: int, *, anew: bool = True) -> None:
    """Give weights the gradients of a step, in new tensors or in those that they have."""
    generator = torch.Generator().manual_seed(100 + step)
    for weight in weights:
        gradient = torch.randn(weight.shape, generator=generator) * 10.0 ** (step % 5 - 3)
        if step == BLOCKED_AT:
            gradient.fill_(torch.nan)
        if anew or weight.grad is None:
            shift = weight.storage_offset()
            room = torch.empty(weight.numel() + shift, dtype=weight.dtype, device=weight.device)
            weight.grad = room[shift:].view(weight.shape)
        weight.grad.copy_(gradient)


class Run:
    """An optimizer and its weights, which takes clipped steps.

    Args:
        backend: That of the update; None is the library in fp64.
        shift: Numbers from a boundary to each weight.
        limit: Largest norm of the gradients.
        device: Where the weights are.
    """

    def __init__(self, backend: str | None, shift: int, limit: float, device: str) -> None:
        dtype = torch.float64 if backend is None else torch.float32
        groups = drawn(shift, dtype, device)
        self.weights = [weight for group in groups for weight in group]
        given = [{"params": g, "weight_decay": d} for g, d in zip(groups, (0.1, 0.0), strict=True)]
        self._limit = limit
        self._blocked = torch.zeros((), dtype=torch.bool, device=device)
        self._optimizer: Any = (
            AdamWScheduleFree(given, foreach=False, **SETTINGS)
            if backend is None
            else MaskedScheduleFree(given, backend=backend, **SETTINGS)
        )
        self._optimizer.train()

    def update(self) -> None:
        """Clip and update with the gradients that are there."""
        if isinstance(self._optimizer, MaskedScheduleFree):
            self._optimizer.clip(self.weights, self._limit)
            self._optimizer.masked_step(self._blocked)
        else:
            nn.utils.clip_grad_norm_(self.weights, self._limit)
            self._optimizer.step()

    def steps(self, update: Callable[[], None] | None = None, *, anew: bool = True) -> bool:
        """Take all steps; return whether the blocked one left every bit as it was."""
        kept = True
        for step in range(STEPS):
            if step == BLOCKED_AT and not isinstance(self._optimizer, MaskedScheduleFree):
                continue
            fill(self.weights, step, anew=anew)
            self._blocked.fill_(step == BLOCKED_AT)
            before = self.state() if step == BLOCKED_AT else []
            (update or self.update)()
            kept &= equal(before, self.state() if before else [])
        return kept

    def replayed(self) -> bool:
        """Take all steps with replays of one graph."""
        fill(self.weights, 0)
        self._blocked.fill_(True)
        graph, _ = recorded(self.update)
        return self.steps(graph.replay, anew=False)

    def state(self) -> list[Tensor]:
        """Return copies of weights and moments."""
        moments = [m for w in self.weights for m in self._optimizer.state[w].values()]
        return [x.detach().clone() for x in (*self.weights, *moments)]


def compared(shift: int, limit: float, device: str) -> dict[str, Any]:
    """Compare one case with fp64, and with itself."""
    exact = Run(None, 0, limit, device)
    exact.steps()
    backends = ("cuda", "reference") if device == "cuda" else ("reference",)
    runs = {backend: Run(backend, shift, limit, device) for backend in backends}
    kept = {backend: run.steps() for backend, run in runs.items()}
    wanted = exact.state()
    line: dict[str, Any] = {}
    for backend, run in runs.items():
        pairs = zip(run.state(), wanted, strict=True)
        line[f"{backend}_error"] = max(distance(one, right) for one, right in pairs)
    line["blocked_kept"] = kept
    line["passed"] = all(kept.values()) and line[f"{backends[0]}_error"] < LIMIT
    if device == "cuda":
        line["same_bits"] = same_bits(runs["cuda"].state(), shift, limit)
        line["passed"] &= all(line["same_bits"].values())
    return line


def same_bits(wanted: list[Tensor], shift: int, limit: float) -> dict[str, bool]:
    """Return whether other ways to take the same steps end at the same bits."""
    made = {name: Run("cuda", shift, limit, "cuda") for name in ("again", "stream", "replayed")}
    made["again"].steps()
    on_side_stream(made["stream"].steps)
    kept = made["replayed"].replayed()
    found = {name: equal(run.state(), wanted) for name, run in made.items()}
    return found | {"replayed, blocked": kept}


# ---- times


def weights_of(model: str) -> nn.Module:
    """Return a module with the weights of a model, and gradients, on the GPU."""
    module, config = nn.Module(), compose_config([f"model={model}"]).model
    for n, weight in enumerate(build_model(config, device="meta").parameters()):
        made = nn.Parameter(torch.randn(weight.shape, device="cuda").mul_(0.02))
        made.grad = torch.randn_like(made).mul_(1e-4)
        if getattr(weight, "no_weight_decay", False):
            made.no_weight_decay = True  # type: ignore[attr-defined]
        module.register_parameter(f"weight{n}", made)
    return module


def candidates(model: str) -> dict[str, Callable[[], Any]]:
    """Return what is timed: clipping and update, and the update alone."""
    found: dict[str, Callable[[], Any]] = {}
    config = compose_config(["optim=schedulefree"]).optim
    blocked = torch.zeros((), dtype=torch.bool, device="cuda")
    for name, backend in (("kernel", "cuda"), ("operations", "reference")):
        module = weights_of(model)
        optimizer = TrainingOptimizer(config, module, backend)

        def both(optimizer: TrainingOptimizer = optimizer, module: nn.Module = module) -> None:
            optimizer.clip(module.parameters(), 1.0)
            optimizer.step(blocked)

        found[f"{name}, clipped"] = both
        found[name] = partial(optimizer.step, blocked)
    module = weights_of(model)
    adamw = torch.optim.AdamW(module.parameters(), 3e-4, fused=True, capturable=True)

    def clipped() -> None:
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        adamw.step()

    return found | {"adamw, clipped": clipped, "adamw": adamw.step}


def times(model: str) -> list[dict[str, Any]]:
    """Time every candidate, one after the other in every round."""
    graphs = {name: recorded(call)[0] for name, call in candidates(model).items()}
    calls = {name: graph.replay for name, graph in graphs.items()}
    numbers = sum(weight.numel() for weight in weights_of(model).parameters())
    floor = BYTES * numbers / copy_bytes_per_us()
    lines = []
    for name, rounds in interleaved(calls, ROUNDS, repeats=REPLAYS).items():
        us = 1e6 * statistics.median(rounds)
        line = {"model": model, "weights": numbers, "candidate": name}
        line |= {"us": round(us, 1), "fastest_us": round(1e6 * min(rounds), 1)}
        lines.append(line | {"floor_us": round(floor, 1), "over_floor": round(us / floor, 2)})
    return lines


def check(job: Job) -> None:
    """Compare weights on and off a boundary, clipped and not."""
    for shift, limit in ((0, 1.0), (1, 1.0), (0, float("inf")), (2, 1e9)):
        row = {"shift": shift, "limit": str(limit)}
        job.attempt(row, partial(compared, shift, limit, job.device))


def time(job: Job) -> None:
    """Time all candidates."""
    job.report({"what": "copy", "tb_s": round(copy_bytes_per_us() / 1e6, 3)})
    for model in job.chosen(MODELS):
        for line in times(model):
            job.report(line)


CHECK = Check({"check": check, "time": time}, names=lambda: MODELS, on_cpu=("check",))
