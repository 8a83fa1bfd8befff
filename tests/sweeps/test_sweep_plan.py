"""What happens to a sweep before its first job, and when it is taken up again."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.devices import locks, nvml
from tests.stubs.forked import Popen

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py


def only_sweep(folder: Path) -> Path:
    """Return the one sweep's folder below outputs/."""
    (sweep,) = (folder / "outputs").glob("*/*_sweep")
    return sweep


def test_every_model_is_counted_and_wrong_sizes_stop_the_sweep(
    elman: Elman, tmp_path: Path
) -> None:
    ended = elman("-m", "model=e1,e42", "train.steps=3", "model.expected_params=7")
    assert ended.status == 2
    assert ended.errors.startswith("elman: error: job 1 of 2 (model=e1): model.expected_params=7: ")
    assert ended.errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_commands_that_run_one_job_alone(elman: Elman, tmp_path: Path) -> None:
    given = ("train.steps=3", "kernels.backend=reference")
    ended = elman("-m", "sweep.dry_run=true", "launcher.workers=3", "model=e23,e88_tiny", *given)
    assert (ended.status, ended.errors) == (0, "")
    lines = ended.output.splitlines()
    assert lines[0] == "job 1: e23, 94,534,144 parameters (model=e23)"
    assert lines[2].startswith("note: sizes differ by ")
    assert lines[3] == (
        "slow path: e23, e88_tiny run as plain PyTorch (cells e23, e88: requested by "
        "kernels.backend=reference); marked in the tables"
    )
    assert lines[4:] == [
        "elman model=e23 train.steps=3 kernels.backend=reference hydra.mode=RUN",
        "elman model=e88_tiny train.steps=3 kernels.backend=reference hydra.mode=RUN",
    ]
    assert list(tmp_path.iterdir()) == []
    alone = elman(*shlex.split(lines[5])[1:])
    assert alone.status == 0
    assert alone.output.startswith("ran train e88_tiny 3")


def test_sizes_of_different_tokens_are_told_without_their_embedding(elman: Elman) -> None:
    tokens = "data.tokenizer=bytes,bpe:1024"
    ended = elman("-m", "sweep.dry_run=true", "model=e88_tiny", tokens, "train.bytes=3")
    assert (ended.status, ended.errors) == (0, "")
    lines = ended.output.splitlines()
    assert lines[1].endswith("(data.tokenizer=bpe:1024)")
    sizes = re.search(r"without the embedding of their tokens ([\d,]+) and ([\d,]+)\)", lines[2])
    assert sizes is not None
    assert sizes[1] == sizes[2]
    assert lines[-1].endswith("data.tokenizer=bpe:1024 train.bytes=3 hydra.mode=RUN")


def test_a_sweep_that_claims_one_size_is_held_to_it(elman: Elman, tmp_path: Path) -> None:
    claim = ("-m", "sweep.equal_size=true", "sweep.dry_run=true", "train.steps=3")
    refused = elman(*claim, "model=e1,e88_tiny")
    assert refused.status == 2
    assert refused.errors.startswith("elman: error: sweep.max_params_spread=0.15: sizes differ by")
    assert "job 2 (e88_tiny) has " in refused.errors
    assert elman(*claim, "model=e88_tiny", "train.seed=1,2").status == 0
    assert elman(*claim, "model=e1,e88_tiny", "sweep.max_params_spread=1000").status == 0


