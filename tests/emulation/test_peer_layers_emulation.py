"""Baselines with this project's kernels around their own, as the check before a run sees them.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.config.compose import compose_config
from elman.layers import E88, GatedDeltaNet, Llama, Mamba2
from elman.models.cells.common import mixer
from elman.models.cells.declaration import Cell
from elman.models.cells.matrix_state import e88_layer
from elman.models.language_model import LanguageModel
from elman.ops.causal_conv import cuda as conv
from elman.ops.column_sum import cuda as sums
from elman.ops.dense.cuda import stepwise
from elman.ops.head_norm import cuda as head_norm
from elman.ops.rotary import cuda as rotary
from elman.ops.silu_gate import cuda as silu
from elman.parity.experiment import Run
from elman.parity.proof import prove_runs
from tests.emulation import (
    dense_emulator,
    emulator,
    test_causal_conv_emulation,
    test_column_sum_emulation,
    test_head_norm_emulation,
    test_rotary_emulation,
    test_silu_gate_emulation,
)
from tests.emulation.emulator import loaded
from tests.models import package_stand_ins

pytestmark = pytest.mark.compiler


def chosen(cell: Cell, requested: str, device: str) -> str:
    """Return the backend that is asked for by name; where only shapes count, a plain one."""
    return cell.backends[0] if requested == "auto" else requested


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every kernel run on a CPU; return the names of those that ran."""
    names: list[str] = []
    emulations = {
        conv: test_causal_conv_emulation.emulate,
        head_norm: test_head_norm_emulation.emulate,
        rotary: test_rotary_emulation.emulate,
        silu: test_silu_gate_emulation.emulate,
        sums: test_column_sum_emulation.emulate,
    }
    for module, emulate in emulations.items():

        def launch(config: Any, wanted: Any, args: Any, _: Any, emulate: Any = emulate) -> None:
            names.extend(one.kernel for one in wanted)
            emulate(loaded, config, wanted, args)

        monkeypatch.setattr(module, "LAUNCH", launch)
    for module in (conv, head_norm):
        monkeypatch.setattr(module, "MULTIPROCESSORS", lambda device: 2)
    monkeypatch.setattr(mixer, "choose_backend", chosen)
    monkeypatch.setattr(mixer, "norm_backend", lambda requested, device: "cuda")
    return names


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_the_check_before_a_run_passes_a_transformer(ran, precision) -> None:
    config = compose_config(["model=llama", "model.head_dim=8"]).model
    proof = prove_runs(config, [Run("cuda", "cpu", precision)], seed=42, quick=True)
    assert [check.shape for check in proof.checks] == ["one step", "segments", "from nothing"]
    for check in proof.checks:
        assert check.passed, (check.shape, check.worst)
    assert {"rotary_forward", "rotary_backward", "swiglu_forward", "swiglu_backward"} <= {*ran}


@pytest.mark.parametrize("name", ["gru", "lstm", "slstm"])
def test_the_check_before_a_run_passes_a_network_on_the_dense_engine(
    ran, name: str, monkeypatch
) -> None:
    monkeypatch.setattr(stepwise, "STARTER", dense_emulator.starter)
    config = compose_config([f"model={name}"]).model
    proof = prove_runs(config, [Run("cuda", "cpu", "bf16")], seed=42, quick=True)
    for check in proof.checks:
        assert check.passed, (check.shape, check.worst)
    assert {"column_sum_parts", "column_sum_finish"} <= {*ran}


NORMED = ["model=e88_tiny", "model.use_output_norm=true", "model.use_conv=false"]


@pytest.fixture
def plain_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let E88's recurrence be plain PyTorch, with the dtypes of the kernels."""
    run = e88_layer.run

    def as_kernels(plan: Any, sources: Any, *rest: Any, backend: str, **more: Any) -> Any:
        y_bthv, last_bhvn = run(plan, sources, *rest, backend="reference", **more)
        return y_bthv.to(sources[0].dtype), last_bhvn

    monkeypatch.setattr(e88_layer, "run", as_kernels)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_check_before_a_run_passes_normed_heads(ran, plain_recurrence, precision) -> None:
    config = compose_config(NORMED).model
    proof = prove_runs(config, [Run("cuda", "cpu", precision)], seed=42, quick=precision == "fp32")
    for check in proof.checks:
        assert check.passed, (check.shape, check.worst)
    assert {*ran} == {"head_norm_forward", "head_norm_backward", "head_norm_finish"}


