"""A kernel that was never proved here is proved before a run; a wrong one lets no run start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.modes.train import run
from elman.ops.channel import custom_op
from elman.parity import gate, source
from elman.parity.source import package_sources
from elman.runs.prepared import PreparedRun

pytestmark = pytest.mark.compiler

SMALL = (
    "model=e61",
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=2",
    "train.chunk_size=16",
    "train.steps=3",
    "data.val_sample=64",
    "data.val_window=16",
    "log.tensorboard=false",
)


@dataclass(frozen=True)
class Ended:
    """What a run left behind."""

    status: ExitStatus
    result: dict[str, Any]
    said: str
    folder: Path


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of proofs; compiled kernels stay where they are."""
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "parity"


@pytest.fixture
def train(tmp_path: Path, text_file: Path, records: Path, capsys) -> Callable[..., Ended]:
    """Return a function that trains a small model with a CPU kernel, in this process."""

    def start(*overrides: str, folder: str = "run") -> Ended:
        place = tmp_path / folder
        place.mkdir()
        config = compose_config([*SMALL, f"data.path={text_file}", *overrides])
        status = run(PreparedRun(config, place))
        result = json.loads((place / "result.json").read_text())
        said = capsys.readouterr()
        return Ended(status, result, said.out + said.err, place)

    return start


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every proof that is made."""
    made: list[str] = []
    prove = gate.prove_runs

    def counted(config: Any, runs: Any, **settings: Any) -> Any:
        made.append(" ".join(one.precision for one in runs))
        return prove(config, runs, **settings)

    monkeypatch.setattr(gate, "prove_runs", counted)
    return made


@pytest.fixture
def wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the compiled backward pass lose a thousandth of the first state's gradient."""
    kernels = custom_op.KERNELS["cpu"]

    def changed(*arguments: Any) -> Any:
        sources, parameters, first = kernels.backward(*arguments)
        return sources, parameters, first * 0.999

    monkeypatch.setitem(custom_op.KERNELS, "cpu", replace(kernels, backward=changed))


def test_a_kernel_is_checked_once_and_the_result_says_so(
    train, checks, records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = train()
    with caplog.at_level("INFO", "elman.parity"):
        second = train(folder="second")
    assert checks == ["fp32"]
    said = "checking the cpu kernel of e61 with these options against the reference, once (sec"
    assert said in first.said
    assert "checking" not in second.said
    parity = first.result["parity"]
    assert second.result["parity"] == parity
    assert (parity["backend"], parity["precisions"], parity["checks"]) == ("cpu", ["fp32"], 2)
    assert 0 < parity["worst_share_of_tolerance"] < 1
    (marker,) = records.glob("e61-cpu-*.json")
    assert json.loads(marker.read_text())["status"] == "ok"
    reused = f"e61: not checked again, its cpu kernel has passed ({parity['passed']}, {marker})"
    assert reused in caplog.text
    assert second.result["norm_parity"] == first.result["norm_parity"]


def test_trials_of_a_rate_are_checked_once_and_a_changed_source_once_more(
    train, checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, rate in enumerate(("1e-4", "3e-4", "1e-3")):
        train(f"optim.lr={rate}", f"train.seed={number}", folder=f"trial {number}")
    assert len(checks) == 1
    monkeypatch.setattr(source, "all_sources", lambda: "changed")
    for number in range(2):
        train(folder=f"changed {number}")
    assert len(checks) == 2


def test_another_driver_is_another_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_DRIVER", tmp_path / "version")
    assert source._driver() == ""
    (tmp_path / "version").write_text("NVRM version: 550.54.15\nGCC version: 12\n")
    assert source._driver() == "NVRM version: 550.54.15"


def test_the_check_changes_nothing_of_the_run(train) -> None:
    first, second = train(), train(folder="second")
    assert first.result["loss"] == second.result["loss"]


def test_the_check_is_no_time_of_training(train, monkeypatch: pytest.MonkeyPatch) -> None:
    prove, counter, late = gate.prove_runs, time.perf_counter, [0.0]

    def slow(*settings: Any, **more: Any) -> Any:
        late[0] += 1000.0
        return prove(*settings, **more)

    monkeypatch.setattr(gate, "prove_runs", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: counter() + late[0])
    assert train().result["seconds"]["train"] < 1000
    assert late[0] == 1000.0


@pytest.mark.parametrize(
    "change", ["model.expansion=1.5", "train.precision=bf16", "sources"], ids=str
)
def test_what_a_proof_does_not_cover_is_checked_anew(
    train, checks, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    train()
    if change == "sources":
        monkeypatch.setattr(gate, "proof_conditions", lambda: {"sources": "changed"})
        train(folder="second")
    else:
        train(change, folder="second")
    assert checks == ["fp32", "fp32 bf16" if "bf16" in change else "fp32"]


def test_the_package_of_a_cell_from_outside_is_part_of_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("one", "first"), ("two", "second"), ("three", "first")):
        folder = tmp_path / f"brings_{name}" / "cells"
        folder.mkdir(parents=True)
        (folder / "kernel.cuh").write_text(f"// {text}")
        (tmp_path / f"brings_{name}" / "__init__.py").touch()
    (tmp_path / "brings_alone.py").write_text("# one file")
    one, two, three = (
        package_sources(f"brings_{name}.cells.layer:Layer") for name in ("one", "two", "three")
    )
    assert one == three != two
    assert None not in (two, package_sources("brings_alone:Layer"))
    assert package_sources("elman.models.cells.channel.e61_layer:E61") is None


def test_a_kernel_changed_in_another_package_is_checked_anew(train, checks, monkeypatch) -> None:
    for found in ("one", "one", "another", None):
        monkeypatch.setattr(gate, "package_sources", lambda layer, found=found: found)
        train(folder=f"run {len(checks)} {found} {time.monotonic_ns()}")
    assert len(checks) == 3


@pytest.mark.parametrize(
    "change",
    [
        "model.dim=256",
        "train.steps=2",
        "model.depth=2",
        "model.dropout=0.1",
        "model.mamba2_init=normal",
    ],
)
def test_what_does_not_change_the_kernel_needs_no_new_proof(train, checks, change: str) -> None:
    train()
    train(change, folder="second")
    assert len(checks) == 1


def test_a_wrong_kernel_refuses_the_run(train, checks, wrong_kernel) -> None:
    ended = train()
    assert ended.status is ExitStatus.FAILED
    assert ended.result["status"] == "refused"
    error = ended.result["error"]
    assert error.startswith("the cpu kernel of e61 is wrong on this machine: d h first")
    assert f"{ended.folder}/parity.json" in error
    assert error.endswith("; kernels.backend=reference trains without it")
    assert not (ended.folder / "checkpoints").exists()
    record = json.loads((ended.folder / "parity.json").read_text())
    assert record["status"] == "failed"
    train(folder="second")
    assert len(checks) == 2  # a failure is not remembered: it may have been mended


def test_the_reference_needs_no_proof(train, checks, wrong_kernel) -> None:
    ended = train("kernels.backend=reference")
    assert ended.status is ExitStatus.OK
    assert ended.result["parity"] is None
    assert checks == []


def test_a_damaged_record_is_made_anew(train, checks, records: Path) -> None:
    train()
    for marker in records.glob("*.json"):
        marker.write_text("[")
    assert train(folder="second").result["parity"]["checks"] == 2
    assert len(checks) == 2
