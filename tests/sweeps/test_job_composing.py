"""Jobs of a sweep are composed from few compositions, and are what Hydra makes of each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from elman.config.run_config import RunConfig
from elman.runs.prepare import checked_config
from elman.sweeps import request
from elman.sweeps.composing import JobComposer

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py
DRY = ("sweep.dry_run=true", "sweep.equal_size=false")


class Watched(JobComposer):
    """Counts Hydra's compositions, and compares each job with Hydra's."""

    composed = 0
    compared: tuple[RunConfig, ...] = ()

    def whole(self, texts: Sequence[str]) -> DictConfig:
        Watched.composed += 1
        return super().whole(texts)

    def tree(self, texts: Sequence[str]) -> DictConfig:
        found = super().tree(texts)
        alone = super().whole(texts)
        assert found.hydra.runtime.choices == alone.hydra.runtime.choices
        assert found.hydra.runtime.config_sources == alone.hydra.runtime.config_sources
        assert found.hydra.overrides.task == alone.hydra.overrides.task
        config = checked_config(found, may_pack=False)
        assert config == checked_config(alone, may_pack=False)
        Watched.compared += (config,)
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    Watched.composed, Watched.compared = 0, ()
    monkeypatch.setattr(request, "JobComposer", Watched)
    return Watched


def test_jobs_are_those_that_hydra_composes_and_need_few_compositions(
    watched: type[Watched], elman: Elman
) -> None:
    command = ("-m", "data=parity,s3", "model=e1,llama,e42", "optim.lr=1e-3,2e-3")
    ended = elman(*command, *DRY)
    assert ended.status == 0, ended.errors
    assert len(watched.compared) == 12
    assert watched.composed == 4  # the first job, another task, two other models
    assert len({config.model_dump_json() for config in watched.compared}) == 12


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["expressivity_quick", "e42_40m", "e74_nstate", "quick_test"])
def test_every_job_of_a_shipped_suite_is_what_hydra_composes(
    watched: type[Watched], elman: Elman, suite: str
) -> None:
    ended = elman(f"benchmark={suite}", "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    assert watched.compared


def test_choices_that_change_one_section_are_composed_by_hydra(
    watched: type[Watched], elman: Elman, tmp_path: Path
) -> None:
    """A model that brings its recipe, beside recipes on the command line."""
    folder = tmp_path / "own" / "model"
    folder.mkdir(parents=True)
    (folder / "brings.yaml").write_text(
        "# @package _global_\n"
        "defaults: [/cell/e1@model, {override /optim: legacy}, _self_]\n"
        "model: {dim: 128, depth: 1}\ntrain: {batch_size: 3}\n"
    )
    command = ("--config-dir", str(folder.parent), "-m", "model=e88_tiny,brings")
    ended = elman(*command, "optim=schedulefree,adamw", "train=default,tiny", *DRY)
    assert ended.status == 0, ended.errors
    assert len(watched.compared) == 8
    brought = {one.train.batch_size for one in watched.compared if one.model.name == "brings"}
    assert brought == {3}


def test_additions_and_wrong_values_have_the_errors_of_hydra(
    watched: type[Watched], elman: Elman
) -> None:
    for wrong, said in (
        ("+train.batch_size=3,4", "train.batch_size"),
        ("train.nonsense=3,4", "train.nonsense=3: no such setting"),
        ("model=e1,nonsense", "model=nonsense: no such model"),
        ("train.steps=3,many", "train.steps=many: "),
    ):
        ended = elman("-m", wrong, *DRY)
        assert (ended.status, ended.output) == (2, "")
        assert said in ended.errors
        assert ended.errors.count("\n") == 1


def test_a_sweep_says_which_files_of_a_folder_its_jobs_read(elman: Elman, tmp_path: Path) -> None:
    for name in ("train.txt", "val.txt", "test.txt"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_text("some text to read " * 100)
    ended = elman("-m", "model=e88_tiny", f"data.path={tmp_path}/set", "train.seed=1,2", *DRY)
    said = [line for line in ended.output.splitlines() if line.startswith("files: ")]
    assert said == [
        "files: training on train.txt; validating on val.txt; left: test.txt (a test split)"
    ]
