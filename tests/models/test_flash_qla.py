"""``kernels.backend=flash_qla``: who can ask for it, what refuses it, and the layer on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.bench import benchmark
from elman.bench.entries import entries
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.kernels import flash_qla, packages
from elman.layers import GatedDeltaNet
from elman.models import backends
from elman.models.backends import check_precision, choose_backend, computation_path
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.mixed import paths, requested_backends, resolved_backends
from elman.modes import train
from elman.parity.experiment import Run
from elman.parity.proof import _computed_by, runs_here
from elman.parity.shapes import shapes_for
from elman.runs.prepared import PreparedRun
from elman.sections.model import ModelConfig
from tests.models import flash_qla_stand_in, package_stand_ins

GPU = torch.device("cuda", 0)
GDN = registry.cell("fla_gdn")
ASKED = "kernels.backend=flash_qla"
HEADS = "FlashQLA computes heads of 128 keys and 128 values alone, and these have"
FITTING = "use model.head_dim=128 model.expansion=1, or kernels.backend=auto"


def model(*overrides: str, name: str = "fla-gdn_768x20_e1") -> ModelConfig:
    return compose_config([f"model={name}", *overrides]).model


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A Hopper GPU with everything that the backend needs; tests take parts away."""
    found = {"flash-linear-attention": "0.6.0", "flash-qla": "0.1.2"}
    found |= {"triton": "3.7.1", "einops": "0.8.2", "tilelang": "0.1.9"}
    names = {"fla": "flash-linear-attention", "flash_qla": "flash-qla"}
    monkeypatch.setattr(packages, "importable", lambda name: names.get(name, name) in found)
    for module in (packages, backends):
        monkeypatch.setattr(module, "installed_version", found.get)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(flash_qla, "compiler_problem", lambda: None)
    monkeypatch.setattr(backends, "torch_is_for_rocm", lambda: False)
    return found


def test_it_runs_where_it_is_asked_for_and_nowhere_else(installed) -> None:
    asked = model()
    assert resolved_backends(asked, "flash_qla", GPU) == "flash_qla"
    assert resolved_backends(asked, "auto", GPU) == "triton"
    assert resolved_backends(asked, "triton", GPU) == "triton"
    assert resolved_backends(asked, "auto", "cpu") == "reference"
    assert paths(asked, "flash_qla") == "flash-qla 0.1.2, flash-linear-attention 0.6.0"
    assert computation_path(GDN, "triton") == "flash-linear-attention 0.6.0"
    assert choose_backend(GDN, "flash_qla", "meta") == "reference"


