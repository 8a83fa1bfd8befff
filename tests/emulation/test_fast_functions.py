"""The fast functions of bf16 kernels: as right as is documented, and a fault is noticed."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels import nvrtc
from elman.kernels.launching import Launch
from elman.kernels.sources import source_folder
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.custom_op import KERNELS
from tests.emulation import channel_emulator, emulator
from tests.emulation.test_matrix_emulation import TILE_CONFIGS, TOLERANCE, leaves_of, results
from tests.ops.channel.test_channel_kernels import PLANS, call, check, draw, everything
from tests.ops.matrix_state.test_matrix_kernels import LAYERS, assert_equal, build

BF16 = torch.bfloat16
# Functions of csrc/cells, by how far from a double's they may be: relative, or absolute.
FUNCTIONS = {
    "tanh": (torch.tanh, 2**-11, 1e-7),
    "sigmoid": (torch.sigmoid, 0.0, 2**-12 + 1e-7),
    "silu": (torch.nn.functional.silu, 0.0, 2**-12 * 20),
    "silu_slope": (lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)), 0.0, 2**-11 * 10),
    "softplus": (torch.nn.functional.softplus, 1e-6, 2e-6),
}
UNIT = """
#include "emulation/fast_device.h"
#include "cells/maps.h"
struct Given { const float* x; float* y; };
""" + "\n".join(
    f"ELMAN_KERNEL({name}_of, 32, 1, Given, for (int i = elman::thread_index(); i < 4096; i += 32) "
    f"elman::store_one(a.y + i, elman::{name}(elman::load_one(a.x + i))))"
    for name in FUNCTIONS
)
# What is wrong in csrc/cells, by file: old text, new text.
FAULTS = {
    "slope of silu": (
        "maps",
        "(half * (1.0f - t * t) + t) * 0.5f",
        "(half * (1.0f - t * t)) * 0.5f",
    ),
    "silu": ("maps", "half * tanh(half) + half", "half * tanh(x) + half"),
    "sigmoid": ("math", "return tanh(x * 0.5f) * 0.5f", "return tanh(x) * 0.5f"),
    "softplus": (
        "math",
        "0.666664183139801f;\n  return (p * z) * s",
        "0.5f;\n  return (p * z) * s",
    ),
}


class Given(ctypes.Structure):
    """What a function receives and where its results go."""

    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


def computed(name: str, library: ctypes.CDLL) -> tuple[Tensor, Tensor]:
    """Return numbers, and what a function makes of them."""
    x, y = torch.linspace(-20, 20, 4096), torch.full((4096,), torch.nan)
    emulator.declare_tensors(library, read={"x": x}, written={"y": y})
    wanted = Launch(f"{name}_of", 1, 32)
    emulator.start(library, wanted, Given(x.data_ptr(), y.data_ptr()))
    return x, y


def far_off(name: str, library: ctypes.CDLL) -> bool:
    """Return whether a function is further from a double's than its instructions allow."""
    x, y = computed(name, library)
    function, relative, absolute = FUNCTIONS[name]
    exact = function(x.double())
    return bool(((y - exact).abs() > relative * exact.abs() + absolute).any())


def planted(fault: str, folder: Path, text: str) -> ctypes.CDLL:
    """Return the library of a text over a faulty header of csrc/cells."""
    header, old, new = FAULTS[fault]
    file = f"cells/{header}.h"
    return emulator.planted(folder, file, lambda whole: whole.replace(old, new, 1), text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fast_function_is_as_near_as_its_instructions(name) -> None:
    assert not far_off(name, emulator.loaded(UNIT))


def test_the_emulated_instruction_is_as_far_off_as_documented() -> None:
    """An exact one would let kernels rely on more than a GPU has."""
    x, y = computed("tanh", emulator.loaded(UNIT))
    error = ((y - x.double().tanh()) / x.double().tanh()).abs().max()
    assert 2**-12 < error <= 2**-11 + 1e-7


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_fast_function_is_noticed(fault, tmp_path: Path) -> None:
    name = fault.replace("slope of silu", "silu_slope")
    assert far_off(name, planted(fault, tmp_path, UNIT))


# ---- kernels


def test_bf16_kernels_are_emulated_with_the_functions_that_nvrtc_gives_them() -> None:
    macro = "ELMAN_TANH_APPROX"
    assert f"--define-macro={macro}" in nvrtc._FAST
    assert f"#define {macro}\n" in (source_folder() / emulator.FAST_HEADER).read_text()


def matrix_distance(library: object, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> str:
    """Return what is wrong with a layer that has silu, sigmoid and softplus."""
    name = "e88-everything"
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(**TILE_CONFIGS[name], library=library))
    plan = build(LAYERS[name], torch.float32).plan
    leaves = leaves_of(plan, dtype, steps=7)
    try:
        assert_equal(results(plan, leaves, False), results(plan, leaves, True), TOLERANCE[dtype])
    except AssertionError as error:
        return str(error)
    return ""


def test_the_slope_of_silu_is_noticed_in_a_kernel(monkeypatch, tmp_path: Path) -> None:
    library = functools.partial(planted, "slope of silu", tmp_path)
    assert "source" in matrix_distance(library, monkeypatch, BF16)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silu", "sigmoid"])
def test_a_fault_is_noticed_in_a_kernel(fault, monkeypatch, tmp_path: Path) -> None:
    library = functools.partial(planted, fault, tmp_path)
    assert matrix_distance(library, monkeypatch, BF16)


def test_bf16_kernels_with_exact_functions(monkeypatch) -> None:
    """As ``mode=parity`` runs them too."""
    with kernels.exact():
        assert matrix_distance(emulator.loaded, monkeypatch, BF16) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_channel_cells_with_fast_functions(name, monkeypatch) -> None:
    """Every cell, forward and back, against fp64."""

    def emulate(tile_config, launches, made) -> None:
        channel_emulator.run(emulator.loaded, tile_config, launches, made.args)

    monkeypatch.setattr(channel_cuda, "LAUNCH", emulate)
    plan = PLANS[name](11)
    leaves = draw(plan, (2, 19, 11), torch.float32)
    leaves["source"] = leaves["source"].detach().to(BF16).requires_grad_()
    found = everything(plan, leaves, "cuda")
    wide = {n: leaf.detach().double().requires_grad_() for n, leaf in leaves.items()}
    y, last = call(plan, wide, "reference")
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(t.shape, dtype=torch.float64, generator=generator).to(dtype).double()
        for t, dtype in ((y, BF16), (last, torch.float32))
    ]
    gradients = torch.autograd.grad([y, last], list(wide.values()), pulls)
    exact = {"y": y, "last": last} | {f"d {n}": g for n, g in zip(wide, gradients, strict=True)}
    check(found, exact, 6e-3)
