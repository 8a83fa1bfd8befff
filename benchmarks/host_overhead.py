"""Host time of an operator: what Python does for one call, with kernels that do nothing.

A GPU waits for the host where a layer's operators take longer to be called than to be computed.
Here launches are replaced by functions that return at once, so no GPU is needed: what is timed is
everything from the operator as a layer calls it to the driver's launch, which takes 2 to 4 us more
for each kernel.

Twenty calls share one backward pass, as a model's layers do: to start one takes 50 us.

    python benchmarks/host_overhead.py [rounds]

Shape legend: b batch, t time, d model width, c channels of a source.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import elman.layers
from elman.kernels import nvrtc
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.add_norm import custom as norm_custom
from elman.ops.add_norm import op as norm_op
from elman.ops.channel import cuda as channel_cuda
from elman.ops.channel import custom as channel_custom
from elman.ops.channel import op as channel_op
from elman.ops.matrix_state import cuda as matrix_cuda
from elman.ops.matrix_state import custom as matrix_custom
from elman.ops.matrix_state import op as matrix_op

LAYERS, CALLS, ROUNDS = 20, 5, 15
BATCH, STEPS, WIDTH = 2, 8, 64

Case = tuple[Callable[[], Tensor], list[Tensor]]
"""A forward pass that returns its output, and the tensors that have gradients."""


def nothing(*_: Any, **__: Any) -> None:
    """Launch no kernel."""


@contextmanager
def no_gpu() -> Iterator[None]:
    """Let CPU tensors go the way of the CUDA backend, down to launches of nothing."""
    loaded = SimpleNamespace(launch=nothing)
    stream = SimpleNamespace(cuda_stream=0)
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "device", lambda device: nullcontext()),
            (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
            (torch.cuda, "current_stream", lambda device=None: stream),
            (nvrtc, "load", lambda unit: loaded),
            (matrix_cuda, "load", lambda unit: loaded),
            (norm_cuda, "MULTIPROCESSORS", lambda device: 132),
            (channel_custom, "cpu", channel_cuda),
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


CASES: dict[str, tuple[Callable[[], Case], Any]] = {
    "matrix_state (E88)": (matrix_state, matrix_custom),
    "channel (E61)": (channel, channel_custom),
    "add_norm": (add_norm, norm_custom),
}


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


def backward_microseconds(cases: Sequence[Case], rounds: int) -> float:
    """Return, of the fastest round, a layer's time in a backward pass through all layers."""
    leaves = [leaf for _, leaves in cases for leaf in leaves]
    found = []
    for _ in range(CALLS * (rounds + 1)):
        end = Ends.apply(*(forward() for forward, _ in cases))  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        torch.autograd.grad(end, leaves)
        found.append((time.perf_counter() - began) / LAYERS * 1e6)
    return min(found[CALLS:])


def measure(make: Callable[[], Case], rounds: int) -> tuple[float, float, float]:
    """Return the microseconds of a call without gradients, with them, and of its backward pass."""
    cases = [make() for _ in range(LAYERS)]

    def step() -> list[Tensor]:
        return [forward() for forward, _ in cases]

    return (
        microseconds(torch.no_grad()(step), rounds),
        microseconds(step, rounds),
        backward_microseconds(cases, rounds),
    )


def main() -> None:
    """Print a table: as operators, which compilers see, and as eager calls."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    print(f"us a call, fastest of {rounds} rounds, no kernels")
    print(f"{'':20}{'':10}{'no grad':>9}{'forward':>9}{'backward':>9}{'both':>9}")
    with no_gpu():
        for name, (make, custom) in CASES.items():
            for way, seen in (("operator", True), ("eager", False)):
                with patch.object(custom, "operators_are_seen", lambda *_, seen=seen: seen):
                    none, forward, backward = measure(make, rounds)
                both = forward + backward
                print(f"{name:20}{way:10}{none:9.1f}{forward:9.1f}{backward:9.1f}{both:9.1f}")


if __name__ == "__main__":
    main()
