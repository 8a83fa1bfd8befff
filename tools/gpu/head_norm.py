"""RMSNorm of each head's read and its gate: against fp64, to the bit, and times beside PyTorch's.

parity   heads of 8 to 1024 numbers, every dtype, with each gate and without, on and off a boundary
         of 16 bytes, against fp64; a repeat, a replayed CUDA graph and a side stream to the bit
time     replays of both passes at the sizes of models, the kernel and PyTorch in turn. The floor is
         the time to move the necessary bytes at the bandwidth of a copy.
arm      training steps of models with an output norm as CUDA graphs: by the kernel, by PyTorch, and
         the same model without its norm, all in turn

    python tools/gpu/run.py head_norm [parity] [time] [arm] [--only norm] [rounds=5]

Shape legend: b batch, t time, h heads, v width of a head, i = h v.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.ops.head_norm import cuda, op
from elman.ops.head_norm.cuda import MOST_WIDTH
from tools.gpu.instruments import (
    copy_bytes_per_us,
    equal,
    furthest,
    interleaved,
    on_side_stream,
    recorded,
    replayed,
)
from tools.gpu.job import Check, Job, Row
from tools.gpu.peer_speed import Training

ARMS = {
    "norm": "e88f_h32n16_norm_768x12",
    "all parts": "e88f_h32n16_gdn_608x12",
    "all parts but the gate": "e88f_h32n16_gdn_nogate_752x12",
}
"""Models that have an output norm."""
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 3e-6}
# Dtypes of reads, gate and output.
DTYPES = ((BF16, BF16, BF16), (FP16, FP16, FP16), (FP32, FP32, FP32), (BF16, BF16, FP32))
# Heads and their width; a step of the last has rows of all heads of a layer.
SIZES = ((32, 8), (32, 16), (5, 37), (12, 64), (3, 127), (4, 128), (1, 1024))
TIMED = ((32, 16), (16, 32), (4, 128), (1, 1024))
CALLS, WARMUP = 8, 3


def draw(
    steps: tuple[int, int], size: tuple[int, int], dtypes: tuple[torch.dtype, ...], shift: int = 0
) -> list[Tensor]:
    """Return reads, gain and a projection that ends in the gate, ``shift`` off a boundary."""
    generator = torch.Generator("cuda").manual_seed(1)
    heads, width = size

    def normal(*shape: int, dtype: torch.dtype) -> Tensor:
        numbers = int(torch.Size(shape).numel()) + shift
        flat = torch.randn(numbers, generator=generator, device="cuda").to(dtype)
        return flat[shift:].view(shape).requires_grad_()

    y_bthv = normal(*steps, heads, width, dtype=dtypes[0])
    projected = normal(*steps, 3 * heads * width + 32, dtype=dtypes[1])
    return [y_bthv, normal(width, dtype=FP32), projected]


def everything(leaves: list[Tensor], pull: Tensor, act: str, backend: str) -> list[Tensor]:
    """Return the output, in the dtype of its gradient, and all gradients."""
    y_bthv, gain_v, projected = leaves
    gate_bti = None if act == "none" else projected[..., -y_bthv[0, 0].numel() :]
    out = op.head_norm(y_bthv, gain_v, gate_bti, act, dtype=pull.dtype, backend=backend)
    used = leaves[:2] if gate_bti is None else leaves
    return [out.detach(), *torch.autograd.grad(out, used, pull)]


def pull_of(y_bthv: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gradient of the output; its quarters are exact in every dtype."""
    numbers = torch.arange(y_bthv.numel(), device=y_bthv.device).mul(7).remainder(23).sub(11)
    return numbers.div(4).view(y_bthv.shape).to(dtype)


def errors_of(size: tuple[int, int], dtypes: tuple[torch.dtype, ...], act: str, shift: int) -> Row:
    """Compare everything with fp64, and with itself: again, replayed, on a side stream."""
    leaves = draw((3, 2067), size, dtypes, shift)
    pull = pull_of(leaves[0], dtypes[2])
    run = partial(everything, leaves, pull, act, "cuda")
    found = run()
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = everything(wide, pull.double(), act, "reference")
    # The gate's factor is rounded to the dtype of the gate.
    least = LIMITS[FP32 if act == "none" else dtypes[1]]
    error = max(
        furthest([one], [right]) / max(least, LIMITS[one.dtype])
        for one, right in zip(found, exact, strict=True)
    )
    same = all(equal(found, other) for other in (run(), replayed(run), on_side_stream(run)))
    return {"error_over_limit": round(error, 3), "same_bits": same, "passed": error <= 1 and same}


