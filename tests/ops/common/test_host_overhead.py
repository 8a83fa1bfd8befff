"""The measurement of host time: it runs without a GPU, and down to the launches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.matrix_state.cuda import kernels as matrix_cuda

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "host_overhead.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("host_overhead", SCRIPT)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def nothing_loaded() -> None:
    """Let no test launch what another one loaded."""
    channel_cuda.COMPILED.loaded.cache_clear()
    norm_cuda.COMPILED.loaded.cache_clear()
    matrix_cuda._ready.cache_clear()


MATRIX = ["matrix_forward", "matrix_backward", "matrix_finish"]
NORM = ["add_norm_forward", "add_norm_backward", "add_norm_finish"]
KERNELS = {
    "matrix_state (E88)": MATRIX,
    "channel (E61)": ["channel_forward", "channel_backward", "channel_finish"],
    "add_norm": NORM,
    "layer (E88)": [  # and the last norm
        *(NORM[0], MATRIX[0], NORM[0]),
        *(*NORM[1:], *MATRIX[1:], *NORM[1:]),
    ],
}


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in KERNELS for way in ("operator", "eager")]
)
def test_both_passes_reach_the_launches_of_their_kernels(script, monkeypatch, name, way) -> None:
    launched: list[str] = []
    monkeypatch.setattr(script, "nothing", lambda kernel, **_: launched.append(kernel))
    monkeypatch.setattr(script, "LAYERS", 1)
    make, seen = script.ROWS[name][way]
    assert seen == (way == "operator")
    with script.no_gpu(), script.operators(seen):
        step, leaves = make()
        (out,) = step()
        gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert launched == KERNELS[name]
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves]


@pytest.mark.parametrize("way", ["one by one", "ahead"])
def test_linear_maps_have_their_gradients(script, way) -> None:
    step, leaves = script.ROWS["linear"][way][0]()
    for _ in range(2):  # the second pass has its weights ahead
        gradients = torch.autograd.grad(sum(out.sum() for out in step()), leaves)
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves]


def test_a_measurement_has_three_times(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "LAYERS", 2)
    with script.no_gpu():
        found = script.measure(script.calls(script.channel), rounds=1)
    assert len(found) == 3
    assert min(found) > 0
