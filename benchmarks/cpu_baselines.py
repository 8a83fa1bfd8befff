"""Measures the packaged baselines as plain PyTorch on a CPU: errors, times, bytes for backward.

    python benchmarks/cpu_baselines.py [parity] [chunks] [layers] [memory] [--rounds 7] [--busy]

Prints tables in Markdown. Parity: relative L2 error of outputs, final state and all gradients, of
fp32 chunks against the step-by-step recurrence in fp64. Chunks: forward, and forward with backward,
by chunk length. Layers: whole layers next to the step-by-step loop. Times are in milliseconds,
medians of interleaved rounds, with the fastest in brackets. With --busy they are CPU time of one
thread, which is still meaningful on a machine that others use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.models.cells.common.mixer import Mixer
from elman.models.cells.gated_delta.fla_gdn_layer import GatedDeltaNet
from elman.models.cells.ssd.mamba2_layer import Mamba2
from elman.ops.gated_delta import chunked as delta_chunked
from elman.ops.gated_delta import reference as delta_reference
from elman.ops.ssd import chunked as ssd_chunked
from elman.ops.ssd import reference as ssd_reference

BATCH, STEPS = 8, 256
CHUNKS = (16, 32, 64, 128, 256)
Run = Callable[..., tuple[Tensor, Tensor]]
Timings = dict[Any, list[float]]


def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    if arguments.busy:
        torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    parts = {"parity": parity, "chunks": chunks, "layers": layers, "memory": memory}
    for name in arguments.parts or parts:
        parts[name](arguments.rounds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The baselines' plain PyTorch on a CPU.")
    parser.add_argument("parts", nargs="*", choices=["parity", "chunks", "layers", "memory"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="CPU time of one thread")
    return parser.parse_args()


def ssd_inputs(batch: int, steps: int, heads: int, rows: int, columns: int) -> list[Tensor]:
    """Return x, log decays as at initialization, B, C and a first state."""
    step = functional.softplus(torch.randn(batch, steps, heads) - 4)
    rates = 1 + 15 * torch.rand(heads)
    return [
        torch.randn(batch, steps, heads, rows) * step.unsqueeze(-1),
        -step * rates,
        torch.randn(batch, steps, 1, columns),
        torch.randn(batch, steps, 1, columns),
        torch.randn(batch, heads, rows, columns),
    ]


def delta_inputs(batch: int, steps: int, heads: int, keys: int, values: int) -> list[Tensor]:
    """Return q, k, v, log decays as at initialization, strengths and a first state."""
    step = functional.softplus(torch.randn(batch, steps, heads) - 4)
    q, k = functional.normalize(torch.randn(2, batch, steps, heads, keys), dim=-1)
    return [
        q * keys**-0.5,
        k,
        torch.randn(batch, steps, heads, values),
        -step * 16 * torch.rand(heads),
        torch.rand(batch, steps, heads),
        torch.randn(batch, heads, values, keys),
    ]


# ---------------------------------------------------------------------------------------- parity

NAMES = {
    "ssd": ("y", "S'", "dx", "d log c", "dB", "dC", "dS"),
    "delta": ("y", "S'", "dq", "dk", "dv", "d log c", "dw", "dS"),
}


def parity(rounds: int) -> None:
    for steps in (1, 64, 257, 1000):
        given = ssd_inputs(2, steps, 4, 64, 128)
        run = with_chunk(ssd_chunked.ssd, ssd_chunked.CHUNK)
        print_errors(f"mamba2, T={steps}", NAMES["ssd"], run, ssd_reference.ssd, given)
    for steps in (1, 64, 257, 1000):
        given = delta_inputs(2, steps, 4, 128, 256)
        run = with_chunk(delta_chunked.gated_delta_rule, delta_chunked.CHUNK)
        print_errors(
            f"fla-gdn, T={steps}", NAMES["delta"], run, delta_reference.gated_delta_rule, given
        )


def print_errors(
    title: str, names: Sequence[str], run: Run, reference: Run, given: list[Tensor]
) -> None:
    exact = everything(reference, [one.double() for one in given])
    found = everything(run, given)
    errors = [
        f"{name} {((got - wanted).norm() / wanted.norm()).item():.1e}"
        for name, got, wanted in zip(names, found, exact, strict=True)
    ]
    print(f"| {title} | {' | '.join(errors)} |", flush=True)


def everything(run: Run, given: Sequence[Tensor]) -> list[Tensor]:
    """Return outputs, final state and the gradients of all inputs under fixed weights."""
    given = [one.detach().requires_grad_() for one in given]
    outputs = run(*given)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(one.shape, generator=generator).to(one.dtype) for one in outputs]
    gradients = torch.autograd.grad(outputs, given, weights)
    return [one.detach() for one in (*outputs, *gradients)]


def with_chunk(run: Run, chunk: int) -> Run:
    return lambda *given: run(*given, chunk)


# ---------------------------------------------------------------------------------------- speed


def chunks(rounds: int) -> None:
    shapes: dict[str, tuple[Run, list[Tensor]]] = {}
    for heads, rows, columns in ((8, 64, 64), (16, 64, 128), (28, 64, 128)):
        given = ssd_inputs(BATCH, STEPS, heads, rows, columns)
        shapes[f"mamba2, {heads} heads of {rows} x {columns}"] = (ssd_chunked.ssd, given)
    for heads, keys, values in ((8, 64, 64), (16, 64, 64), (8, 128, 128), (6, 128, 256)):
        given = delta_inputs(BATCH, STEPS, heads, keys, values)
        name = f"fla-gdn, {heads} heads of {values} x {keys}"
        shapes[name] = (delta_chunked.gated_delta_rule, given)
    print(f"forward, forward and backward in ms by chunk {CHUNKS}; B={BATCH}, T={STEPS}")
    for name, (run, given) in shapes.items():
        works = {chunk: with_chunk(run, chunk) for chunk in CHUNKS}
        report(name, *timed_ops(works, given, rounds))


def timed_ops(works: dict[Any, Run], given: list[Tensor], rounds: int) -> tuple[Timings, Timings]:
    with torch.no_grad():
        forward = timed({key: partial(run, *given) for key, run in works.items()}, rounds)
    both = timed({key: partial(everything, run, given) for key, run in works.items()}, rounds)
    return forward, both


def timed(works: dict[Any, Callable[[], object]], rounds: int) -> Timings:
    """Return milliseconds of each, in interleaved rounds after one of warm-up."""
    found: Timings = {key: [] for key in works}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for number in range(rounds + 1):
        for key, work in works.items():
            start = clock()
            work()
            if number:
                found[key].append(1e3 * (clock() - start))
    return found


def report(name: str, forward: Timings, both: Timings) -> None:
    cells = [f"{key}: {shown(forward[key])}, {shown(both[key])}" for key in forward]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def shown(rounds: list[float]) -> str:
    return f"{statistics.median(rounds):.0f} ({min(rounds):.0f})"


def layers(rounds: int) -> None:
    made: dict[str, Mixer] = {
        "mamba2 896": Mamba2(896),
        "fla-gdn 768 e2": GatedDeltaNet(768),
        "fla-gdn 768 e1": GatedDeltaNet(768, expansion=1.0),
    }
    print(f"forward, forward and backward in ms; B={BATCH}, T={STEPS}")
    inputs = {name: torch.randn(BATCH, STEPS, layer.dim) for name, layer in made.items()}
    with torch.no_grad():
        forward = timed({n: partial(layer, inputs[n]) for n, layer in made.items()}, rounds)
    both = timed({n: partial(step, layer, inputs[n]) for n, layer in made.items()}, rounds)
    report("whole layers", forward, both)
    ssd: dict[Any, Run] = {
        "chunked": with_chunk(ssd_chunked.ssd, ssd_chunked.CHUNK),
        "loop": ssd_reference.ssd,
    }
    delta: dict[Any, Run] = {
        "chunked": delta_chunked.gated_delta_rule,
        "loop": delta_reference.gated_delta_rule,
    }
    given = ssd_inputs(BATCH, STEPS, 28, 64, 128)
    report("mamba2 896, recurrence alone", *timed_ops(ssd, given, rounds))
    given = delta_inputs(BATCH, STEPS, 6, 128, 256)
    report("fla-gdn 768 e2, recurrence alone", *timed_ops(delta, given, rounds))


def step(layer: Mixer, x_btd: Tensor) -> None:
    """Run a layer forward and backward."""
    layer.zero_grad()
    layer(x_btd)[0].sum().backward()


# ---------------------------------------------------------------------------------------- memory


def memory(rounds: int) -> None:
    print("MB that a layer keeps for its backward pass, fp32, beside its weights; B=8, T=512")
    made: dict[str, Mixer] = {
        "mamba2 896": Mamba2(896, device="meta"),
        "fla-gdn 768 e2": GatedDeltaNet(768, device="meta"),
        "mamba2 1536": Mamba2(1536, device="meta"),
        "fla-gdn 1536 e2": GatedDeltaNet(1536, device="meta"),
        "fla-gdn 1536 e1": GatedDeltaNet(1536, expansion=1.0, device="meta"),
    }
    for name, layer in made.items():
        kept = saved_bytes(layer, 8, 512)
        print(f"| {name} | {kept / 1e6:.0f} | {kept / (8 * 512 * layer.dim * 4):.1f} x the input |")


def saved_bytes(layer: Mixer, batch: int, steps: int) -> int:
    """Return the bytes of the distinct storages that autograd saves, the weights left out."""
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    known = {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
    x_btd = torch.randn(batch, steps, layer.dim, device="meta", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x_btd)
    return sum(storage.nbytes() for key, storage in saved.items() if key not in known)


if __name__ == "__main__":
    main()
