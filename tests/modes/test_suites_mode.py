"""``mode=suites`` lists every suite and explains one; ``benchmark=...`` runs to its table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from elman.config.suites import load_suite, suite_names

Elman = Callable[..., tuple[int, str, str]]


def rows(output: str, columns: int) -> list[list[str]]:
    """Return the cells of every table of so many columns."""
    lines = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    return [line for line in lines if len(line) == columns]


def test_every_suite_is_listed(elman_here: Elman, tmp_path: Path) -> None:
    status, output, errors = elman_here("mode=suites")
    assert (status, errors) == (0, "")
    found = rows(output, 6)
    assert [row[0] for row in found] == suite_names()
    by_name = {row[0]: row for row in found}
    assert by_name["e75_100m"][1:4] == ["7", "10 min", "1.2"]
    assert by_name["e4_50m"][1:4] == ["7", "2,000 steps", "-"]
    assert by_name["quick_test"][5] == load_suite("quick_test").citation
    assert f"{len(found)} suites; elman mode=suites benchmark=<name> explains one" in output
    assert list(tmp_path.iterdir()) == []


def test_one_suite_is_explained(elman_here: Elman, tmp_path: Path) -> None:
    status, output, errors = elman_here("mode=suites", "benchmark=e4_50m")
    assert (status, errors) == (0, "")
    text = " ".join(output.split())
    assert load_suite("e4_50m").description in text
    assert (
        "optim=schedulefree_999 train.steps=2000 train.batch_size=32 train.chunk_size=512" in text
    )
    assert "tuning every model at the published rate 3e-4, tuned for none: see tune=rates" in text
    assert "48,742,912 to 53,368,832 (9% apart); claims one size" in text
    runs = {row[0]: row for row in rows(output, 4)}
    assert runs["model=e0_512x19_e1.5_legacy"][1:3] == ["48,742,912", "cuda"]
    assert runs["model=mamba2n64_672x18_legacy"][2] == "mamba-ssm"
    figures = [row[:8] for row in rows(output, 9)]
    e1 = ["49,714,944", "1.575", "44,100", "2,000", "5.05 GB"]
    assert ["e1_512x21_e1.5_legacy", "e4_comparison", "2026-01-05", *e1] in figures
    missing = ["49,715,112", "1.668", "20,300", "2,000", "12.44 GB"]
    assert ["E2 512x21 e1.5", "e4_comparison", "2026-01-05", *missing] in figures
    assert "loss: mean of the last 100 steps; padding masked; LayerNorm wrapper" in text
    assert list(tmp_path.iterdir()) == []


def test_neither_needs_torch(tmp_path: Path) -> None:
    code = "import sys; from elman.cli.main import main; main(['mode=suites'] + sys.argv[1:]); "
    code += "print('torch' in sys.modules)"
    for arguments in ([], ["benchmark=100m_10min"]):
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert ended.stdout.splitlines()[-1] == "False", ended.stderr


def test_a_suite_whose_runs_choose_their_tasks_is_explained(elman_here: Elman) -> None:
    status, output, errors = elman_here("mode=suites", "benchmark=expressivity_quick")
    assert (status, errors) == (0, "")
    assert "1e-3 (data=parity); 3e-3 (data=s3)" in " ".join(output.split())


def test_suites_of_the_users_own_are_listed_and_explained(
    elman_here: Elman, tmp_path: Path
) -> None:
    own = tmp_path / "it's mine" / "benchmark"
    own.mkdir(parents=True)
    section = "title: mine, source: my notebook, runs: [[model=e1], [optim.lr=1e-3], [model=lost]]"
    (own / "own.yaml").write_text(f"# @package _global_\nbenchmark: {{{section}}}\n")
    _, output, _ = elman_here("--config-dir", "it's mine", "mode=suites")
    listed = {row[0]: row for row in rows(output, 6)}
    assert listed["own"][1:] == ["3", "1 min", "-", "mine", "my notebook"]
    status, output, _ = elman_here("--config-dir", "it's mine", "mode=suites", "benchmark=own")
    assert status == 0
    found = [row[:2] for row in rows(output, 4)]
    assert found == [["model=e1", "114,890,880"], ["optim.lr=1e-3", "-"], ["model=lost", "-"]]
    assert "no such model" in output


def test_a_suite_runs_from_start_to_table_at_reduced_size(
    elman_here: Elman, tmp_path: Path, text_file: Path
) -> None:
    status, output, _ = elman_here(
        "benchmark=quick_test",
        "hydra/launcher=basic",
        "kernels.backend=reference",
        "model.dim=128",
        "model.depth=1",
        "train.steps=3",
        "train.batch_size=2",
        "train.chunk_size=16",
        "data.val_sample=64",
        "data.val_window=16",
        f"data.path={text_file}",
        "log.tensorboard=false",
    )
    assert status == 0
    results = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("result.json"))]
    models = ["mamba2_896x20_legacy", "e75h8n24"]
    assert [result["model"] for result in results] == models
    assert [(result["status"], result["slow_path"]) for result in results] == [("ok", True)] * 2
    table = [line for line in output.splitlines() if "│" in line and "ok, slow path" in line]
    assert len(table) == 2
    for line, model, result in zip(table, models, results, strict=True):
        assert model in line
        assert f"{result['params']:,}" in line
    (record,) = tmp_path.rglob("sweep.json")
    assert json.loads(record.read_text())["benchmark"] == "quick_test"
