"""Measures the host time of one operator call, with kernels that do nothing.

A GPU waits for the host if calling a layer's operators takes longer than computing them. Here,
functions that return at once replace the launches, so no GPU is needed. The time covers everything
from the layer's call of the operator to the driver's launch. The launch itself would take 2 to 4 us
more for each kernel.

Twenty calls share one backward pass, as a model's layers do, because starting one takes 50 us.
Linear maps and whole layers run under the CPU's autocast, whose casts launch no kernels. So this
does not show what the host of a GPU saves by casting all weights at once.

    python benchmarks/host_overhead.py [rounds]

Shape legend: b batch, t time, d model width, c channels of a source.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import elman.layers
from elman.kernels import driver, launching
from elman.models.language_model import LanguageModel
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.add_norm import op as norm_op
from elman.ops.channel import op as channel_op
from elman.ops.common import operator
from elman.ops.linear import Weights, linear
from elman.ops.matrix_state import op as matrix_op
from elman.ops.matrix_state.cuda import kernels as matrix_cuda

LAYERS, CALLS, ROUNDS = 20, 5, 15
BATCH, STEPS, WIDTH = 2, 8, 64
TINY = (1, 2, 16)
"""Batch, steps and width of products: less than what is worth oneDNN, whose calls take 15 us."""

Case = tuple[Callable[[], Tensor], list[Tensor]]
"""A forward pass that returns its output, and the tensors that have gradients."""
Layers = tuple[Callable[[], list[Tensor]], list[Tensor]]
"""The same of all layers."""


def nothing(*_: Any, **__: Any) -> None:
    """Launch no kernel."""


@contextmanager
def no_gpu() -> Iterator[None]:
    """Let CPU tensors go the way of the CUDA backend, down to launches of nothing."""
    loaded = SimpleNamespace(launch=nothing)
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "current_device", lambda: None),  # the index of a CPU
            (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
            (launching, "STREAM", lambda device: 0),
            (driver, "load", lambda unit: loaded),
            (matrix_cuda, "load", lambda unit: loaded),
            (norm_cuda, "MULTIPROCESSORS", lambda device: 132),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers that have a gradient."""
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def matrix_state() -> Case:
    """E88 with a silu gate and Mamba's decay, from zeros."""
    options = {"n_heads": 4, "n_state": 16, "use_gate": True, "gate_activation": "silu"}
    plan = elman.layers.E88(WIDTH, **options).plan
    channels = max(place.start + plan.heads * plan.width(name) for name, place in plan.roles)
    source_btc = leaf(BATCH, STEPS, channels, dtype=torch.bfloat16)
    parameters = {name: leaf(*plan.parameter_shape(name)) for name in plan.parameter_names}

    def forward() -> Tensor:
        return matrix_op.run(plan, [source_btc], parameters, None, backend="cuda")[0]

    return forward, [source_btc, *parameters.values()]


def channel() -> Case:
    """E61 with its self gate, from a state of zeros."""
    layer = elman.layers.E61(WIDTH)
    plan, channels = layer.plan, layer.channels
    source_btc = leaf(BATCH, STEPS, 2 * channels, dtype=torch.bfloat16)
    parameters = {name: leaf(channels) for name in layer.step_parameters()}
    state_bc = torch.zeros(BATCH, channels)

    def forward() -> Tensor:
        return channel_op.run(plan, [source_btc], parameters, state_bc, backend="cuda")[0]

    return forward, [source_btc, *parameters.values()]


def add_norm() -> Case:
    """A branch in bf16, added to a stream in fp32, and the norm of the sum in bf16."""
    stream_btd, gain_d = leaf(BATCH, STEPS, WIDTH), leaf(WIDTH)
    branch_btd = leaf(BATCH, STEPS, WIDTH, dtype=torch.bfloat16)

    def forward() -> Tensor:
        given = (stream_btd, branch_btd, gain_d, torch.bfloat16)
        return norm_op.add_rms_norm(*given, backend="cuda")[1]

    return forward, [stream_btd, branch_btd, gain_d]


def linear_maps(*, ahead: bool) -> Layers:
    """Linear maps of weights in fp32, cast one by one or ahead of the pass."""
    batch, steps, width = TINY
    maps = [torch.nn.Parameter(torch.zeros(width, width)) for _ in range(LAYERS)]
    x_btd, weights = leaf(batch, steps, width, dtype=torch.bfloat16), Weights()

    def step() -> list[Tensor]:
        with autocast(), weights.cast(x_btd) if ahead else nullcontext():
            return [linear(x_btd, weight) for weight in maps]

    return step, [x_btd, *maps]


