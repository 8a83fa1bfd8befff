"""Two GPUs of one process: the second must give the first one's results, bit for bit.

A small model of every cell with CUDA kernels runs one training pass on each GPU: with either GPU as
the current one, from one thread per GPU at the same time, and as a CUDA graph on the second GPU.

    python tools/gpu/run.py devices [--only e88]

``--only`` chooses cells.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch
from torch import Tensor

from elman.config.catalog import catalog
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.sections.model import ModelConfig
from tools.gpu.instruments import equal, finite, recorded
from tools.gpu.job import Check, Job, Row

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
BATCH, STEPS = 4, 129
Pass = Callable[[], list[Tensor]]


def run(job: Job) -> None:
    """Check every cell."""
    for name in job.chosen(cells()):
        job.attempt({"cell": name}, partial(check, name))


def cells() -> list[str]:
    """Return the cells that have CUDA kernels."""
    return sorted(name for name, cell in registry.cells().items() if "cuda" in cell.backends)


def check(name: str) -> Row:
    """Compare passes of a cell's small model on two GPUs."""
    models = {device: small_model(name, device) for device in (FIRST, SECOND)}
    models[SECOND].load_state_dict(models[FIRST].state_dict())

    def on(device: torch.device, current: torch.device | None = None) -> Pass:
        return lambda: one_pass(models[device], device, current or device)

    wanted = on(FIRST)()
    with ThreadPoolExecutor(2) as threads:
        at_once = [threads.submit(on(device)) for device in (FIRST, SECOND)]
    ways: dict[str, Pass] = {
        "second": on(SECOND),
        "second, first current": on(SECOND, FIRST),
        "first, second current": on(FIRST, SECOND),
        "first, both at once": at_once[0].result,
        "second, both at once": at_once[1].result,
        "second, replayed": lambda: replayed(models[SECOND]),
    }
    same = {way: agrees(one(), wanted) for way, one in ways.items()}
    return {"passed": all(same.values()), **same}


def small_model(name: str, device: torch.device) -> LanguageModel:
    """Return two small layers of a cell."""
    torch.manual_seed(0)
    return build_model(model_of(name), backend="cuda", device=device)


def model_of(name: str) -> ModelConfig:
    """Return the newest model of a cell whose options have kernels, made small."""
    cell = registry.cell(name)
    fitting = [
        one
        for one in listed_models()
        if one.cell == name and "cuda" in cell.under(one.options).backends
    ]
    return fitting[-1].model_copy(update={"dim": 256, "depth": 2, "expected_params": None})


@cache
def listed_models() -> list[ModelConfig]:
    """Return the configurations of all models."""
    return [one.config for one in catalog() if one.config is not None]


def one_pass(model: LanguageModel, device: torch.device, current: torch.device) -> list[Tensor]:
    """Return the loss and all gradients of a pass while ``current`` is the current GPU."""
    tokens = tokens_on(device)
    with torch.cuda.device(current):
        return [one.cpu() for one in computed(model, tokens)]


def tokens_on(device: torch.device) -> Tensor:
    """Return bytes, the same on every device."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(256, (BATCH, STEPS + 1), generator=generator, dtype=torch.uint8)
    return drawn.to(device)


def computed(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    """Return the loss and all gradients of a pass."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with torch.autocast("cuda", torch.bfloat16):
        loss, _ = model.loss(tokens)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def replayed(model: LanguageModel) -> list[Tensor]:
    """Return the same of a CUDA graph on the second GPU."""
    tokens = tokens_on(SECOND)
    with torch.cuda.device(SECOND):
        graph, results = recorded(partial(computed, model, tokens))
        graph.replay()
        return [one.cpu() for one in results]


def agrees(results: list[Tensor], expected: list[Tensor]) -> bool:
    """Return whether all tensors agree to the bit and are finite."""
    return equal(results, expected) and finite(results)


CHECK = Check({"cells": run}, names=cells, gpus=2, variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