def parity(job: Job) -> None:
    """Compare every size in every dtype."""
    cases = [(size, dtypes, "silu", 0) for size in SIZES for dtypes in DTYPES]
    cases += [(size, DTYPES[0], act, 0) for size in SIZES for act in ("none", "sigmoid")]
    cases += [(size, DTYPES[0], "silu", 1) for size in SIZES]
    for case in cases:
        job.attempt({"case": " ".join(map(str, case))}, partial(errors_of, *case))


# ------------------------------------------------------------------------------------- times


def times(job: Job) -> None:
    """Time both passes at the sizes of models, the kernel and PyTorch in turn."""
    bytes_per_us = copy_bytes_per_us()
    for size in TIMED:
        for act in ("silu", "none"):
            row = {"size": "x".join(map(str, size)), "act": act}
            job.measure(row, partial(one_size, job, size, act, bytes_per_us))


def one_size(job: Job, size: tuple[int, int], act: str, bytes_per_us: float) -> Row:
    """Return microseconds of forward and backward together, and those of their bytes."""
    leaves = draw((32, 512), size, DTYPES[0])
    # The gate is a tensor of its own: what joins the gradients of a projection is not timed.
    leaves[2] = leaves[2].detach()[..., -leaves[0][0, 0].numel() :].clone().requires_grad_()
    pull = pull_of(leaves[0], BF16)
    ways = {
        backend: recorded(
            partial(everything, leaves, pull, act, backend), calls=CALLS, warmup=WARMUP
        )[0].replay
        for backend in ("cuda", "reference")
    }
    # Reads twice, the output, both gradients; the gate twice, and its gradient.
    tensors = 5 if act == "none" else 8
    row: Row = {"floor_us": round(tensors * leaves[0].nbytes / bytes_per_us, 1)}
    for backend, rounds in interleaved(ways, job.settings["rounds"], warmup=1).items():
        row[f"{backend}_us"] = round(1e6 * statistics.median(rounds) / CALLS, 1)
    return row


# ----------------------------------------------------------------------------------- whole steps


def arms(job: Job) -> None:
    """Time training steps of every model, three ways in turn."""
    for name in job.chosen(ARMS):
        job.attempt({"arm": name, "model": ARMS[name]}, partial(one_arm, job, ARMS[name]))


def one_arm(job: Job, name: str) -> Row:
    """Return tokens per second by the kernel, by PyTorch, and without the norm."""
    torch.cuda.set_stream(stream := torch.cuda.Stream())
    ways = {"kernel": MOST_WIDTH, "pytorch": 0, "no_norm": MOST_WIDTH}
    replays: dict[str, Callable[[], None]] = {}
    predicted, row = 0, Row()
    for way, cuda.MOST_WIDTH in ways.items():
        override = f"model.use_output_norm={str(way != 'no_norm').lower()}"
        config = compose_config([f"model={name}", override]).model
        config = config.model_copy(update={"expected_params": None})
        torch.manual_seed(0)
        model = build_model(config, backend="auto", device="cuda")
        training = Training(model, job.settings["batch_size"], job.settings["chunk_size"])
        training.tune()
        graph, _ = recorded(training.step, warmup=WARMUP, stream=stream)
        replays[way], predicted = graph.replay, training.predicted
    timed = interleaved(replays, job.settings["rounds"], repeats=job.settings["steps_a_round"])
    for way, rounds in timed.items():
        row[f"{way}_tok_s"] = round(statistics.median(predicted / took for took in rounds))
    for one, other in (("kernel", "no_norm"), ("pytorch", "no_norm"), ("kernel", "pytorch")):
        row[f"{one}_over_{other}"] = round(row[f"{one}_tok_s"] / row[f"{other}_tok_s"], 3)
    return row


CHECK = Check(
    {"parity": parity, "time": times, "arm": arms},
    names=lambda: ARMS,
    settings={"rounds": 5, "steps_a_round": 4, "batch_size": 32, "chunk_size": 512},
)
