"""The jobs of a tuned sweep: its trials, and then whole runs of the settings that they found.

What comes next follows from what is recorded (:mod:`elman.tuning.schedule`), so a sweep that was
killed goes on where it was. A trial's point stands in Optuna's journal before its job is recorded,
and the job is recorded before it can start.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from elman.base.errors import UserError
from elman.base.units import duration
from elman.config.keys import key_of, merged
from elman.config.run_config import RunConfig
from elman.launchers.job import SweepJob, wants_gpu
from elman.launchers.places import count_places
from elman.runs.folder import run_name
from elman.runs.recorded_job import RecordedJob, record_jobs, recorded_jobs
from elman.runs.state import NOT_STARTED, read_run_result
from elman.sections.budget import typed_limit
from elman.sections.launching import LauncherConfig
from elman.sections.tune import Value
from elman.sweeps.composing import JobComposer
from elman.sweeps.job_list import in_sweep
from elman.sweeps.sizes import count_params
from elman.sweeps.source import GrowingRecord
from elman.sweeps.tuned_arms import SEED, ArmJobs, values_overrides, without_budget
from elman.sweeps.tuned_cost import cost_lines, minutes_of
from elman.tuning.choice import best
from elman.tuning.schedule import grown, matching, most_runs, next_trial, whole_runs
from elman.tuning.study import History, Journal, Proposal, proposal
from elman.tuning.trials import AGAIN, Arm, State, Trial, Tuned, WholeRun, score_of

_WRITES_LITTLE = ("train.checkpoints=false", "log.plot=false", "log.tensorboard=false")
"""A trial is there for its score."""


class TunedSource:
    """Makes the jobs of a tuned sweep while its jobs run.

    Args:
        arms: The arms.
        tuned: What is known at the start: settings, arms, ranges.
        composer: Composes jobs.
        launcher: Says how many jobs run at a time.
    """

    def __init__(
        self,
        arms: Sequence[ArmJobs],
        tuned: Tuned,
        composer: JobComposer,
        launcher: LauncherConfig,
    ) -> None:
        self._arms = {one.arm.label: one for one in arms}
        self._tuned, self._composer, self._launcher = tuned, composer, launcher
        self._ended: dict[int, Trial] = {}
        self._exhausted: set[tuple[str, int]] = set()
        self._line = ""

    @property
    def stand_ins(self) -> list[SweepJob]:
        """One whole run and one trial of each arm, to check in place of all of them."""
        arms, searched = [own.arm for own in self._arms.values()], self._tuned.searched
        runs = [WholeRun(arm, "best", arm.published, arm.seeds[0], common=True) for arm in arms]
        trials = [
            self._trial_job(arm, 1, 0, arm.published, number)
            for number, arm in enumerate(searched, 1)
        ]
        return [*trials, *(self._whole_job(run, number) for number, run in enumerate(runs, 1))]

    def check(self, known: dict[str, int]) -> list[str]:
        """Count the arms' parameters; return what the sweep will do, and its time at most."""
        for label, own in self._arms.items():
            count_params(own.trial, known)  # a trial's model may be another one
            arm = replace(own.arm, params=count_params(own.whole, known))
            self._arms[label] = replace(own, arm=arm)
        arms = list(self._arms.values())
        self._tuned = replace(self._tuned, arms=tuple(one.arm for one in arms))
        return cost_lines(arms, self._tuned, self._places)

    @cached_property
    def _places(self) -> int:
        """How many jobs run at a time."""
        return count_places(
            self._launcher, any(wants_gpu(own.whole) for own in self._arms.values())
        )

    @property
    def complete(self) -> bool:
        """Whether the confirmation is done, and every arm has a score."""
        tuned = self._tuned
        scored = all(best(tuned.of(arm.label), tuned.goal) for arm in tuned.searched)
        return self._tuned.state == "done" and scored

    def head(self) -> Mapping[str, Any]:
        """Return what ``sweep.json`` says of the tuning."""
        return {"tune": record_of(self._tuned)}

    def begin(self, record: GrowingRecord) -> None:
        """Learn of the record, and bring Optuna's journal to what it says."""
        assert record.folder is not None
        self._record, self._folder = record, record.folder
        self._keep_arms()
        self._look()
        self._journal = Journal(self._folder, self._tuned.config)
        trials = [one for one in self._tuned.trials if one.phase == "trial"]
        self._journal.begin(self._tuned.arms, trials, self._tuned.bounds)

    def more(self, number: int) -> Sequence[SweepJob]:
        """Return up to so many further jobs, recorded; see :class:`~elman.sweeps.source`."""
        self._look()
        self._tell()
        jobs = self._trials(number)
        searched = [one for arm in self._tuned.searched for one in self._tuned.of(arm.label)]
        if not jobs and all(one.ended for one in searched):
            jobs = self._trials(number) if self._grow() else self._whole(number)
        self._say()
        return jobs

    def _look(self) -> None:
        """Read how jobs have ended since the last look."""
        trials = []
        for job in self._record.jobs:
            if job.number not in self._ended:
                trial = self._trial(job)
                if not trial.ended:
                    trials.append(trial)
                    continue
                self._ended[job.number] = trial
            trials.append(self._ended[job.number])
        self._tuned = replace(self._tuned, trials=tuple(trials))

    def _trial(self, job: SweepJob) -> Trial:
        status = self._record.status_of(job.number)
        result = read_run_result(job.folder) if job.folder is not None else None
        return trial_of(job, status, score_of(result, self._tuned.score))

    def _tell(self) -> None:
        for one in self._tuned.trials:
            if one.phase == "trial" and one.ended:
                self._journal.tell(self._arms[one.arm].arm, one)

    def _trials(self, number: int) -> list[SweepJob]:
        """Return up to so many further trials, recorded."""
        jobs: list[SweepJob] = []
        while len(jobs) < number and (chosen := next_trial(self._tuned, self._exhausted)):
            arm, growth = chosen
            point = self._point(arm, growth)
            if point is None:
                self._exhausted.add((arm.label, growth))
                continue
            own = len(self._tuned.of(arm.label)) + 1
            job = self._trial_job(arm, own, growth, point.values, self._next_number)
            jobs.append(self._add(job, "growing" if growth else "trials"))
        return jobs

    def _point(self, arm: Arm, growth: int) -> Proposal | None:
        """Return the next point of an arm, which the journal has by then."""
        trials = self._tuned.of(arm.label)
        if (waiting := self._journal.waiting(arm, len(trials))) is not None:
            return waiting
        ranges = [_bounds(one) for one in self._tuned.ranges]
        history = History(self._tuned.config, arm, ranges, trials, self._journal.attrs(arm))
        point = proposal(history, growth)
        if point is not None:
            self._journal.ask(arm, point, self._tuned.bounds)
        return point

    def _grow(self) -> bool:
        """Let the range grow if a best value is at its edge; return whether it has."""
        if any(one.phase != "trial" for one in self._tuned.trials if not one.ended):
            return False
        ranges = grown(self._tuned, self._may_have)
        if ranges is None:
            return False
        self._tuned = replace(self._tuned, ranges=(*self._tuned.ranges, ranges), state="growing")
        self._record.add([], self.head())
        return True

    def _may_have(self, key: str, value: float) -> bool:
        """Whether every arm can be trained with a value of a key."""
        try:
            for own in self._arms.values():
                texts = values_overrides({key: value})
                self._changed(own.trial, merged(own.trial_overrides, texts), texts)
        except UserError:
            return False
        return True

    def _whole(self, number: int) -> list[SweepJob]:
        """Return up to so many further whole runs, recorded."""
        wanted = whole_runs(self._tuned)
        self._relabel(wanted)
        jobs: list[SweepJob] = []
        for run in wanted:
            if len(jobs) < number and matching(run, list(self._tuned.trials)) is None:
                jobs.append(self._add(self._whole_job(run, self._next_number), "confirming"))
        if not jobs and all(one.ended for one in self._tuned.trials):
            self._note("done")
        return jobs

    def _relabel(self, wanted: Sequence[WholeRun]) -> None:
        """Say what whole runs are for now that there are more trials: another setting is best."""
        trials = list(self._tuned.trials)
        jobs = {job.number: job for job in self._record.jobs}
        changed: dict[int, SweepJob] = {}
        kept = set()
        for run in wanted:
            if (there := matching(run, trials)) is not None:
                kept.add(there.job)
                if (there.phase, there.common) != (run.phase, run.common):
                    changed[there.job] = _relabeled(jobs[there.job], run.phase, run.common)
        for one in trials:
            if one.phase == "best" and one.job not in kept:
                changed[one.job] = _relabeled(jobs[one.job], "second", common=False)
        if changed:
            self._record.relabel(list(changed.values()))
            self._ended = {n: one for n, one in self._ended.items() if n not in changed}
            self._look()

    @property
    def _next_number(self) -> int:
        return len(self._record.jobs) + 1

    def _add(self, job: SweepJob, state: State) -> SweepJob:
        """Record a job, and return it with its folder."""
        placed = in_sweep(job, self._folder)
        self._tuned = replace(self._tuned, state=state)
        self._record.add([placed], self.head())
        added = trial_of(placed, NOT_STARTED, None)
        self._tuned = replace(self._tuned, trials=(*self._tuned.trials, added))
        return placed

    def _note(self, state: State) -> None:
        if self._tuned.state != state:
            self._tuned = replace(self._tuned, state=state)
            self._record.add([], self.head())

    def _trial_job(
        self, arm: Arm, own: int, growth: int, values: Mapping[str, Value], number: int
    ) -> SweepJob:
        """Return a trial, without its folder."""
        jobs, config = self._arms[arm.label], self._tuned.config
        texts = [*values_overrides(values), f"{SEED}={config.seed}", *self._trial_budget(jobs)]
        texts += _WRITES_LITTLE
        if jobs.trial.train.until_accuracy is None:
            texts.append("train.val_every=null")
        tuning = {
            "arm": arm.label,
            "phase": "trial",
            "trial": own,
            "values": dict(values),
            "common": False,
            "growth": growth,
        }
        return self._job(jobs.trial, jobs.trial_overrides, texts, values, tuning, number)

    def _trial_budget(self, jobs: ArmJobs) -> list[str]:
        config = self._tuned.config
        if not config.trial_limits:
            return []
        budget = config.budget_of_trial(jobs.whole.train)
        return [f"train.{key}={typed_limit(limit)}" for key, limit in budget.items()]

    def _whole_job(self, run: WholeRun, number: int) -> SweepJob:
        """Return a whole run, without its folder."""
        jobs = self._arms[run.arm.label]
        texts = [*values_overrides(run.values), f"{SEED}={run.seed}"]
        tuning = {
            "arm": run.arm.label,
            "phase": run.phase,
            "trial": None,
            "values": dict(run.values),
            "common": run.common,
            **({"size": run.arm.size} if run.arm.size is not None else {}),
        }
        return self._job(jobs.whole, run.arm.overrides, texts, run.values, tuning, number)

    def _job(
        self,
        base: RunConfig,
        overrides: Sequence[str],
        texts: Sequence[str],
        values: Mapping[str, Value],
        tuning: Mapping[str, Any],
        number: int,
    ) -> SweepJob:
        whole = merged(overrides, texts)
        named = {key_of(text) for text in values_overrides(values)} | {SEED}
        named |= {key_of(text) for text in without_budget(self._differing)}
        trials, growths, runs = most_runs(self._tuned)
        grown_by = len(self._tuned.ranges) - 1
        total = trials + grown_by * (growths // max(1, self._tuned.config.grow)) + runs
        return SweepJob(
            number,
            max(total, number),
            whole,
            tuple(text for text in whole if key_of(text) in named),
            self._changed(base, whole, texts),
            tuning=tuning,
        )

    @property
    def _differing(self) -> set[str]:
        """The overrides that not all arms have."""
        lists: list[set[str]] = [set(own.arm.overrides) for own in self._arms.values()]
        return {text for one in lists for text in one if not all(text in each for each in lists)}

    def _changed(self, base: RunConfig, whole: Sequence[str], texts: Sequence[str]) -> RunConfig:
        return self._composer.changed(base, whole, texts)

    def _keep_arms(self) -> None:
        """Record what the arms' jobs are made from, whatever YAML files say later."""
        there = recorded_jobs(self._folder)
        kept = {
            name: RecordedJob(texts, config)
            for own in self._arms.values()
            for name, texts, config in _recorded_as(own)
            if name not in there
        }
        record_jobs(self._folder, kept)

    def _say(self) -> None:
        """Print how far the sweep is, if that has changed."""
        line = self._progress()
        if line != self._line:
            self._line = line
            print(line, flush=True)

    def _progress(self) -> str:
        """Return the phase, what is done, the best of each arm, and the time left at most."""
        tuned = self._tuned
        ended = [one for one in tuned.trials if one.ended]
        trials = [one for one in ended if one.phase == "trial"]
        grown_by = (len(tuned.ranges) - 1) * tuned.config.grow_trials
        requested = most_runs(tuned)[0] + len(tuned.searched) * grown_by
        parts = [f"{len(trials)} of {requested} trials"]
        if len(tuned.ranges) > 1:
            parts[0] += f" (the range grew {len(tuned.ranges) - 1} x)"
        if tuned.state in ("confirming", "done"):
            runs = len(whole_runs(tuned))
            parts.append(f"{len(ended) - len(trials)} of {runs} whole runs")
        parts += [_best_so_far(tuned, arm) for arm in tuned.searched]
        if (left := self._seconds_left()) is not None and tuned.state != "done":
            parts.append(f"at most {duration(left)} left")
        return f"tuning: {'; '.join(parts)}"

    def _seconds_left(self) -> float | None:
        minutes = minutes_of(list(self._arms.values()), self._tuned.config)
        if minutes is None:
            return None
        trial, full = minutes
        trials, growths, whole = most_runs(self._tuned)
        ended = [one.phase == "trial" for one in self._tuned.trials if one.ended]
        confirming = self._tuned.state in ("confirming", "done")
        if confirming:
            trials, growths = sum(ended), 0
            whole = len(whole_runs(self._tuned))
        left = (trials + growths - sum(ended)) * trial + (whole - ended.count(False)) * full
        return max(0.0, 60 * left / self._places)


def record_of(tuned: Tuned) -> dict[str, Any]:
    """Return what ``sweep.json`` says of a tuned sweep beside its jobs."""
    return {
        "choice": tuned.choice,
        "config": tuned.config.model_dump(),
        "score": tuned.score,
        "goal": tuned.goal,
        "arms": [arm.record() for arm in tuned.arms],
        "ranges": [dict(one) for one in tuned.ranges],
        "state": tuned.state,
        **({} if tuned.config.ladder is None else _ladder_record(tuned)),
    }


def _ladder_record(tuned: Tuned) -> dict[str, Any]:
    """Return what a ladder has concluded so far, each with its time."""
    return {
        "lines": {name: asdict(one) for name, one in tuned.lines.items()},
        "predictions": {label: asdict(one) for label, one in tuned.predictions.items()},
    }


def trial_of(job: SweepJob, status: str, score: float | None) -> Trial:
    """Return a job of a tuned sweep as a trial.

    Args:
        job: The job.
        status: The word for its state.
        score: Its score, if it has one.
    """
    tuning = job.tuning or {}
    return Trial(
        arm=str(tuning["arm"]),
        number=tuning["trial"],
        phase=tuning["phase"],
        values=tuning["values"],
        status=status,
        score=score,
        seed=job.config.train.seed,
        job=job.number,
        folder=job.folder,
        common=bool(tuning["common"]),
        growth=int(tuning.get("growth") or 0),
    )


def is_trial(job: SweepJob) -> bool:
    """Whether a job is a trial of a tuned sweep."""
    return job.tuning is not None and job.tuning["phase"] == "trial"


def is_spent_trial(job: SweepJob, status: str) -> bool:
    """Whether a job is a trial that has ended, well or not: it is not run again."""
    return is_trial(job) and status not in AGAIN


def read_arms(arms: Sequence[Arm], folder: Path, composer: JobComposer) -> list[ArmJobs]:
    """Return the arms of an earlier sweep with what their jobs are made from, as it recorded that.

    Args:
        arms: Its arms.
        folder: Its folder.
        composer: Composes what is not recorded: the sweep was killed before it could be.
    """
    there = recorded_jobs(folder)
    by_kind: dict[str, RecordedJob] = {
        name.partition("_")[0]: one for name, one in there.items() if not name[0].isdigit()
    }
    jobs = []
    for arm in arms:
        whole = by_kind.get(_kind("arm", arm))
        if whole is None:
            config = composer.config([*arm.overrides, f"{SEED}={arm.seeds[0]}"])
            whole = RecordedJob(arm.overrides, config)
        trial = whole
        if arm.trial_model != arm.model:
            texts = merged(arm.overrides, [f"model={arm.trial_model}"])
            trial = by_kind.get(_kind("trial", arm)) or RecordedJob(texts, composer.config(texts))
        jobs.append(ArmJobs(arm, whole.config, trial.config, trial.overrides))
    return jobs


def _recorded_as(own: ArmJobs) -> list[tuple[str, tuple[str, ...], RunConfig]]:
    """Return the names under which an arm's configurations are recorded, with their overrides."""
    parts = [(_kind("arm", own.arm), own.arm.overrides, own.whole)]
    if own.arm.trial_model != own.arm.model:
        parts.append((_kind("trial", own.arm), own.trial_overrides, own.trial))
    return [(f"{kind}_{run_name(config)}", texts, config) for kind, texts, config in parts]


def _kind(word: str, arm: Arm) -> str:
    """Return the first part of such a name: no folder of a job begins with a letter."""
    return f"{word}-{zlib.crc32(arm.label.encode()):08x}"


def _relabeled(job: SweepJob, phase: str, common: bool) -> SweepJob:
    return replace(job, tuning={**(job.tuning or {}), "phase": phase, "common": common})


def _bounds(ranges: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    return {key: (ends["low"], ends["high"]) for key, ends in ranges.items()}


def _best_so_far(tuned: Tuned, arm: Arm) -> str:
    first = best(tuned.of(arm.label), tuned.goal)
    if first is None or first.score is None:
        return f"{arm.label} -"
    values = " ".join(values_overrides(first.values))
    return f"{arm.label} {first.score:.4f} at {values}"
