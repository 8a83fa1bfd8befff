"""Measures the parts of a probe, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elman.base.exit_status import RunStatus
from elman.evaluation.fields import Part
from elman.probe import ablation, loss, memory, recall, state
from elman.probe.chunks import NotFiniteError, Reader, Text
from elman.probe.kept import KeptParts
from elman.probe.result import ProbeResult
from elman.sections.probe import CHANGES, ProbeChange, ProbePart


@dataclass(frozen=True)
class Subject:
    """What is probed.

    Args:
        reader: The model.
        text: What it reads.
        seed: Seed of random keys and values.
        changes: How bytes are changed.
    """

    reader: Reader
    text: Text
    seed: int
    changes: Sequence[ProbeChange] = CHANGES


@dataclass(frozen=True)
class Measurement:
    """How a part is measured.

    Args:
        run: Measures it.
        work: Says how many positions that reads, for the progress.
    """

    run: Callable[[Subject], Part]
    work: Callable[[Subject], int]


MEASUREMENTS: dict[ProbePart, Measurement] = {
    "loss": Measurement(
        lambda one: loss.measure(one.reader, one.text),
        lambda one: loss.work(one.text.length, one.text.documents),
    ),
    "memory": Measurement(
        lambda one: memory.measure(one.reader, one.text, one.changes),
        lambda one: memory.work(
            one.reader.trained, one.text.length, one.text.documents, len(one.changes)
        ),
    ),
    "recall": Measurement(
        lambda one: recall.measure(one.reader, one.text, one.seed),
        lambda one: recall.work(one.text.length, one.text.documents),
    ),
    "state": Measurement(
        lambda one: state.measure(one.reader, one.text),
        lambda one: one.text.length * one.text.documents,
    ),
    "ablation": Measurement(
        lambda one: ablation.measure(one.reader, one.text),
        lambda one: ablation.work(
            one.reader.trained,
            one.text.length,
            one.text.documents,
            len(one.reader.model.layers),
        ),
    ),
}


def measure(
    subject: Subject,
    parts: Sequence[ProbePart],
    result: ProbeResult,
    kept: KeptParts,
    begin: Callable[[str], None],
    show: Callable[[int, int], None],
) -> None:
    """Measure parts into a result; what an earlier probe kept of them is taken from there.

    Args:
        subject: What is probed.
        parts: What is measured.
        result: Gets the numbers, times and problems.
        kept: Gets each part when it is measured.
        begin: Called with the name of a part that begins.
        show: Called with how much of it is done, and of how much.
    """
    for part in parts:
        record = kept.get(part)
        if record is None:
            begin(part)
            record = _measured(subject, part, show)
            kept.put(part, record)
        result.seconds[part] = record["seconds"]
        if record["problem"] is None:
            field = ProbeResult.model_validate({part: record["numbers"]}, strict=False)
            setattr(result, part, getattr(field, part))
        else:
            result.problems[part] = record["problem"]
            result.status = RunStatus.NAN


def _measured(
    subject: Subject, part: ProbePart, show: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return the numbers of a part, or the problem with it, and the time that it took."""
    began, done, total = time.monotonic(), 0, MEASUREMENTS[part].work(subject)

    def progress(positions: int) -> None:
        nonlocal done
        done += positions
        show(min(done, total), total)

    subject.reader.progress = progress
    numbers, problem = None, None
    try:
        numbers = MEASUREMENTS[part].run(subject).model_dump()
    except NotFiniteError as error:
        problem = str(error)
    seconds = time.monotonic() - began
    return {"numbers": numbers, "problem": problem, "seconds": seconds}
