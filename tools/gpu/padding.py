"""Products filled up with zeros beside plain ones: numbers, times of products, and of whole steps.

    python tools/gpu/run.py padding [products] [steps] [gradients] [--only mamba2] [rounds=3]

``products`` compares the three products of linear maps with sizes that are no multiples of 8 to
fp64 and times them together: forward, the gradient of the input, that of the weight; ``split`` is
how ``mamba2``, ``mamba3`` and E88 use them, whose gradient has the padded width already. ``steps``
times training steps of whole models, replayed, both ways in turn. ``gradients`` compares loss and
gradients of two layers with and without zeros to the same layers in fp64, eager, recomputed in the
backward pass, and replayed as a CUDA graph; ``--only kda,deltaproduct`` tries these, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.config.compose import compose_config
from elman.kernels.packages import importable
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.ops.common import padding
from elman.ops.linear import linear, padded_linear
from tools.gpu.instruments import distance, furthest, interleaved, recorded
from tools.gpu.job import Check, Job, Row
from tools.gpu.peer_speed import Training

MODELS = ("mamba2", "mamba3")
WIDE = (*MODELS, "e88d_h20")
"""Models whose first projection is padded, and split into parts."""
NARROW = ("kda", "deltaproduct")
"""Models with padded projections of a few columns, one for each head."""
SIZES = {
    "mamba2": (3868, 896),
    "mamba3": (3956, 896),
    "e88d_h20": (1940, 1536),
    "decay of 12 heads": (12, 768),
    "low rank": (768, 170),
}
"""By name: columns of the output and of the input."""
ROWS = {"cuda": (32, 512), "cpu": (2, 40)}
WARMUP = 3


@contextmanager
def plain() -> Iterator[None]:
    """Let no product be padded."""
    before, padding.DEVICE = padding.DEVICE, "none"
    try:
        yield
    finally:
        padding.DEVICE = before


# ------------------------------------------------------------------------------------- products


def products(job: Job) -> None:
    """Compare and time single linear maps."""
    for name, (outputs, inputs) in SIZES.items():
        row = {"map": name, "outputs": outputs, "inputs": inputs}
        job.attempt(row, partial(one_map, job, outputs, inputs))


def one_map(job: Job, outputs: int, inputs: int) -> Row:
    """Return errors and milliseconds of a map's output and gradients, both ways."""
    to: dict[str, Any] = {"device": job.device, "dtype": torch.bfloat16}
    torch.manual_seed(0)
    x, dy = (torch.randn(*ROWS[job.device], n, **to) for n in (inputs, outputs))
    weight = torch.randn(outputs, inputs, **to) / inputs**0.5
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def run() -> list[Tensor]:
        y = linear(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    padded = run()
    with plain():
        unpadded = run()
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact_y = functional.linear(*wide)
    exact = [exact_y.detach(), *torch.autograd.grad(exact_y, wide, dy.double())]
    errors = {"padded": furthest(padded, exact), "plain": furthest(unpadded, exact)}
    found: Row = {
        "errors": errors,
        "between": furthest(padded, [one.double() for one in unpadded]),
        "passed": errors["padded"] <= 1.1 * errors["plain"] + 1e-6,
    }
    if job.device == "cuda":
        wide_dy = functional.pad(dy, (0, padding.fill_of(outputs)))

        def split() -> list[Tensor]:
            """Compute what a layer does whose projection is split: zeros are a piece of it."""
            y = padded_linear(*leaves)
            return [y.detach(), *torch.autograd.grad(y, leaves, wide_dy)]

        with plain():
            ways = {"plain": recorded(run, warmup=WARMUP)[0].replay}
        ways["padded"] = recorded(run, warmup=WARMUP)[0].replay
        ways["split"] = recorded(split, warmup=WARMUP)[0].replay
        for way, rounds in interleaved(ways, job.settings["rounds"], repeats=20).items():
            found[f"{way}_ms"] = round(1e3 * statistics.median(rounds), 4)
    return found


# ------------------------------------------------------------------------------------ gradients


def gradients(job: Job) -> None:
    """Compare the gradients of small models with those of the same models in fp64."""
    for name in job.chosen((*WIDE, *NARROW) if job.only else WIDE):
        job.attempt({"model": name}, partial(one_model, job, name))


def one_model(job: Job, name: str) -> Row:
    """Return the errors of loss and gradients: of a model without zeros, and of three ways with."""
    backend = "auto" if job.device == "cuda" else "reference"
    model, exact = small(job, name, backend), small(job, name, "reference").double()
    exact.load_state_dict(model.state_dict())
    size = (4, 129) if job.device == "cuda" else (2, 41)
    tokens = torch.randint(256, size, device=job.device, dtype=torch.uint8)
    right = passes(exact, tokens, enabled=False)
    if job.device == "cuda" and importable("triton"):
        from elman.kernels.triton_ahead import compile_ahead

        def once() -> None:
            passes(model, tokens)

        compile_ahead(once)
    # The second pass casts and fills up all weights at once.
    with plain():
        unpadded = [passes(model, tokens) for _ in range(2)][-1]
    ways = {"padded": [passes(model, tokens) for _ in range(2)][-1]}
    model.activation_checkpointing = True
    ways["recomputed"] = passes(model, tokens)
    model.activation_checkpointing = False
    if job.device == "cuda":
        ways["replayed"] = replayed(model, tokens)
    plain_errors = errors_of(unpadded, right)
    found: Row = {"plain": max(plain_errors), "passed": True}
    for way, results in ways.items():
        errors = errors_of(results, right)
        found[way] = max(errors)
        found[f"{way} from plain"] = max(errors_of(results, unpadded))
        # Two kernels round to bf16 differently; tensor by tensor the errors are of one size.
        pairs = zip(errors, plain_errors, strict=True)
        found["passed"] &= all(error <= 2 * plain_error + 1e-2 for error, plain_error in pairs)
    return found


def errors_of(results: Sequence[Tensor], right: Sequence[Tensor]) -> list[float]:
    """Return the relative L2 distance of each tensor."""
    return [distance(one, other) for one, other in zip(results, right, strict=True)]


def small(job: Job, name: str, backend: str) -> LanguageModel:
    """Return two layers of a model."""
    config = compose_config([f"model={name}", "model.depth=2"]).model
    config = config.model_copy(update={"expected_params": None})
    torch.manual_seed(0)
    return build_model(config, backend=backend, device=job.device, allow_slow=True)


def passes(model: LanguageModel, tokens: Tensor, enabled: bool = True) -> list[Tensor]:
    """Return the loss of a model and the gradients of its parameters."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=enabled):
        loss, _ = model.loss(tokens)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, learned)]


def replayed(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    """Return the same from a CUDA graph."""
    call = partial(passes, model, tokens)
    graph, results = recorded(call, warmup=WARMUP, stream=torch.cuda.Stream())
    graph.replay()
    torch.cuda.synchronize()
    return list(results)


# ---------------------------------------------------------------------------------------- steps


def steps(job: Job) -> None:
    """Time training steps of whole models, both ways in turn."""
    for name in job.chosen(MODELS):
        job.attempt({"model": name}, partial(one_step, job, name))


def one_step(job: Job, name: str) -> Row:
    """Return tokens per second of a model with and without zeros, replayed as CUDA graphs."""
    config = compose_config([f"model={name}"]).model
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    torch.manual_seed(0)
    model = build_model(config, backend="auto", device="cuda")
    training = Training(model, job.settings["batch_size"], job.settings["chunk_size"])
    training.tune()
    with plain():
        unpadded, _ = recorded(training.step, warmup=WARMUP, stream=stream)
    padded, _ = recorded(training.step, warmup=WARMUP, stream=stream)
    ways = {"plain": unpadded.replay, "padded": padded.replay}
    found: Row = {"params": model.num_params()}
    timed = interleaved(ways, job.settings["rounds"], repeats=job.settings["steps_a_round"])
    for way, rounds in timed.items():
        rates = [round(training.predicted / took) for took in rounds]
        found |= {f"{way}_tok_s": statistics.median(rates), f"{way}_rounds": rates}
    found["padded_over_plain"] = round(found["padded_tok_s"] / found["plain_tok_s"], 3)
    return found


CHECK = Check(
    {"products": products, "steps": steps, "gradients": gradients},
    names=lambda: (*WIDE, *NARROW),
    settings={"rounds": 3, "steps_a_round": 4, "batch_size": 32, "chunk_size": 512},
    on_cpu=("products", "gradients"),
)
