"""Reports show runs of subword tokens per byte, and compare them by bits per byte."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from elman.base.exit_status import RunStatus
from elman.evaluation.result import DataRead, RunResult
from elman.report.comparison.audit.finding import Subject
from elman.report.comparison.audit.settings import order, tokens
from elman.report.comparison.audit.sizes import params
from elman.report.comparison.columns import shown_columns, step_us
from elman.report.comparison.deciding import LOSS, SPEED, VAL_BPB, deciding, deciding_for_all
from elman.report.comparison.per_byte import bytes_per_token
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run, read_run
from elman.report.comparison.tasks import Tasks
from elman.report.comparison.wins import who_wins
from elman.report.comparison.wins_text import sentence

TOKENIZER = {"name": "bpe", "vocab_size": 300, "sha256": "ab" * 32, "bytes_per_token": 3.9}
CONFIG = "model: {name: e1, depth: 1, dim: 2, vocab_size: VOCAB}\ndata: {}\noptim: {}\n"
TRAIN = "train: {batch_size: 2, chunk_size: 1, steps: 2000}\n"


def run(folder: Path, tokenizer: dict | None) -> Run:
    """Return a run as a report reads it; a token stands for 4 bytes."""
    each = 1.0 if tokenizer is None else 4.0
    result = RunResult(
        status=RunStatus.OK,
        model="e1",
        params=1000 if tokenizer is None else 1088,
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
    tokens = 256 if tokenizer is None else 300
    (folder / "config.yaml").write_text(CONFIG.replace("VOCAB", str(tokens)) + TRAIN)
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
    assert deciding_for_all(rows).number is VAL_BPB
    assert deciding_for_all(rows[:1]).number is not VAL_BPB


def test_losses_of_different_tokens_are_not_compared(runs) -> None:
    rows = [Row("e1", (one,), label=one.name) for one in runs]
    (group,) = who_wins(rows).groups
    (other,) = group.challengers
    losses = [line for line in other.lines if line.number is LOSS]
    assert {line.why_not for line in losses} == {"not compared between different tokens"}
    assert "loss not compared between different tokens" in sentence(group, other)
    assert other.line(SPEED).number.name == "bytes/s"
    assert [column.head for column in shown_columns(rows, ())].count("bytes/s") == 1
    assert "tok/s" in [column.head for column in shown_columns(rows[:1], ())]


def test_without_bits_per_byte_nothing_decides_between_different_tokens(runs) -> None:
    result = runs[1].result.model_copy(update={"val_bpb": None})
    rows = [Row("e1", (one,)) for one in (runs[0], replace(runs[1], result=result))]
    (group,) = who_wins(rows).groups
    assert group.by.number is VAL_BPB
    assert group.decisive(group.challengers[0]).difference is None


def test_an_audit_says_what_the_tokens_are_and_what_a_size_is_without_them(runs) -> None:
    rows = tuple(Row("e1", (one,), label=one.name) for one in runs)
    subject = Subject((), rows, (), Tasks(), None)
    assert tokens(subject).detail == "bytes (bytes); bpe of 300 (abababab), 3.9 bytes each (bpe)"
    assert tokens(subject).state == "not equal"
    sizes = "1,000 (bytes) to 1,088 (bpe), 8.8% apart; without the tokens' embedding 488"
    assert params(subject).detail == sizes
    assert "chunk 1 tokens" in order(subject).detail


def test_an_audit_tells_tokens_of_one_name_and_size_apart_by_their_hash(tmp_path) -> None:
    file = TOKENIZER | {"name": "tokenizer.json"}
    kinds = {"first": TOKENIZER, "same": file, "other": file | {"sha256": "cd" * 32}}
    found = {name: run(tmp_path / name, kind) for name, kind in kinds.items()}

    def audited(*names: str) -> tuple[str, str]:
        rows = tuple(Row("e1", (found[name],), label=name) for name in names)
        finding = tokens(Subject((), rows, (), Tasks(), None))
        return finding.state, finding.detail

    assert audited("first", "same") == ("held equal", "bpe of 300 (abababab), 3.9 bytes each")
    assert audited("same", "other") == (
        "not equal",
        "tokenizer.json of 300 (abababab), 3.9 bytes each (same); "
        "tokenizer.json of 300 (cdcdcdcd), 3.9 bytes each (other)",
    )
