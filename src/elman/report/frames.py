"""A run or a sweep as columns: what ``pandas.DataFrame`` takes, with units and definitions.

Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.evaluation.fields import Described, described
from elman.evaluation.records import KINDS
from elman.evaluation.result import RunResult
from elman.report.comparison.runs import DAMAGED, TRIAL, Run, is_run, task_of
from elman.report.comparison.sources import UNREADABLE, Source, load_sources
from elman.report.comparison.tuned import tuning_of
from elman.report.metrics_file import read_records
from elman.sections.training import BYTES
from elman.tuning.trials import Tuned

_RESULT = dict(described(RunResult))
_NOT_SHOWN = {"definitions", "digests"}
# A table of runs has the numbers of their results, and these facts.
_COMPARED = {name for name, field in _RESULT.items() if field.is_number}
_COMPARED |= {"config_hash", "started", "ended", "backend", "precision", "seconds"}
_COMPARED |= {"loss_steps", "val_tokens", "val_step"}
# What counts tokens or positions, in a run where these are no bytes.
_COUNTED = {"tokens", "tok_s", "chunk_size", "flops_per_byte"}
# Settings that it has as columns of its own.
_NAMED = {"model", "train.seed"}
_OF_A_JOB = {
    "job": Described("its number in the sweep, from 1"),
    "model": Described("name of the model"),
    "seed": Described("train.seed"),
    "status": Described("how it ended, or that it has not, in a word or two"),
    "reason": Described("why it did not end well; empty if it did"),
    "folder": Described("its run folder, for elman.read_run"),
}
_OF_A_TUNED_JOB = {
    "arm": Described("what is compared: a model with the settings that distinguish it"),
    "phase": Described(
        "trial, or a run at full budget with a fresh seed: best, the arm's best setting; second, "
        "its second best; common, its published one"
    ),
    "common": Described("the best setting is the published one"),
    "trial": Described("number among the trials of the arm, from 1; null of other phases"),
}
_OF_AN_ARM = {
    "arm": _OF_A_TUNED_JOB["arm"],
    "model": _OF_A_JOB["model"],
    "params": _RESULT["params"],
    "family": Described("of a ladder: name of the model without its size"),
    "size": Described("of a ladder: size in the name of the model, in parameters"),
    "width": Described("of a ladder: model.dim"),
    "predicted": Described("score of the largest size as predicted before it was trained"),
    "predicted_low": Described("lower end of the interval of that prediction"),
    "predicted_high": Described("upper end of the interval of that prediction"),
}


class Facts(dict[str, Any]):
    """Values by name. ``pandas.Series(facts)`` takes them as they are.

    Attributes:
        units: The unit of each name that has one.
        definitions: The definition of each name; a setting has none.
    """

    def __init__(self, values: Mapping[str, Any], known: Mapping[str, Described]) -> None:
        super().__init__(values)
        fields = {name: known[name] for name in self if name in known}
        self.units = {name: field.unit for name, field in fields.items() if field.unit}
        self.definitions = {name: field.text for name, field in fields.items()}


class Columns(Facts):
    """Lists of equal length by name. ``pandas.DataFrame(columns)`` takes them as they are."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The same, as one dict for each row."""
        return [dict(zip(self, row, strict=True)) for row in zip(*self.values(), strict=True)]


@dataclass(frozen=True)
class RunData:
    """A run, as its folder records it; a run that goes on is read as far as it came.

    Args:
        folder: Its folder.
        model: Name of its model.
        seed: Its ``train.seed``; None if it is not known.
        status: How it ended, or that it runs, in a word or two.
        reason: Why it did not end well; empty if it did.
        settings: Every setting by its dotted key.
        result: Every field of ``result.json`` by its dotted name; None if there is none yet.
        sessions: One row for each start or resume.
        steps: One row for each optimizer step.
        windows: One row for each window of steps.
        validations: One row for each validation.
        tests: Of a task: one row for its test.
        problems: What could not be read, one line each.
    """

    folder: Path
    model: str
    seed: int | None
    status: str
    reason: str
    settings: Facts
    result: Facts | None
    sessions: Columns
    steps: Columns
    windows: Columns
    validations: Columns
    tests: Columns
    problems: tuple[str, ...]


