"""``mode=solve`` and ``mode=bench`` on several GPUs: memory of each rank, and what fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elman.bench.rank_memory import RankMemory, rank_memory
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.training.memory.quick import quick_memory

SMALL = ["model=e1", "model.dim=256", "model.depth=3", "train.batch_size=6"]


def test_a_rank_holds_its_part_of_the_state_and_computes_its_part_of_the_batch() -> None:
    config = compose_config(SMALL)
    alone, four = rank_memory(config, 1), rank_memory(config, 4)
    assert alone.whole == alone.sharded == quick_memory(config)
    assert four.rows == 2
    assert four.whole == quick_memory(compose_config([*SMALL, "train.batch_size=2"]))
    counts = [
        sum(
            p.numel()
            for p in build_model(compose_config([*SMALL, n]).model, device="meta").parameters()
        )
        for n in ("model.depth=1", "model.depth=2", "model.depth=3")
    ]
    layer = counts[1] - counts[0]
    largest = max(layer, counts[0] - layer)
    assert four.whole - four.sharded == 16 * (counts[2] - -(-counts[2] // 4)) - 12 * largest


def test_what_fits_is_the_largest_size_and_the_next_one_does_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    typed = ["model=e1", "train.batch_size=8", "train.chunk_size=64", "kernels.backend=reference"]
    sized = [*typed, "solve.over=depth", "solve.gpu_gb=2"]
    assert main(["mode=solve", *sized, "solve.ranks=4"]) == 0
    output = capfd.readouterr().out
    assert "largest depth that fits" in output
    command = re.search(r"model\.depth=(\d+) launcher\.gpus_per_job=4 parallel\.shard=full", output)
    assert command is not None, output
    here, next_ = (
        rank_memory(compose_config([*typed, f"model.depth={int(command[1]) + more}"]), 4)
        for more in (0, 1)
    )
    assert (here.fits(2), next_.fits(2)) == ("full", None)
    assert RankMemory(1, 8, here.sharded, here.sharded).fits(2) == "none"


def test_a_size_that_never_fits_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["mode=solve", "model=e1", "solve.ranks=2", "solve.gpu_gb=0.1"]) == 2
    line = capfd.readouterr().err
    assert line.startswith("elman: error: solve.gpu_gb=0.1: no dim of e1 fits into 2 such GPUs at ")


def test_a_measured_step_says_what_it_takes_on_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["model=e1", "model.dim=128", "model.depth=2", "bench.backends=reference"]
    bench = ["mode=bench", "bench.level=step", "bench.rounds=1", "bench.chunk_size=8"]
    assert main([*bench, *small, "bench.ranks=4"]) == 0
    (path,) = tmp_path.rglob("bench.json")
    (row,) = json.loads(path.read_text())["rows"]
    assert row["ranks"]["gpus"] == 4
    assert row["ranks"]["whole_bytes"] == 16 * row["params"] + row["peak_bytes"]
    assert row["ranks"]["sharded_bytes"] < row["ranks"]["whole_bytes"]
    assert "a step on each of 4 GPUs takes" in capfd.readouterr().out
