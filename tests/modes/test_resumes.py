"""Resumes of runs whose folder is not as it was: edited, moved, copied, in part removed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from elman.cli.main import main
from elman.report.metrics_file import read_metrics
from tests.small_run import E1, TEXT, Elman

SMALL = (*E1, "data.path=text.txt", "log.tensorboard=false")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    (place / "text.txt").write_bytes(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        command = [*SMALL, "train.steps=4", "train.save_every=2", "hydra.run.dir=run"]
        assert main(command) == 0
    return place / "run"


def result_of(run: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((run / "result.json").read_text())
    return result


EDITS = {
    "the size": ("dim: 128", "dim: 256", "model: dim 128 and 256"),
    "an option": ("dropout: 0.0", "dropout: 0.5", "model: dropout 0.0 and 0.5"),
    "the seed": ("seed: 42", "seed: 43", "train.seed 42 and 43"),
    "the first weights": ("init_from: null", "init_from: run", "train.init_from None and run"),
}


@pytest.mark.parametrize(("before", "now", "why"), EDITS.values(), ids=EDITS)
def test_a_configuration_edited_where_a_run_cannot_change_is_refused(
    elman: Elman, run: Path, before: str, now: str, why: str
) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count(f" {before}\n") == 1
    config.write_text(text.replace(f" {before}\n", f" {now}\n"))
    status, said = elman("train.resume=run", "train.steps=6")
    assert status == 2
    (line,) = [line for line in said.splitlines() if line.startswith("elman: error")]
    assert f"{config}: was edited where a run cannot change ({why}); type cp " in line
    assert result_of(run)["steps"] == 4
    (advice,) = re.findall(r"type (cp [^,]+),", line)
    subprocess.run(shlex.split(advice), check=True)
    assert elman("train.resume=run", "train.steps=6")[0] == 0


def test_a_configuration_edited_to_what_nothing_reads_is_named(elman: Elman, run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("  seed: 42\n", "  seed: 42\n  nosuch: 3\n"))
    status, said = elman("train.resume=run", "train.steps=6")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith(f"elman: error: {config}: train.nosuch=3: no such setting")


@pytest.mark.parametrize("end", ["\ntrain:", "_size: "])
def test_a_configuration_that_is_cut_off_names_its_copy(elman: Elman, run: Path, end: str) -> None:
    """What is left is readable without a section, or is no YAML."""
    config = run / "config.yaml"
    config.write_text(config.read_text().partition(end)[0])
    status, said = elman("train.resume=run", "train.steps=6")
    assert (status, said.count("\n")) == (2, 1)
    (advice,) = re.findall(r"(cp \S+ \S+)$", said.strip())
    subprocess.run(shlex.split(advice), check=True)
    assert elman("train.resume=run", "train.steps=6")[0] == 0


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_a_run_whose_checkpoints_were_removed_does_not_start_again(
    elman: Elman, run: Path, how: str
) -> None:
    shutil.rmtree(run / "checkpoints")
    if how == "empty":
        (run / "checkpoints").mkdir()
    status, said = elman("train.resume=run", "train.steps=6")
    assert status == 2
    assert f"{run}: its checkpoints are gone (result.json tells of 4 steps); put them back" in said
    assert result_of(run)["steps"] == 4
    # A run that was killed before it saved anything has none to lose.
    (run / "result.json").unlink()
    status, said = elman("train.resume=run", "train.steps=2")
    assert status == 0
    assert "no checkpoint was saved yet: starting from the first step" in said
    assert read_metrics(run).steps.tolist() == [1, 2]


def test_a_moved_and_a_copied_run_go_on_where_they_are(elman: Elman, run: Path) -> None:
    shutil.copytree(run, "copy", symlinks=True)
    run.rename("moved")
    for name in ("moved", "copy"):
        status, said = elman(f"train.resume={name}", "train.steps=5")
        assert status == 0, said
        assert result_of(Path(name))["steps"] == 5
    assert not run.exists()


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_a_run_goes_on_without_the_records_of_before(
    elman: Elman, run: Path, name: str, how: str
) -> None:
    path = run / name
    text = path.read_text()
    path.unlink()
    if how == "cut off":
        path.write_text(text[: len(text) // 2])
    status, said = elman("train.resume=run", "train.steps=6")
    assert status == 0, said
    assert result_of(run)["steps"] == 6
    assert read_metrics(run).problems == ()
    assert read_metrics(run).steps.tolist()[-2:] == [5, 6]


def test_a_resumed_run_is_resumed_again_with_another_batch(elman: Elman, run: Path) -> None:
    assert elman("train.resume=run", "train.steps=6", "train.batch_size=4")[0] == 0
    assert elman("train.resume=run", "train.steps=8", "train.chunk_size=32")[0] == 0
    result = result_of(run)
    assert result["tokens"] == (4 * 2 * 16) + (2 * 4 * 16) + (2 * 4 * 32)
    assert len(list(run.glob("result-*.json"))) == 2
    status, said = elman("train.resume=run")
    assert (status, "its budget is used up (8 steps" in said) == (2, True)