def whole_layers() -> Layers:
    """A language model of E88, its embedding, last norm and head shared out among its layers."""
    batch, steps, width = TINY
    options = {"n_heads": 2, "n_state": 4, "use_gate": True, "gate_activation": "silu"}
    layers = [elman.layers.E88(width, **options) for _ in range(LAYERS)]
    for layer in layers:
        layer.backend_for = lambda x_btd: "cuda"
    model = LanguageModel(width, layers, backend="cuda")
    for norm in (*model.norms, model.final_norm):
        norm._backend_on = lambda device_type: "cuda"
    tokens_bt = torch.zeros(batch, steps, dtype=torch.uint8)

    def step() -> list[Tensor]:
        with autocast():
            return [model(tokens_bt)[0]]

    return step, list(model.parameters())


def autocast() -> torch.autocast:
    """Return bf16's, as training on a GPU has it."""
    return torch.autocast("cpu", torch.bfloat16)


def calls(make: Callable[[], Case]) -> Layers:
    """Return as many calls as there are layers."""
    cases = [make() for _ in range(LAYERS)]
    return lambda: [forward() for forward, _ in cases], [one for _, own in cases for one in own]


def both_ways(make: Callable[[], Layers]) -> dict[str, tuple[Callable[[], Layers], bool]]:
    return {"operator": (make, True), "eager": (make, False)}


ROWS: dict[str, dict[str, tuple[Callable[[], Layers], bool]]] = {
    "matrix_state (E88)": both_ways(partial(calls, matrix_state)),
    "channel (E61)": both_ways(partial(calls, channel)),
    "add_norm": both_ways(partial(calls, add_norm)),
    "layer (E88)": both_ways(whole_layers),
    "linear": {
        "one by one": (partial(linear_maps, ahead=False), False),
        "ahead": (partial(linear_maps, ahead=True), False),
    },
}
"""What is timed, by name and way; with the second number True, by operators."""


class Ends(torch.autograd.Function):
    """Joins the outputs of all calls; its backward pass hands every one its gradient."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        """Return one number."""
        ctx.pulls = [torch.ones_like(output) for output in outputs]
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        """Return ones."""
        return tuple(ctx.pulls)


def microseconds(step: Callable[[], object], rounds: int) -> float:
    """Return, of the fastest round, a layer's time in a step of all layers."""
    found = []
    for _ in range(rounds + 1):  # the first one prepares
        began = time.perf_counter()
        for _ in range(CALLS):
            step()
        found.append((time.perf_counter() - began) / CALLS / LAYERS * 1e6)
    return min(found[1:])


def backward_microseconds(layers: Layers, rounds: int) -> float:
    """Return, of the fastest round, a layer's time in a backward pass through all layers."""
    step, leaves = layers
    found = []
    for _ in range(CALLS * (rounds + 1)):
        end = Ends.apply(*step())  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        torch.autograd.grad(end, leaves)
        found.append((time.perf_counter() - began) / LAYERS * 1e6)
    return min(found[CALLS:])


def measure(layers: Layers, rounds: int) -> tuple[float, float, float]:
    """Return the microseconds of a call without gradients, with them, and of its backward pass."""
    return (
        microseconds(torch.no_grad()(layers[0]), rounds),
        microseconds(layers[0], rounds),
        backward_microseconds(layers, rounds),
    )


@contextmanager
def operators(seen: bool) -> Iterator[None]:
    """Let all calls be operators, or none."""
    with patch.object(operator, "operators_are_seen", lambda *_: seen):
        yield


def main() -> None:
    """Print a table: as operators, which compilers see, and as eager calls."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    print(f"us a call, fastest of {rounds} rounds, no kernels")
    print(f"{'':20}{'':12}{'no grad':>9}{'forward':>9}{'backward':>9}{'both':>9}")
    with no_gpu():
        for name, ways in ROWS.items():
            for way, (make, seen) in ways.items():
                with operators(seen):
                    none, forward, backward = measure(make(), rounds)
                both = forward + backward
                print(f"{name:20}{way:12}{none:9.1f}{forward:9.1f}{backward:9.1f}{both:9.1f}")


if __name__ == "__main__":
    main()
