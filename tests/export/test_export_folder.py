"""``mode=export`` as a command, and ``elman.load`` of what it writes: without transformers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import elman
from elman.base.exit_status import ExitStatus
from elman.evaluation.result import RunResult
from elman.export import folder as export_folder
from elman.models.cells import registry
from tests.export.conftest import Exported
from tests.small_run import Elman, elman_said

E1 = ("model=e1", "data.reset_at_documents=true")
NAMES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "modeling_elman.py",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def run_elman(capfd: pytest.CaptureFixture[str]) -> Elman:
    """Return ``run_elman(*arguments)``: exit status and what it said."""
    return elman_said(capfd)


@pytest.fixture
def small(exported: Callable[..., Exported]) -> Exported:
    """Return a run of E1 and its exported folder."""
    return exported(*E1)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_folder_has_these_files_and_no_others(small: Exported) -> None:
    assert {path.name for path in small.folder.iterdir()} == NAMES
    assert [path.name for path in small.folder.parent.glob(".*unfinished*")] == []
    modes = {path.name: path.stat().st_mode & 0o777 for path in small.folder.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_load_reads_the_folder_back_with_the_bits_of_the_checkpoint(small: Exported) -> None:
    ours, theirs = elman.load(small.run), elman.load(small.folder)
    tokens = torch.randint(256, (3, 40))
    with torch.no_grad():
        assert torch.equal(ours(tokens)[0], theirs(tokens)[0])
    assert not theirs.training
    assert theirs.reset_after == ours.reset_after == 0x1E
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_the_configuration_names_the_classes_and_the_whole_model(small: Exported) -> None:
    config = read(small.folder / "config.json")
    assert config["model_type"] == "elman"
    for name in config["auto_map"].values():
        module, _, class_name = name.partition(".")
        assert f"class {class_name}(" in (small.folder / f"{module}.py").read_text()
    assert (config["hidden_size"], config["num_hidden_layers"]) == (128, 2)
    section = config["elman"]["model"]
    assert section["cell"] == "e1"
    assert registry.cell("e1").options.keys() <= section.keys()
    with safe_open(small.folder / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        names = {f"model.{name}" for name in elman.load(small.run).state_dict()}
        assert set(weights.keys()) == names


def test_every_byte_has_its_own_number_and_the_separator_ends_a_text(small: Exported) -> None:
    tokenizer = read(small.folder / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert all(vocabulary[chr(byte)] == byte for byte in range(128))
    assert all(vocabulary[f"<0x{byte:02X}>"] == byte for byte in range(128, 256))
    assert [one["id"] for one in tokenizer["added_tokens"]] == [0x1E]
    ends = read(small.folder / "generation_config.json")
    assert {ends[f"{name}_token_id"] for name in ("bos", "eos", "pad")} == {0x1E}


def test_the_card_says_how_the_model_was_trained_with_every_definition(small: Exported) -> None:
    card, result = (small.folder / "README.md").read_text(), read(small.run / "result.json")
    assert str(small.run.parent) not in card
    assert result["data"]["sha256"] in card
    for said in ("`text.txt`", "optim.lr | 0.0003", "train.seed | 42", "limit 5, spent 5"):
        assert said in card, said
    for name in ("val_bpb", "val_tokens", "bpb", "loss", "params", "steps"):
        assert f"| `{name}` | " in card
        assert str(RunResult.model_fields[name].description) in card
    assert f"{result['val_bpb']:.6g}" in card
    assert "# license: name it here" in card


def test_a_card_of_earlier_weights_has_no_number_of_the_end(
    small: Exported, tmp_path: Path, run_elman: Elman
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small.run, run, symlinks=True)
    result = read(run / "result.json")
    (run / "result.json").write_text(json.dumps(result | {"steps": 9, "val_bpb": 1.25}))
    status, said = run_elman(
        "mode=export", f"export.checkpoint={run}", f"export.to={tmp_path / 'out'}"
    )
    assert status == ExitStatus.OK, said
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1.25" not in card
    assert "The run went on after these weights" in card
    (run / "result.json").unlink()
    status, said = run_elman(
        "mode=export", f"export.checkpoint={run}", f"export.to={tmp_path / 'bare'}"
    )
    assert status == ExitStatus.OK, said
    assert "nothing says which bytes" in (tmp_path / "bare" / "README.md").read_text()


def test_a_card_says_which_layers_are_mixed_and_which_run_it_began_from(
    exported: Callable[..., Exported], small: Exported
) -> None:
    mixed = ("model=e88_tiny", "model.n_heads=2", "model.n_state=8", "model.layers=[e88,llama]")
    card = (exported(*mixed).folder / "README.md").read_text()
    assert "cells `e88+llama` (e88 at 0; llama elsewhere)" in card
    assert "A language model over bytes" in card
    assert "began from" not in card
    tuned = exported(*E1, f"train.init_from={small.run}")
    card = (tuned.folder / "README.md").read_text()
    assert f"began from the weights of another run, `{small.run.name}`. The data" in card
    assert str(small.run.parent) not in card


def test_an_empty_folder_is_filled_and_missing_parents_are_made(
    small: Exported, tmp_path: Path, run_elman: Elman
) -> None:
    (tmp_path / "empty").mkdir()
    for to in (tmp_path / "empty", tmp_path / "new" / "out"):
        status, said = run_elman("mode=export", f"export.checkpoint={small.run}", f"export.to={to}")
        assert status == ExitStatus.OK, said
        assert {path.name for path in to.iterdir()} == NAMES
        assert "from_pretrained" in said


def test_a_folder_with_files_a_file_and_a_lost_run_are_one_line_each(
    small: Exported, tmp_path: Path, run_elman: Elman
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    for checkpoint, to, why in (
        (small.run, foreign, "is not empty; name a new folder"),
        (small.run, small.folder, "is not empty; name a new folder"),
        (small.run, foreign / "notes.txt", "this is a file; name a new folder"),
        (tmp_path / "nowhere", tmp_path / "out", "no such folder; name a run folder"),
        (small.folder, tmp_path / "out", "holds an exported model, which"),
    ):
        status, said = run_elman(
            "mode=export", f"export.checkpoint={checkpoint}", f"export.to={to}"
        )
        assert status == ExitStatus.USER_ERROR
        assert why in said
        assert len(said.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign"]
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]


def test_a_task_and_another_packages_cell_stay_here(
    small: Exported, tmp_path: Path, run_elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("data=parity", "model=e1", "model.dim=128", "model.depth=1", "train.steps=1")
    small_task = ("train.batch_size=4", "train.chunk_size=16", "data.val_rows=8")
    rest = ("data.test_rows=8", "data.lengths=[16]", "log.plot=false")
    run = tmp_path / "task"
    status, said = run_elman(*task, *small_task, *rest, f"hydra.run.dir={run}")
    assert status == ExitStatus.OK, said
    out = f"export.to={tmp_path / 'out'}"
    status, said = run_elman("mode=export", f"export.checkpoint={run}", out)
    assert status == ExitStatus.USER_ERROR
    assert "it learned the task parity" in said
    cells = registry.cells()
    theirs = replace(cells["e1"], layer="their_lab.e1:E1")
    monkeypatch.setattr(registry, "cells", lambda: cells | {"e1": theirs})
    status, said = run_elman("mode=export", f"export.checkpoint={small.run}", out)
    assert status == ExitStatus.USER_ERROR
    assert "its cell e1 is declared by the package their_lab" in said
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_behind(
    small: Exported, tmp_path: Path, run_elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export_folder, "save_file", full)
    to = tmp_path / "out"
    status, said = run_elman("mode=export", f"export.checkpoint={small.run}", f"export.to={to}")
    assert status == ExitStatus.USER_ERROR
    assert "No space left on device" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", '{"model_type": "elman"}', "config.json: damaged"),
        ("config.json", '{"model_type": "elman", "elman": {"model": {}}}', "model.cell: missing"),
        ("model.safetensors", "", "model.safetensors: cannot be loaded"),
        ("config.json", '{"model_type": "gpt2"}', "holds an exported model"),
    ],
)
def test_a_damaged_folder_is_one_line(
    small: Exported, tmp_path: Path, name: str, content: str, why: str
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(small.folder, damaged)
    (damaged / name).write_text(content)
    with pytest.raises(ValueError, match=why) as raised:
        elman.load(damaged)
    assert len(str(raised.value).splitlines()) == 1
