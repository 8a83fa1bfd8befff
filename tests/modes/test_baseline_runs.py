"""The baselines made of PyTorch's own layers, from training to text, through the modes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import elman
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.modes import eval as eval_mode
from elman.modes import generate as generate_mode
from elman.modes import train as train_mode
from elman.runs.prepared import PreparedRun

TINY = (
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=4",
    "train.chunk_size=16",
    "train.steps=6",
    "train.val_every=3",
    "data.val_sample=256",
    "data.val_window=16",
    "log.tensorboard=false",
)
OPTIONS = {"gru": (), "lstm": (), "llama": ("model.context=24",)}


@pytest.fixture(params=OPTIONS)
def run_folder(request, tmp_path: Path, text_file: Path) -> Path:
    """Train a tiny model with carried state and return its folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    given = [f"model={request.param}", *OPTIONS[request.param], "train.tbptt=true"]
    config = compose_config([*TINY, *given, f"data.path={text_file}"])
    assert train_mode.run(PreparedRun(config, folder)) == ExitStatus.OK
    result = json.loads((folder / "result.json").read_text())
    backend = "cpu" if request.param == "gru" else "torch"
    assert (result["status"], result["backend"]) == ("ok", backend)
    return folder


def test_a_run_is_sampled_and_scored_with_carried_state(run_folder, tmp_path, capsys) -> None:
    text = b"def add(left, right): return left + right # " * 3
    (tmp_path / "text").write_bytes(text)
    capsys.readouterr()
    given = [f"generate.checkpoint={run_folder}", "generate.max_bytes=9", "generate.top_k=0"]
    config = compose_config(["mode=generate", *given, "generate.prompt=def"])
    assert generate_mode.run(PreparedRun(config)) == ExitStatus.OK
    assert capsys.readouterr().out.startswith("def")
    where = [f"eval.checkpoint={run_folder}", f"eval.path={tmp_path / 'text'}"]
    config = compose_config(["mode=eval", *where, "eval.carry_state=true"])
    assert eval_mode.run(PreparedRun(config)) == ExitStatus.OK
    row = next(line for line in capsys.readouterr().out.splitlines() if "bits per byte" in line)
    with torch.no_grad():
        whole, _ = elman.load(run_folder).loss(torch.tensor([list(text)]))
    bits = float(row.split("│")[1])
    assert bits == pytest.approx(whole.item() / math.log(2), abs=1e-4)