def test_a_benchmark_times_it_beside_the_other(installed) -> None:
    found, notes = entries([model()], ["triton", "flash_qla"], GPU)
    assert [one.backend for one in found] == ["triton", "flash_qla"]
    assert not notes


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (model(name="fla-gdn"), f"{ASKED}: {HEADS} 128 and 256; {FITTING}"),
        (model("model.n_heads=12"), f"{ASKED}: {HEADS} 64 and 64; {FITTING}"),
        (
            model("model.allow_neg_eigval=true"),
            f"{ASKED}: FlashQLA does not compute negative eigenvalues; "
            "use model.allow_neg_eigval=false or kernels.backend=auto",
        ),
        (
            model(name="kda"),
            f"{ASKED}: cell kda has only reference and triton; use kernels.backend=auto",
        ),
        (
            model(name="mamba2"),
            f"{ASKED}: cell mamba2 has only reference and triton; use kernels.backend=auto",
        ),
    ],
    ids=["values", "keys", "negative", "kda", "no delta rule"],
)
def test_models_that_it_does_not_compute_are_refused(asked, message, installed) -> None:
    for device in (GPU, "meta"):
        with pytest.raises(UserError) as caught:
            build_model(asked, backend="flash_qla", device=device)
        assert str(caught.value) == message
    with pytest.raises(UserError) as caught:
        resolved_backends(asked, "flash_qla", GPU)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"flash-qla": None}, "flash-qla is not installed; pip install 'elman[flash-qla]'"),
        (
            {"flash-qla": "0.1.0"},
            "flash-qla 0.1.0 is older than 0.1.2; pip install 'elman[flash-qla]' --upgrade",
        ),
        (
            {"tilelang": None},
            "flash-qla 0.1.2 needs tilelang 0.1.9, and there is none; pip install tilelang==0.1.9",
        ),
        (
            {"tilelang": "0.1.8"},
            "flash-qla 0.1.2 needs tilelang 0.1.9, and 0.1.8 is installed; "
            "pip install tilelang==0.1.9",
        ),
    ],
    ids=["missing", "old", "no tilelang", "mamba's tilelang"],
)
def test_a_missing_package_is_named_with_its_command(change, problem, installed) -> None:
    for name, version in change.items():
        del installed[name]
        if version is not None:
            installed[name] = version
    with pytest.raises(UserError) as caught:
        resolved_backends(model(), "flash_qla", GPU, allow_slow=True)
    assert str(caught.value) == f"{ASKED}: {problem}"
    assert resolved_backends(model(), "auto", GPU) == "triton"


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_other_gpus_are_refused_whatever_is_installed(capability, installed, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    del installed["flash-qla"]
    with pytest.raises(UserError) as caught:
        resolved_backends(model(), "flash_qla", GPU)
    assert str(caught.value) == (
        f"{ASKED}: FlashQLA needs a GPU of compute capability 9.0 or 10.0 (H100, H200, B200), and "
        f"this one has {capability[0]}.{capability[1]}; use kernels.backend=triton"
    )


def test_a_cpu_and_an_amd_gpu_are_refused(installed, monkeypatch) -> None:
    with pytest.raises(UserError) as caught:
        resolved_backends(model(), "flash_qla", "cpu")
    assert str(caught.value) == (
        f"{ASKED}: does not run on a cpu device; "
        "use kernels.backend=reference or kernels.backend=auto"
    )
    monkeypatch.setattr(backends, "torch_is_for_rocm", lambda: True)
    with pytest.raises(UserError, match=r"AMD GPUs .* the flash_qla kernels are for NVIDIA"):
        resolved_backends(model(), "flash_qla", GPU)


@pytest.mark.parametrize(
    ("there", "wanted"),
    [("", False), ("cuda/bin/nvcc", True), ("cache/kernels/one.so", True)],
    ids=["nothing", "toolkit", "compiled before"],
)
def test_a_compiler_is_wanted_unless_the_kernels_are_there(
    there, wanted, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(flash_qla, "_TOOLKITS", ())
    monkeypatch.setattr(flash_qla.shutil, "which", lambda name: None)
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    if there:
        (tmp_path / there).parent.mkdir(parents=True)
        (tmp_path / there).touch()
    problem = flash_qla.compiler_problem()
    assert (problem is None) == wanted
    if problem is not None:
        assert "pip install 'tilelang[nvcc]==0.1.9'" in problem


def test_fp32_is_refused_before_the_data_is_opened(installed, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(train, "choose_device", lambda name: GPU)
    for name in ("_set_process", "uses_graph"):
        monkeypatch.setattr(train, name, lambda *given: False)
    typed = ["model=fla-gdn_768x20_e1", ASKED, "train.precision=fp32"]
    with pytest.raises(UserError) as caught:
        train.run(PreparedRun(compose_config(typed), tmp_path))
    assert str(caught.value) == (
        f"{ASKED}: FlashQLA takes no fp32; use train.precision=bf16 or kernels.backend=triton"
    )
    check_precision("flash_qla+cuda", "bf16")
    check_precision("triton", "fp32")


def test_a_benchmark_in_fp32_names_its_own_settings(installed, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "choose_device", lambda name, setting: GPU)
    monkeypatch.setattr(benchmark, "refuse_without_gpu", lambda *given: None)
    typed = ["mode=bench", "model=fla-gdn_768x20_e1", "bench.backends=[flash_qla]"]
    config = compose_config([*typed, "bench.precision=fp32"])
    with pytest.raises(UserError) as caught:
        benchmark.run_benchmark(config, (), print, lambda done, total: None)
    assert str(caught.value) == (
        "bench.backends=flash_qla: FlashQLA takes no fp32; use bench.precision=bf16 or "
        "bench.backends=triton"
    )


@pytest.mark.parametrize(
    "typed",
    [
        f"model=fla-gdn_768x20_e1 {ASKED} train.device=cpu",
        f"model=fla-gdn {ASKED}",
        f"model=e1 {ASKED}",
        "mode=bench model=fla-gdn_768x20_e1 bench.backends=[flash_qla] bench.device=cpu",
    ],
)
def test_the_command_ends_with_one_line_and_status_2(typed, tmp_path, text_file, capsys) -> None:
    folder = f"hydra.run.dir={tmp_path / 'run'}"
    data = [] if "mode=bench" in typed else [f"data.path={text_file}"]
    assert main([*typed.split(), folder, *data]) == ExitStatus.USER_ERROR
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "flash_qla" in said[0]


def test_in_a_mixed_stack_it_holds_for_the_gated_delta_rule(installed) -> None:
    stack = model("model.layers=[{cell:e88,at:[5,11,17]}]")
    assert requested_backends(stack, "flash_qla") == ["flash_qla", "auto"]
    wide = model("model.layers=[{cell:e88,at:[5,11,17]}]", name="fla-gdn")
    with pytest.raises(UserError, match=f"^{ASKED}: {HEADS} 128 and 256"):
        requested_backends(wide, "flash_qla")


def test_parity_checks_sizes_that_it_computes_in_bf16(installed, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked, run = model(), Run("flash_qla", "cuda", "bf16")
    runs, _ = runs_here(GDN, "flash_qla")
    assert runs[1:] == [run]
    assert "flash_qla" not in {one.backend for one in runs_here(GDN)[0]}
    cell = _computed_by(GDN, [run])
    shapes, notes = shapes_for(cell, asked.dim, asked.options, quick=False)
    for shape in shapes:
        layer: Any = GatedDeltaNet(shape.dim, **shape.options, device="meta")
        assert (layer.key_width, layer.value_width) == (128, 128)
    assert any(note.startswith("width 17 left out") for note in notes)


def computed(layer: Any, x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """Return outputs, last state and gradients of a sequence handed over in pieces."""
    x = x.clone().requires_grad_()
    state, parts = None, []
    for piece in x.split(lengths, dim=1):
        y, state = layer(piece, state)
        parts.append(y)
    outputs = [torch.cat(parts, 1), *state.values()]
    torch.manual_seed(6)
    weights = [torch.randn(one.shape, dtype=one.dtype) for one in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [x, *layer.parameters()], weights)]


@pytest.mark.parametrize("lengths", [(17,), (1, 2, 14)], ids=["whole", "carried"])
def test_the_layer_computes_what_it_does_in_plain_pytorch(lengths, monkeypatch) -> None:
    def build(backend: str) -> Any:
        torch.manual_seed(5)
        sizes: dict[str, Any] = {"n_heads": 2, "expansion": 1.0, "dtype": torch.float64}
        return GatedDeltaNet(256, **sizes, backend=backend)

    x = torch.randn(2, 17, 256, dtype=torch.float64)
    wanted = computed(build("reference"), x, lengths)
    norms = package_stand_ins.install(monkeypatch)
    rules = flash_qla_stand_in.install(monkeypatch, torch.float64)
    for got, plain in zip(computed(build("flash_qla"), x, lengths), wanted, strict=True):
        torch.testing.assert_close(got, plain, rtol=1e-7, atol=1e-9)
    assert len(rules) == len(lengths)
    assert {*norms} == {"rms_norm_gated"}
    computed(build("triton"), x, lengths)
    assert len(rules) == len(lengths)
