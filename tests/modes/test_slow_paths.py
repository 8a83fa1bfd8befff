"""A model that plain PyTorch runs says so, with the reason, and its result is marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.devices import nvml
from elman.models.backends import slow_reason
from elman.models.cells import registry
from elman.modes import eval as eval_mode
from elman.modes import generate as generate_mode
from elman.modes import train as train_mode
from elman.runs.prepared import PreparedRun

TINY = (
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=4",
    "train.chunk_size=16",
    "train.steps=2",
    "data.val_sample=256",
    "data.val_window=16",
    "log.tensorboard=false",
)
CPU = "train.device=cpu"


def test_a_cell_without_a_kernel_says_so_in_every_mode(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    config = compose_config(
        ["model=e74", "model.nonlinearity=rmsnorm", *TINY, f"data.path={text_file}", CPU]
    )
    assert train_mode.run(PreparedRun(config, folder)) == ExitStatus.OK
    said = (
        "slow path: plain PyTorch runs cell e74 "
        "(no kernel for a CPU, model.nonlinearity=rmsnorm looks at the whole state at once)"
    )
    output = "".join(capsys.readouterr())
    assert output.count(f"{said}; the result is marked\n") == 1
    assert "backend reference, the slow path" in output
    assert json.loads((folder / "result.json").read_text())["slow_path"] is True
    scores = compose_config(["mode=eval", f"eval.checkpoint={folder}", "eval.device=cpu"])
    eval_mode.run(PreparedRun(scores))
    assert f"{said}\n" in capsys.readouterr().out
    samples = ["mode=generate", f"generate.checkpoint={folder}", "generate.device=cpu"]
    generate_mode.run(PreparedRun(compose_config([*samples, "generate.max_bytes=2"])))
    assert capsys.readouterr().err.startswith(f"elman: {said}\nelman: 2 bytes, ")


@pytest.mark.parametrize(
    ("cell", "backend", "device", "reason"),
    [
        ("e23", "auto", "cuda", None),
        ("e59", "auto", "cuda", None),
        ("e88", "auto", "cuda", None),
        ("e88", "reference", "cuda", "requested by kernels.backend=reference"),
        ("mamba2", "auto", "cpu", "the package's kernels do not run on a CPU"),
        ("llama", "auto", "cuda", None),
    ],
)
def test_why(cell: str, backend: str, device: str, reason: str | None) -> None:
    assert slow_reason(registry.cell(cell), backend, device) == reason


def test_why_an_option_has_no_kernel() -> None:
    cell = registry.cell("e74")
    values = {name: option.default for name, option in cell.options.items()}
    limited = cell.under(values | {"nonlinearity": "rmsnorm"})
    why = "model.nonlinearity=rmsnorm looks at the whole state at once"
    assert slow_reason(limited, "auto", "cuda") == f"no kernel for a GPU, {why}"


@pytest.mark.parametrize("visible", ["9", "GPU-x"])
def test_a_run_does_not_go_to_the_cpu_because_of_a_wrong_name(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    (tmp_path / "gpus.json").write_text('[{"uuid": "GPU-a"}]')
    monkeypatch.setenv(nvml.PRETENDED, str(tmp_path / "gpus.json"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = compose_config([*TINY, f"data.path={text_file}"])
    with pytest.raises(UserError, match=rf"^CUDA_VISIBLE_DEVICES={visible}: there is no GPU "):
        train_mode.run(PreparedRun(config, tmp_path / "run"))
