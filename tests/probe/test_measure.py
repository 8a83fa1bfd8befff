"""The parts of a probe together: what is not finite is named, and what is measured is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elman.base.exit_status import RunStatus
from elman.probe.kept import KeptParts
from elman.probe.measure import MEASUREMENTS, Subject, measure
from elman.probe.result import ProbeResult
from elman.sections.probe import PARTS, ProbePart
from tests.probe.hand_set import Breaks, Delay, letters, model_of, reader_of, text_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of this test alone."""
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def probed(subject: Subject, kept: KeptParts, begin: Callable[[str], None]) -> ProbeResult:
    """Measure the loss of a model."""
    result = ProbeResult(status=RunStatus.OK)
    measure(subject, ["loss"], result, kept, begin, lambda done, total: None)
    return result


def test_a_state_that_is_not_finite_is_named_with_its_layer_and_place(
    tmp_path: Path, cache: Path
) -> None:
    text = text_of(tmp_path, letters(200, documents=2))
    subject = Subject(reader_of(model_of(Delay(2), Breaks(after=100)), positions=40), text, 1)
    result = probed(subject, KeptParts({}), lambda part: None)
    assert result.status == RunStatus.NAN
    assert result.loss is None
    assert result.problems == {"loss": "layer 1: state h of row 0 is not finite after 100 bytes"}


def test_a_part_that_was_measured_before_a_kill_is_not_measured_again(
    tmp_path: Path, cache: Path
) -> None:
    subject = Subject(reader_of(model_of(Delay(2))), text_of(tmp_path, letters(200, 2)), 1)
    begun: list[str] = []
    first = probed(subject, KeptParts({"run": 1}), begun.append)
    again = probed(subject, KeptParts({"run": 1}), begun.append)  # forget() was never called
    assert begun == ["loss"]
    assert again.loss == first.loss
    probed(subject, KeptParts({"run": 2}), begun.append)
    assert begun == ["loss", "loss"]
    done = KeptParts({"run": 1})
    done.forget()
    probed(subject, KeptParts({"run": 1}), begun.append)
    assert begun == ["loss", "loss", "loss"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("length", [64, 1500])
def test_a_call_holds_no_more_than_the_limit_however_long_a_document_is(
    tmp_path: Path, part: ProbePart, length: int
) -> None:
    read: list[int] = []
    reader = reader_of(model_of(Delay(2), Delay(3)), trained=32, positions=512)
    reader.progress = read.append
    subject = Subject(reader, text_of(tmp_path, letters(length, documents=2)), seed=1)
    chosen = MEASUREMENTS[part]
    chosen.run(subject)
    assert max(read) <= 512
    assert sum(read) == chosen.work(subject)


def test_a_text_of_the_same_name_and_length_has_another_fingerprint_if_its_bytes_are_others(
    tmp_path: Path,
) -> None:
    first, second = letters(200, 2)
    prints = [
        text_of(tmp_path, rows).fingerprint()
        for rows in ([first, second], [first, second[:-1] + b"."], [first, second])
    ]
    assert prints[0] != prints[1]
    assert prints[0] == prints[2]
