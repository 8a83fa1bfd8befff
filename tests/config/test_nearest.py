"""The name that a mistyped one most resembles."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import did_you_mean, nearest
from elman.cli.main import main
from elman.config import synonyms
from elman.config.suggestions import known_keys, meant_key


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("e75_100", ["e75_10min", "e75_100m_e2", "e75_100m"], "e75_100m"),
        ("solve.par", ["solve.over", "solve.depth", "solve.params"], "solve.params"),
        ("E88f", ["e88", "e88f_h32n16", "e88f_h4"], "e88f_h4"),
        ("quick", ["e88_nstate", "quick_test"], "quick_test"),
        ("mdoe", ["model", "mode"], "mode"),
        ("zebra", ["model", "mode"], None),
        ("", ["model", "mode"], None),
    ],
)
def test_a_name_that_begins_with_what_was_typed_comes_first(
    typed: str, known: list[str], meant: str | None
) -> None:
    assert nearest(typed, known) == meant
    assert did_you_mean(typed, known) == (f" (did you mean {meant}?)" if meant else "")


MEANT = {
    "generate.tokens": "generate.max_bytes",
    "generate.max_new_tokens": "generate.max_bytes",
    "generate.temp": "generate.temperature",
    "train.lr": "optim.lr",
    "train.learning_rate": "optim.lr",
    "optim.learning_rate": "optim.lr",
    "train.batch": "train.batch_size",
    "bs": "train.batch_size",
    "train.minute": "train.minutes",
    "train.max_steps": "train.steps",
    "seq_len": "train.chunk_size",
    "model.d_model": "model.dim",
    "model.hidden_size": "model.dim",
    "steps": "train.steps",
    "lr": "optim.lr",
    "trian.steps": "train.steps",
    "data.pth": "data.path",
    "train.gpus": "launcher.gpus",
    "data.seed": "train.seed",
    "optim.wd": "optim.weight_decay",
}


@pytest.mark.parametrize("typed", MEANT)
def test_a_key_is_suggested_by_its_meaning(typed: str) -> None:
    assert meant_key(typed, known_keys()) == (MEANT[typed], True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("optimizer=adamw", "did you mean optim=adamw?"),
        ("model.layers=3", "(did you mean model.depth=3?)"),
        ("model=xlstm", "did you mean model=slstm?"),
        ("model/e88_ablation=e88b_nonorm_1792x20", "did you mean model=e88b_nonorm_1792x20?"),
    ],
)
def test_a_command_is_answered_with_what_was_meant(
    typed: str, meant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    assert meant in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nix.txt", "; name a file that exists"),
        ("a.txt", "; name a file that exists"),
        ("my_txt.txt", "(did you mean my_text.txt?)"),
        ("my_text.md", "(did you mean my_text.txt?)"),
        ("book.txt", "(did you mean book.txt.gz?)"),
    ],
)
def test_a_missing_file_is_answered_with_a_name_like_it(
    typed: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("archive.txt", "book.txt.gz", "constraints.txt", "my_text.txt", "run1.txt"):
        (tmp_path / name).write_text("text")
    assert main([f"data.path={tmp_path / typed}"]) == 2
    assert said in capfd.readouterr().err


def test_a_file_given_as_a_group_is_answered_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    assert main(["data=book.txt"]) == 2
    assert "did you mean data.path=book.txt?" in capfd.readouterr().err


@pytest.mark.parametrize("typed", ["log.note", "train.color", "generate.zebra", "foo.bar", "x"])
def test_nothing_is_suggested_where_nothing_is_meant(typed: str) -> None:
    assert meant_key(typed, known_keys()) is None


def test_another_unit_is_suggested_without_the_value(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train.epochs=3"]) == 2
    said = capfd.readouterr().err
    assert said == (
        "elman: error: train.epochs=3: no such setting; did you mean train.minutes=...?\n"
    )


def test_every_suggestion_exists() -> None:
    keys = set(known_keys())
    tables = (synonyms.KEYS, synonyms.KEYS_OF_ANOTHER_UNIT)
    assert {key for table in tables for meant in table.values() for key in meant} <= keys
    names = {key.rpartition(".")[2] for key in keys}
    assert not {word for word in synonyms.KEYS if word in names and word not in _AMBIGUOUS}


_AMBIGUOUS = {"gpus", "workers", "context", "block_size", "length"}