@dataclass(frozen=True)
class SweepData:
    """A sweep, as its folder records it; one that goes on is read as far as it came.

    Args:
        folder: Its folder.
        command: What was typed.
        running: Whether it runs now.
        runs: One row for each job, with its swept settings and the numbers of its result. Of a
            tuned sweep only runs at full budget.
        trials: Of a tuned sweep: one row for each trial, in the same columns.
        arms: Of a tuned sweep: one row for each arm; of a ladder with its family and prediction.
        score: Of a tuned sweep: the column by which settings are chosen, else None.
        goal: Of a tuned sweep: ``minimize`` or ``maximize``, else None.
        problems: What could not be read, one line each.
    """

    folder: Path
    command: str
    running: bool
    runs: Columns
    trials: Columns
    arms: Columns
    score: str | None
    goal: str | None
    problems: tuple[str, ...]


def read_run(folder: str | os.PathLike[str]) -> RunData:
    """Return what a run folder records, without torch.

    Raises:
        UserError: there is no such folder, it is not that of a run, or its result is damaged.
    """
    source = _source(folder, is_sweep=False)
    (run,) = source.runs
    if run.status == DAMAGED:
        raise UserError(f"{source.folder}: {run.reason}")
    kinds, _ = read_records(source.folder)
    tables = {kind: _of_kind(kind, rows, run) for kind, rows in kinds.items()}
    return RunData(
        folder=source.folder,
        model=run.model,
        seed=run.seed,
        status=str(run.status),
        reason=run.reason,
        settings=Facts(dict(_flat(run.config or {})), {}),
        result=_result(run),
        sessions=tables["session"],
        steps=tables["step"],
        windows=tables["window"],
        validations=tables["validation"],
        tests=tables["test"],
        problems=run.problems,
    )


def read_sweep(folder: str | os.PathLike[str]) -> SweepData:
    """Return what the folder of a sweep records, without torch.

    A damaged run has a row that says so.

    Raises:
        UserError: there is no such folder, it is not that of a sweep of training runs, or
            ``sweep.json`` is damaged.
    """
    source = _source(folder, is_sweep=True)
    tuned = tuning_of(source)
    if UNREADABLE in source.problems or isinstance(tuned, str):
        raise UserError(f"{source.folder}: {tuned or UNREADABLE}")
    runs = [run for run in source.runs if not _is_trial(run)]
    return SweepData(
        folder=source.folder,
        command=source.command,
        running=source.living,
        runs=_of_runs(runs, tuned),
        trials=_of_runs([run for run in source.runs if _is_trial(run)], tuned),
        arms=_of_arms(tuned),
        score=tuned.score if tuned else None,
        goal=tuned.goal if tuned else None,
        problems=source.problems,
    )


def _source(folder: str | os.PathLike[str], *, is_sweep: bool) -> Source:
    """Return the one run or sweep in a folder."""
    if not isinstance(folder, str | os.PathLike):
        raise UserError(
            f"folder={folder!r}: expected the path of a folder; type it as a text or a pathlib.Path"
        )
    place = Path(folder).expanduser().absolute()
    sources = load_sources([place], key="folder")
    if sources[0].folder == place and sources[0].is_sweep:
        kind, reader = "a sweep", "elman.read_sweep"
    elif is_run(place):
        kind, reader = "one run", "elman.read_run"
    else:
        raise UserError(f"folder={place}: holds several runs or sweeps; name one of them")
    if sources[0].is_sweep != is_sweep:
        raise UserError(f"folder={place}: {kind}; read it with {reader}")
    return sources[0]


def _is_trial(run: Run) -> bool:
    return run.tuning is not None and run.tuning.phase == TRIAL


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _result(run: Run) -> Facts | None:
    if run.recorded is None:
        return None
    values = _of_result(run.recorded)
    return Facts(values, _counted(_known(values), [run]))


def _of_result(result: RunResult) -> dict[str, Any]:
    """Return every field of a result by its dotted name."""
    return dict(_flat(result.model_dump(mode="json", exclude=_NOT_SHOWN)))


def _known(names: Iterable[str]) -> dict[str, Described]:
    """Return what is known of names of results; a part of a field has that field's definition."""
    known = {}
    for name in names:
        field = name
        while field not in _RESULT and "." in field:
            field = field.rpartition(".")[0]
        if field in _RESULT:
            known[name] = _RESULT[field]
    return known


