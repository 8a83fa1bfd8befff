"""How kernels are compiled for a config and launched: all of it but NVRTC and the driver."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.kernels import driver, launching
from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.ops.add_norm import cuda as add_norm
from elman.ops.add_norm.op import add_rms_norm
from elman.ops.causal_conv import cuda as conv
from elman.ops.causal_conv.op import causal_conv
from elman.ops.column_sum import cuda as column_sum
from elman.ops.common.cuda_kernels import CudaKernels
from elman.ops.decode import launches as decode
from elman.ops.decode.row_product import row_product
from elman.ops.dense.cuda import stepwise as dense
from elman.ops.dense.op import dense_recurrence
from elman.ops.head_norm import cuda as heads
from elman.ops.head_norm.op import head_norm
from elman.ops.rotary import cuda as rotary
from elman.ops.silu_gate import cuda as silu
from elman.ops.silu_gate.op import swiglu
from elman.ops.spectral_norm import cuda as spectral
from elman.ops.spectral_norm.op import normalized
from elman.ops.tape.cuda import stepwise as tape
from elman.ops.tape.op import dual_memory

BF16, FP32 = torch.bfloat16, torch.float32
FAMILIES = (rotary, silu, conv, column_sum, spectral, add_norm, heads, decode, dense, tape)


class Gpus:
    """Two GPUs that run nothing; of tensors on the CPU the first is taken for the place."""

    def __init__(self) -> None:
        self.current = 0
        self.units: list[Unit] = []
        self.launched: list[tuple[str, str, dict[str, Any]]] = []

    def index(self, device: int | None) -> int:
        return self.current if device is None else device

    @contextlib.contextmanager
    def entered(self, device: int | None) -> Iterator[None]:
        before, self.current = self.current, self.index(device)
        yield
        self.current = before

    def load(self, unit: Unit) -> SimpleNamespace:
        def launch(name: str, **how: Any) -> None:
            self.launched.append((unit.label, name, how | {"current": self.current}))

        self.units.append(unit)
        return SimpleNamespace(launch=launch)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    made = Gpus()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "device", made.entered)
    capabilities = ((8, 0), (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device=None: capabilities[made.index(device)]
    )
    monkeypatch.setattr(launching, "STREAM", lambda device: 70 + made.index(device))
    monkeypatch.setattr(driver, "load", made.load)
    for module in (conv, add_norm, heads):
        monkeypatch.setattr(module, "MULTIPROCESSORS", lambda device: 2)
    for module in FAMILIES:
        module.COMPILED.loaded.cache_clear()
    yield made
    for module in FAMILIES:  # no other test launches what this one loaded
        module.COMPILED.loaded.cache_clear()


class Arguments(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int64),)


@dataclass(frozen=True)
class Size:
    width: int


def of_sizes() -> CudaKernels[Size]:
    return CudaKernels(
        lambda size: f"text of {size.width}",
        lambda size: f"kernel of {size.width}",
        fast=lambda size: size.width > 8,
    )


def test_a_config_is_compiled_once_for_each_device(gpus: Gpus) -> None:
    kernels, wanted, args = of_sizes(), [Launch("one", 1, 32)], Arguments(n=3)
    for width in (8, 16, 8):
        for index in (0, 1, 1):
            kernels.launch(Size(width), wanted, args, torch.device("cuda", index))
    assert gpus.units == [
        Unit(f"text of {width}", f"kernel of {width}", architecture, fast)
        for width, fast in ((8, False), (16, True))
        for architecture in ("sm_80", "sm_90")
    ]
    assert len(gpus.launched) == 9


@pytest.mark.parametrize("way", ["launch", "starter"])
@pytest.mark.parametrize("index", [0, 1])
def test_kernels_run_in_order_where_the_tensors_are(gpus: Gpus, way: str, index: int) -> None:
    kernels, args, device = of_sizes(), Arguments(n=3), torch.device("cuda", index)
    wanted = [Launch("first", 4, 64, 128), Launch("second", 2, 32, cluster=2)]
    if way == "launch":
        kernels.launch(Size(8), wanted, args, device)
    else:
        kernels.starter(Size(8), args, device)(wanted)
    assert [name for _, name, _ in gpus.launched] == ["first", "second"]
    assert [unit.architecture for unit in gpus.units] == [("sm_80", "sm_90")[index]]
    for _, _, how in gpus.launched:
        assert how["arguments"] is args
        assert (how["device"], how["stream"], how["current"]) == (index, 70 + index, index)
    first, second = (how for _, _, how in gpus.launched)
    assert (first["blocks"], first["threads"], first["shared_bytes"]) == (4, 64, 128)
    assert (second["cluster"], second["early"], second["together"]) == (2, False, False)
    assert gpus.current == 0


def zeros(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, requires_grad=True)


def turn(dtype: torch.dtype) -> None:
    q, k = (torch.zeros(2, 3, 2, 8, dtype=dtype) for _ in range(2))
    rotary.forward(torch.zeros(2, 3, 48, dtype=dtype), torch.zeros(3, 4, 2), q, k)


def gated(dtype: torch.dtype) -> None:
    swiglu(zeros(2, 3, 16, dtype=dtype), backend="cuda").sum().backward()


def convolve(dtype: torch.dtype) -> None:
    x = zeros(2, 5, 16, dtype=dtype)
    causal_conv(x, zeros(16, 4), zeros(16), None, backend="cuda")[0].sum().backward()


def add_and_norm(dtype: torch.dtype) -> None:
    found = add_rms_norm(
        zeros(2, 3, 16), zeros(2, 3, 16, dtype=dtype), zeros(16), dtype=dtype, backend="cuda"
    )
    torch.autograd.backward(found, [torch.ones_like(one) for one in found])


def norm_of_heads(dtype: torch.dtype) -> None:
    reads = (zeros(2, 3, 4, 8, dtype=dtype), zeros(8), zeros(2, 3, 32, dtype=dtype))
    head_norm(*reads, "silu", dtype=dtype, backend="cuda").sum().backward()


def steps(dtype: torch.dtype) -> None:
    inputs, matrices = [zeros(2, 2, 6, dtype=dtype)], [zeros(6, 6)]
    y, _ = dense_recurrence("tanh", inputs, matrices, [torch.zeros(2, 6)], backend="cuda")
    y.sum().backward()


def memory(dtype: torch.dtype) -> None:
    x, start = zeros(2, 2, 6, dtype=dtype), (torch.zeros(2, 3, 6), torch.zeros(2, 6))
    found = dual_memory(x, zeros(6, 6), None, *start, write="shared", backend="cuda")
    found[0].sum().backward()


Names = list[str] | dict[torch.dtype, list[str]]
CALLS: dict[str, tuple[Callable[[torch.dtype], None], bool, Names]] = {
    "rotary": (turn, False, ["rotary_forward"]),
    "silu and gate": (gated, True, ["swiglu_forward", "swiglu_backward"]),
    "causal convolution": (
        convolve,
        True,
        [f"causal_conv_{name}" for name in ("forward", "backward", "finish")],
    ),
    "column sum": (
        lambda dtype: (column_sum.column_sum(torch.zeros(10, 8, dtype=dtype)), None)[1],
        False,
        ["column_sum_parts", "column_sum_finish"],
    ),
    "spectral norm": (
        lambda dtype: (
            normalized(zeros(12, 8), torch.ones(12), torch.ones(8), 0.9, 1e-6).sum().backward()
        ),
        False,
        [f"spectral_norm_{name}" for name in ("size", "forward", "along", "backward")],
    ),
    "add and norm": (
        add_and_norm,
        False,
        [f"add_norm_{name}" for name in ("forward", "backward", "finish")],
    ),
    "head norm": (
        norm_of_heads,
        False,
        [f"head_norm_{name}" for name in ("forward", "backward", "finish")],
    ),
    "decoding": (
        lambda dtype: (row_product(*(torch.zeros(n, 64, dtype=dtype) for n in (1, 32))), None)[1],
        False,
        {BF16: ["tile_product"], FP32: ["row_product"]},
    ),
    "dense tanh": (steps, True, 2 * ["dense_forward"] + 2 * ["dense_backward"]),
    "tape shared": (
        memory,
        True,
        ["tape_first", *(3 * ["tape_forward"]), "tape_replay", *(3 * ["tape_backward"])],
    ),
}


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("label", CALLS)
def test_a_call_launches_the_kernels_of_its_family(
    gpus: Gpus, label: str, dtype: torch.dtype
) -> None:
    """Fast kernels are those of bf16, where the error of the dtype is larger than theirs."""
    call, fast_in_bf16, kernels = CALLS[label]
    if isinstance(kernels, dict):
        kernels = kernels[dtype]
    call(dtype)
    assert [(found, name) for found, name, _ in gpus.launched] == [(label, n) for n in kernels]
    (unit,) = gpus.units
    assert (unit.label, unit.architecture) == (label, "sm_80")
    assert unit.fast == (fast_in_bf16 and dtype == BF16)
    for name in kernels:
        assert f"{name}," in unit.text
