"""Sweeps end to end, in fresh processes with a stub in place of the modes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.config.compose import compose_config
from tests.stubs.forked import Popen

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py


def sweep_file(folder: Path) -> dict[str, Any]:
    """Return the one sweep.json below a folder."""
    (path,) = folder.rglob("sweep.json")
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def rows(output: str) -> list[list[str]]:
    """Return the cells of the table's lines."""
    lines = [line for line in output.splitlines() if "│" in line]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


@pytest.mark.parametrize("jobs", ["in processes that start anew", "in forks"])
def test_failed_and_killed_jobs_do_not_stop_the_rest(
    elman_process: Elman, tmp_path: Path, stub_environment: dict[str, str], jobs: str
) -> None:
    if jobs != "in forks":  # as they are outside tests
        del stub_environment["STUB_FORKS"]
    ended = elman_process("-m", "train.steps=3,901,902,903,904,4", "optim.lr=1e-3")
    assert ended.status == 1
    table = rows(ended.output)
    good = ["1.5000 (last 7)", "n=1", "2.2500", "n=1", "-", "594,720", "-", "{}", "12,346"]
    assert table[0][:11] == ["1", "e88_tiny train.steps=3", *(cell.format(3) for cell in good)]
    assert table[5][:11] == ["6", "e88_tiny train.steps=4", *(cell.format(4) for cell in good)]
    ends = ["refused", "crash", "killed (SIGKILL)", "nan"]
    for number, (line, end) in enumerate(zip(table[1:5], ends, strict=True), 2):
        assert line[:2] == [str(number), f"e88_tiny train.steps={899 + number}"]
        assert set(line[2:-1]) == {"-"}
        assert line[-1] == end
    assert "[2/6] train.steps=901" in ended.output.splitlines()
    assert re.search(r"\[2/6\] refused after \d+s on worker 1: .*an unlucky number", ended.output)
    content = sweep_file(tmp_path)
    statuses = ["ok", "refused", "crash", "killed (SIGKILL)", "nan", "ok"]
    assert [job["status"] for job in content["jobs"]] == statuses
    assert content["command"] == "elman -m train.steps=3,901,902,903,904,4 optim.lr=1e-3"
    assert content["jobs"][0]["command"] == "elman train.steps=3 optim.lr=1e-3"
    (sweep,) = (tmp_path / "outputs").glob("*/*_sweep")
    assert (sweep / content["jobs"][0]["folder"] / "result.json").exists()


def test_a_sweep_that_ends_well_exits_with_0(elman_process: Elman) -> None:
    ended = elman_process("-m", "model=e1,e42", "train.steps=3")
    assert (ended.status, ended.errors) == (0, "")


def test_one_wrong_job_stops_the_sweep_before_the_first(elman: Elman, tmp_path: Path) -> None:
    ended = elman("-m", "model=e1,e42", "train.steps=3,0")
    line = "elman: error: job 2 of 4 (model=e1 train.steps=0): train.steps=0: must be at least 1\n"
    assert (ended.status, ended.errors, ended.output) == (2, line, "")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_lets_the_running_job_save_and_starts_no_other(
    tmp_path: Path, stub_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "elman", "-m", "train.steps=3,905,4,5"]
    with Popen(
        command, cwd=tmp_path, env=stub_environment, stdout=subprocess.PIPE, text=True
    ) as sweep:
        deadline = time.monotonic() + 180
        while not list(tmp_path.rglob("waiting")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        output, _ = sweep.communicate(timeout=180)
    assert sweep.returncode == 130
    ends = ["ok, never left warm-up", "interrupted", "not started", "not started"]
    assert [row[-1] for row in rows(output)] == ends
    assert "not started: 3, 4" in output.splitlines()
    saved = [json.loads(path.read_text()) for path in tmp_path.rglob("02_*/result.json")]
    assert saved == [{"status": "interrupted", "signals": 1}]


def test_modes_without_results_get_a_table_of_statuses_and_no_folder(
    elman_process: Elman, tmp_path: Path
) -> None:
    ended = elman_process("-m", "mode=eval", "eval.checkpoint=/,/tmp")
    assert ended.status == 0
    assert rows(ended.output) == [
        ["1", "eval.checkpoint=/", "ok"],
        ["2", "eval.checkpoint=/tmp", "ok"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_jobs_see_the_users_own_files_and_hydra_settings(
    elman_process: Elman, tmp_path: Path
) -> None:
    models = tmp_path / "mine" / "model"
    models.mkdir(parents=True)
    text = "defaults: [/cell/e88@_here_, _self_]\ndim: 256\ndepth: 1\n"
    (models / "own.yaml").write_text(text)
    ended = elman_process(
        "model=own", "--config-dir=mine", "-m", "train.steps=3,4", 'hydra.sweep.dir="it\'s, mine"'
    )
    assert (ended.status, ended.errors) == (0, "")
    (log,) = (tmp_path / "it's, mine").glob(".submitit/02/*.out")
    assert log.read_text().splitlines()[-1].startswith("ran train own 4")
    results = sorted((tmp_path / "it's, mine").rglob("result.json"))
    assert [path.parent.name[:6] for path in results] == ["01_own", "02_own"]


def test_hydras_own_launcher_runs_the_jobs_too(
    elman_process: Elman, tmp_path: Path, stub_environment: dict[str, str]
) -> None:
    """In one process, which needs torch for its models alone, and those are stubs here."""
    stub_environment["PYTHONPROFILEIMPORTTIME"] = "1"
    ended = elman_process("-m", "hydra/launcher=basic", "train.steps=3,901,4")
    assert ended.status == 1
    imported = re.findall(r"(?m)^import time:.*\| +(\S+)$", ended.errors)
    assert "elman.sweeps.sizes" in imported
    assert "torch" not in imported
    short = "ok, never left warm-up"
    ends = [short, "refused", f"{short}, unequal duration"]
    assert [row[-1] for row in rows(ended.output)] == ends
    (sweep,) = (tmp_path / "outputs").glob("*/*_sweep")
    assert len(list(sweep.glob("*/result.json"))) == 2


def test_the_table_says_what_differs_unasked(elman_process: Elman) -> None:
    ended = elman_process("-m", "model=e1,e88_tiny", "train.steps=3")
    tiny = compose_config(["model=e88_tiny"]).train
    for name, usual, own in (("batch", 32, tiny.batch_size), ("chunk", 512, tiny.chunk_size)):
        line = f"not comparable: different {name}: {usual} in set 1; {own} in set 2"
        assert line in ended.output.splitlines()
    swept = elman_process("-m", "optim.lr=1e-3,1e-4", "train.steps=3")
    assert not re.search("comparable|differs", swept.output)


@pytest.mark.parametrize("asked", ["hydra.mode=MULTIRUN", "-m"])
def test_a_sweep_may_be_one_job(elman_process: Elman, asked: str) -> None:
    ended = elman_process(asked, "train.steps=3")
    assert ended.status == 0
    assert len(rows(ended.output)) == 1