def _counted(known: Mapping[str, Described], runs: Sequence[Run]) -> dict[str, Described]:
    """Return the same with the units of these runs, which may count something else than bytes.

    A column in which some runs have bytes and others have tokens has no unit.
    """
    kinds = {_counts(run) for run in runs}
    fields = dict(known)
    for name in _COUNTED & known.keys() if kinds != {"byte"} else ():
        unit = (fields[name].unit or "").replace("byte", min(kinds)) if len(kinds) == 1 else None
        fields[name] = replace(fields[name], unit=unit)
    return fields


def _counts(run: Run) -> str:
    """Return what a run reads: bytes, tokens, or positions of a task."""
    if task_of(run):
        return "position"
    if run.recorded is not None:
        return "byte" if run.recorded.data.tokenizer is None else "token"
    return "byte" if run.section("data").get("tokenizer", BYTES) == BYTES else "token"


def _columns(
    rows: Sequence[Mapping[str, Any]], names: Iterable[str], known: Mapping[str, Described]
) -> Columns:
    """Return rows as columns: first those with ``names``, then what else a row has."""
    every = dict.fromkeys([*names, *(name for row in rows for name in row)])
    return Columns({name: [row.get(name) for row in rows] for name in every}, known)


def _of_kind(kind: str, rows: Sequence[Mapping[str, Any]], run: Run) -> Columns:
    known = dict(described(KINDS[kind])) if kind in KINDS else {}
    if kind == "test":
        text = "share of right answers on data.test_rows fixed rows of this length"
        known |= {name: Described(text, "share") for row in rows for name in row if " at " in name}
    return _columns(rows, known, _counted(known, [run]))


def _of_runs(runs: Sequence[Run], tuned: Tuned | None) -> Columns:
    """Return one row for each run: what it is, its settings that differ, and its numbers."""
    names = _OF_A_JOB | (_OF_A_TUNED_JOB if tuned else {})
    swept = dict.fromkeys(key for run in runs for key in _swept(run))
    rows = [
        _job(run) | _swept(run) | (_compared(run.recorded) if run.recorded is not None else {})
        for run in runs
    ]
    # A sweep without any result has the same columns.
    order = [*names, *swept, *_compared(RunResult(status=RunStatus.OK))]
    every = {*order, *(name for row in rows for name in row)} - swept.keys()
    return _columns(rows, order, _counted(_known(every) | names, runs))


def _job(run: Run) -> dict[str, Any]:
    about = {
        "job": run.job,
        "model": run.model,
        "seed": run.seed,
        "status": str(run.status),
        "reason": run.reason,
        "folder": None if run.folder is None else str(run.folder),
    }
    if run.tuning is None:
        return about
    tuning = run.tuning
    more = {"arm": tuning.arm, "phase": tuning.phase, "common": tuning.common}
    return about | more | {"trial": tuning.trial}


def _swept(run: Run) -> dict[str, Any]:
    """Return the settings of a run that its sweep swept or searched for."""
    settings = dict(_flat(run.config or {}))
    texts = dict(text.partition("=")[::2] for text in run.swept)
    values = {key: settings.get(key, _typed(text)) for key, text in texts.items()}
    values |= run.tuning.values if run.tuning is not None else {}
    return {key: value for key, value in values.items() if key not in _NAMED}


def _typed(text: str) -> Any:
    """Return the number that a text is, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _compared(result: RunResult) -> dict[str, Any]:
    """Return the numbers of a result, and the facts that a comparison needs."""
    values = _of_result(result).items()
    return {name: value for name, value in values if name.partition(".")[0] in _COMPARED}


def _of_arms(tuned: Tuned | None) -> Columns:
    rows = []
    for arm in tuned.arms if tuned else ():
        row = {name: getattr(arm, name) for name in ("model", "params", "size", "width")}
        row |= {"arm": arm.label, "family": arm.family or None}
        if tuned is not None and (said := tuned.predictions.get(arm.label)) is not None:
            row |= {"predicted": said.score, "predicted_low": said.low, "predicted_high": said.high}
        rows.append(row | {f"published.{key}": value for key, value in arm.published.items()})
    return _columns(rows, _OF_AN_ARM, _OF_AN_ARM)
