"""Reports show runs of subword tokens per byte, and compare them by bits per byte."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from elman.base.exit_status import RunStatus
from elman.evaluation.result import DataRead, RunResult
from elman.report.comparison.deciding import VAL_BPB, deciding
from elman.report.comparison.per_byte import bytes_per_token
from elman.report.comparison.rows import Row, step_us
from elman.report.comparison.runs import Run, read_run

TOKENIZER = {"name": "bpe", "vocab_size": 300, "sha256": "ab" * 32, "bytes_per_token": 3.9}
CONFIG = "model: {name: e1, depth: 1}\ndata: {}\noptim: {}\ntrain: {batch_size: 2, steps: 2000}\n"


def run(folder: Path, tokenizer: dict | None) -> Run:
    """Return a run as a report reads it; a token stands for 4 bytes."""
    each = 1.0 if tokenizer is None else 4.0
    result = RunResult(
        status=RunStatus.OK,
        model="e1",
        params=10,
        steps=2000,
        tokens=4000,
        loss=2.0 * each,
        loss_steps=100,
        bpb=2.0 / math.log(2),
        val_bpb=2.5,
        tok_s=1000.0,
        flops_per_byte=8.0,
        data=DataRead(bytes=100, sha256="0", tokenizer=tokenizer),
    )
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result.tree()))
    (folder / "config.yaml").write_text(CONFIG)
    lines = [
        {"kind": "session", "step": 0, "batch_size": 2, "chunk_size": 1, "flops_per_byte": 8.0},
        *({"kind": "step", "step": n, "loss": 2.0 * each, "lr": 1.0} for n in range(1, 2001)),
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return read_run(folder)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    return run(tmp_path / "bytes", None), run(tmp_path / "bpe", TOKENIZER)


def test_a_run_of_tokens_is_read_per_byte(runs) -> None:
    plain, tokens = runs
    assert tokens.bytes_per_token == pytest.approx(4)
    assert tokens.result.loss == pytest.approx(plain.result.loss)
    assert tokens.result.tok_s == pytest.approx(4 * plain.result.tok_s)
    assert tokens.result.tokens == 4 * plain.result.tokens
    assert tokens.result.flops_per_byte == pytest.approx(2.0)
    assert tokens.metrics.losses == pytest.approx(plain.metrics.losses)
    assert tokens.metrics.bytes_at(tokens.metrics.steps, 1)[-1] == pytest.approx(16000)
    assert tokens.metrics.rates == {"flops_per_byte": pytest.approx(2.0)}
    assert step_us(tokens) == pytest.approx(step_us(plain))
    assert tokens.recorded.loss == pytest.approx(8.0)
    assert plain.result is plain.recorded


def test_a_run_without_a_loss_has_the_bytes_of_its_text(runs) -> None:
    result = runs[1].recorded.model_copy(update={"loss": None})
    assert bytes_per_token(result) == 3.9
    assert bytes_per_token(None) == 1.0


def test_bits_per_byte_decide_between_different_tokens(runs) -> None:
    rows = [Row("e1", (one,), label=one.name) for one in runs]
    assert deciding(rows).number is VAL_BPB
    assert "of different tokens" in deciding(rows).why
    assert deciding(rows[:1]).number is not VAL_BPB