def test_a_dry_run_of_one_command_says_which_files_it_reads(elman: Elman, tmp_path: Path) -> None:
    for name in ("part.txt", "test.txt"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text("some text\n" * 9999)
    done = elman("sweep.dry_run=true", "data.path=texts")
    assert done.output.splitlines()[1:] == [
        "files: training on part.txt; left: test.txt (a test split)",
        "elman data.path=texts",
    ]


@pytest.mark.parametrize("ranks", [(), ("train.device=cpu", "launcher.gpus_per_job=2")])
def test_a_dry_run_of_one_command_checks_it_and_makes_nothing(
    elman: Elman, tmp_path: Path, ranks: tuple[str, ...]
) -> None:
    done = elman("sweep.dry_run=true", "model=e1", "train.steps=3", *ranks)
    command = " ".join(("elman model=e1 train.steps=3", *ranks))
    assert done.output.splitlines() == ["e1, 114,890,880 parameters", command]
    assert (done.status, done.errors) == (0, "")
    assert not list(tmp_path.iterdir())
    wrong = elman("sweep.dry_run=true", "model=e88_tiny", "model.dim=64000064")
    assert (wrong.status, wrong.output) == (2, "")
    assert wrong.errors.startswith("elman: error: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["launcher.workers=2"], "launcher.workers: read only in a sweep; add -m or drop it"),
        (["sweep.dry_run=maybe"], "sweep.dry_run=maybe: expected true or false"),
        (
            ["-m", "launcher=local", "launcher.workers=2"],
            "launcher.workers: launcher=local does not read it; drop it or choose launcher=gpus",
        ),
        (["-m", "launcher.workers=0"], "launcher.workers=0: must be at least 1"),
        (["-m", "launcher.gpus=0"], "launcher.gpus=0: expected a list, as in launcher.gpus=[0]"),
        (
            ["-m", "launcher.gpus_per_job=3", "train.device=cpu"],
            "train.batch_size=16: 3 ranks cannot share its rows equally; use 15 or 18",
        ),
        (
            ["-m", "launcher.workers=1,2"],
            "launcher.workers=1,2: applies to the whole sweep; give one value",
        ),
        (
            ["-m", "hydra/launcher=basic", "launcher.workers=2"],
            "launcher.workers: hydra/launcher=basic does not read it; drop one of the two",
        ),
        (
            ["-m", "mode=solve", "solve.params=1M", "launcher.workers=2"],
            "launcher.workers: mode=solve runs in this process and does not read it; drop it",
        ),
        (
            ["-m", "sweep.resume=nowhere"],
            "sweep.resume=%/nowhere: no such folder; sweeps are below outputs/, as *_sweep",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_of_a_sweep_is_one_line(
    elman: Elman, tmp_path: Path, arguments: list[str], line: str
) -> None:
    ended = elman(*arguments)
    here = str(tmp_path)
    assert (ended.status, ended.errors) == (2, f"elman: error: {line.replace('%', here)}\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ok_runs_again_in_the_same_folder(
    elman_process: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = elman_process("-m", "train.steps=3,901,904", "launcher.workers=2")
    assert first.status == 1
    sweep = only_sweep(tmp_path)
    untouched = (sweep / json.loads((sweep / "sweep.json").read_text())["jobs"][0]["folder"]).stat()
    folders = sorted(path.name for path in sweep.glob("0*"))
    again = elman_process("-m", f"sweep.resume={sweep}")
    assert "1 of 3 jobs are ok already" in again.output.splitlines()
    assert again.status == 1
    table = [line.split("│")[-1].strip() for line in again.output.splitlines() if "│" in line]
    assert table == ["ok, never left warm-up", "refused", "nan"]
    now = sorted(path.name for path in sweep.glob("0*") if "earlier" not in path.name)
    assert now == folders
    assert (sweep / folders[0]).stat().st_mtime == untouched.st_mtime
    assert len(list((tmp_path / "outputs").glob("*/*_sweep"))) == 1
    other = elman_process("-m", f"sweep.resume={sweep}", "train.steps=3,4,5")
    assert other.status == 2
    assert "job 2 was 02_e88_tiny_" in other.errors


def test_a_preempted_job_goes_on_in_its_folder_on_a_gpu_of_its_own(
    tmp_path: Path, stub_environment: dict[str, str]
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "gpus.json").write_text('[{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]')
    environment = stub_environment | {
        nvml.PRETENDED: str(tmp_path / "gpus.json"),
        locks.FOLDER: str(tmp_path / "locks"),
        "STUB_NOTES": str(tmp_path / "notes"),
        "CUDA_VISIBLE_DEVICES": "1",
    }
    command = [sys.executable, "-m", "elman", "-m", "train.steps=908", "train.seed=1,2"]
    with Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as sweep:
        for seed in (1, 2):
            _preempt(tmp_path, seed)
        output, _ = sweep.communicate(timeout=180)
    assert sweep.returncode == 0, output
    assert output.count("preempted: queued again") == 2
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert [result["resumed"] for result in results] == [True, True]
    notes = [json.loads(line) for line in (tmp_path / "notes" / "1.jsonl").read_text().splitlines()]
    assert {note["CUDA_VISIBLE_DEVICES"] for note in notes} == {"GPU-b"}
    assert {note["CUDA_DEVICE_ORDER"] for note in notes} == {"PCI_BUS_ID"}


def _preempt(folder: Path, seed: int) -> None:
    """Send SIGUSR2 to a job once it trains."""
    deadline = time.monotonic() + 180
    notes = folder / "notes" / f"{seed}.jsonl"
    while not (notes.exists() and len(list(folder.rglob("waiting"))) >= seed):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(json.loads(notes.read_text().splitlines()[0])["pid"], signal.SIGUSR2)