def test_the_check_before_a_run_notices_a_wrong_gate_of_normed_heads(
    ran, plain_recurrence, monkeypatch, tmp_path
) -> None:
    fault = test_head_norm_emulation.FAULTS["the first head's gate for all"]
    library = emulator.faulty(tmp_path, "cuda/head_norm/head_norm.cuh", fault)
    emulate = test_head_norm_emulation.emulate
    monkeypatch.setattr(head_norm, "LAUNCH", lambda *call: emulate(library, *call[:3]))
    config = compose_config(NORMED).model
    proof = prove_runs(config, [Run("cuda", "cpu", "bf16")], seed=42, quick=True)
    assert not any(check.passed for check in proof.checks)


def test_the_check_before_a_run_notices_a_wrong_angle(ran, monkeypatch) -> None:
    table = test_rotary_emulation.op.table
    wrong = lambda *given: table(*given).roll(1, 0)  # noqa: E731
    monkeypatch.setattr(test_rotary_emulation.op, "table", wrong)
    monkeypatch.setattr(test_rotary_emulation.op, "_tables", {})
    config = compose_config(["model=llama", "model.head_dim=8"]).model
    proof = prove_runs(config, [Run("cuda", "cpu", "fp32")], seed=42, quick=True)
    # All angles are one position off, which attention cannot see; the first one is not.
    assert [check.passed for check in proof.checks] == [True, True, False]


def gradients(layer: Any, state: Any, x_btd: torch.Tensor) -> list[torch.Tensor]:
    y_btd, last = layer(x_btd, state)
    outputs = [y_btd, *last.values()]
    pulls = [torch.linspace(-1, 1, one.numel()).view_as(one) for one in outputs]
    found = torch.autograd.grad(outputs, [x_btd, *layer.parameters()], pulls)
    return [*outputs, *found]


LAYERS = {
    "mamba2": (Mamba2, {"head_dim": 4, "n_state": 4}),
    "gdn": (GatedDeltaNet, {"n_heads": 2}),
    "gdn-bias": (GatedDeltaNet, {"n_heads": 2, "conv_bias": True, "d_conv": 3}),
    "e88": (E88, {"n_heads": 2, "n_state": 4, "use_conv": True}),
}


MORE = ("gdn-bias", "e88")


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(
    "name", ["mamba2", "gdn", *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)]
)
def test_a_layer_computes_the_same_with_the_convolution_in_a_kernel(
    name, carried, ran, monkeypatch
) -> None:
    build, options = LAYERS[name]
    torch.manual_seed(3)
    layer = build(8, **options, backend="reference")
    x_btd = torch.randn(2, 9, 8, requires_grad=True)
    state = layer(torch.randn(2, 5, 8))[1] if carried else None
    state = None if state is None else {key: part.detach() for key, part in state.items()}
    plain = gradients(layer, state, x_btd)
    assert ran == []
    if build is E88:
        layer.backend = "cuda"
        run = e88_layer.run
        # The recurrence has no part in this.
        plain_run = lambda *a, backend, **k: run(*a, backend="reference", **k)  # noqa: E731
        monkeypatch.setattr(e88_layer, "run", plain_run)
    else:
        package_stand_ins.install(monkeypatch)
        layer.backend = "triton"
    for found, wanted in zip(gradients(layer, state, x_btd), plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    kernels = ["causal_conv_forward", "causal_conv_backward", "causal_conv_finish"]
    assert [one for one in ran if one.startswith("causal")] == kernels


def test_a_model_adds_to_its_stream_within_the_norms() -> None:
    torch.manual_seed(4)
    model = LanguageModel(16, [Llama(16, head_dim=8) for _ in range(2)])
    tokens = torch.randint(256, (2, 7))
    found = model(tokens)[0]
    stream_btd = model.embedding[tokens]
    for layer in model.layers:
        stream_btd = stream_btd + layer(stream_btd)[0]
    wanted = model.final_norm(stream_btd)[1] @ model.embedding.T
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
