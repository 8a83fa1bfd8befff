"""Care: whether every model was tuned, in one space, as often, and confirmed with fresh seeds.

What a tuned sweep (``tune=rates``) did is read from its jobs. Where settings were swept by hand,
the rows of a model are what was tried for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elman.config.suite_rates import RATE, rate_words
from elman.report.comparison.audit.compare import listed
from elman.report.comparison.audit.finding import (
    Finding,
    Group,
    Subject,
    equal,
    named,
    unequal,
    unknown,
)
from elman.report.comparison.conditions import same_layers, settings
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run, task_of
from elman.sections.budget import limits_text
from elman.tuning.edges import at_edge
from elman.tuning.edges import edges as edges_of_sweep
from elman.tuning.trials import Trial, Tuned

_CARE = ("model", "optim")
_NOT_TUNED = frozenset(
    f"model.{key}" for key in ("name", "cell", "expected_params", "vocab_size", "allow_unaligned")
)


def _tried(group: Group) -> dict[str, dict[str, set[str]]]:
    """Return by model the settings that differ among its rows, with their values."""
    varied: dict[str, dict[str, set[str]]] = {}
    for model, rows in group.by_model.items():
        every = [settings(row.counted[0]) for row in rows]
        keys = {key for one in every for key in one if key.split(".")[0] in _CARE} - _NOT_TUNED
        values = {key: {one.get(key, "-") for one in every} for key in keys}
        models = [row.counted[0].section("model") for row in rows]
        if "model.layers" in values and all(same_layers(models[0], one) for one in models):
            del values["model.layers"]
        varied[model] = {key: several for key, several in values.items() if len(several) > 1}
    return varied


def _models(subject: Subject) -> list[str]:
    return [*dict.fromkeys(row.model for group in subject.groups for row in group.rows)]


def _untuned_rows(subject: Subject) -> list[Row]:
    """Return the rows that no tuned sweep chose the settings of."""
    return [
        row
        for group in subject.groups
        for row in group.rows
        if all(run.tuning is None for run in row.counted)
    ]


def tuned(subject: Subject) -> Finding | None:
    """Look whether every model was tuned, or none: one rate suits some models and not others."""
    if len(_models(subject)) < 2:
        return None
    untuned = _untuned_rows(subject)
    if not untuned:
        return equal(f"every model: {', '.join(sorted(subject.searched)) or 'nothing'}")
    if len(untuned) < sum(len(group.rows) for group in subject.groups):
        return unequal(f"no tuning of {named([row.label for row in untuned])}; the others have it")
    tried = {
        model: RATE in keys for group in subject.groups for model, keys in _tried(group).items()
    }
    if all(tried.values()):
        return equal(f"by hand: several values of {RATE} for every model")
    if any(tried.values()):
        names = [model for model, some in tried.items() if not some]
        return unequal(f"one rate for {named(names)}; several for the others")
    rates: dict[float, list[str]] = {}
    for row in untuned:
        if (rate := _rate(row)) is None:
            return unknown(f"no configuration: {row.label}")
        rates.setdefault(rate, []).append(row.label)
    return unequal(rate_words(rates, published=not _typed(untuned)))


def _typed(rows: Sequence[Row]) -> bool:
    """Whether a command sets the rate: it is not the one of the models' files."""
    overrides = (text for row in rows for run in row.counted for text in run.overrides)
    return any(text.partition("=")[0] == RATE for text in overrides)


def _rate(row: Row) -> float | None:
    rate = row.counted[0].section("optim").get("lr")
    return float(rate) if isinstance(rate, int | float) else None


def space(subject: Subject) -> Finding | None:
    """Compare which settings were searched for each model, and over which values."""
    if subject.trials:
        keys_of = {arm: _space_of(runs) for arm, runs in subject.trials.items()}
        ranges = {_ranges(one) for one in subject.tuned}
        if len(ranges) > 1:
            return unequal(f"two tuned sweeps with other spaces: {'; '.join(sorted(ranges))}")
        return _same(keys_of, "keys searched")
    keys_of = {}
    for group in subject.groups:
        for model, keys in _tried(group).items():
            keys_of.setdefault(model, ", ".join(sorted(keys)) or "nothing")
    if len(keys_of) < 2 or {*keys_of.values()} == {"nothing"}:
        return None
    return _same(keys_of, "keys tried")


def _space_of(runs: Sequence[Run]) -> str:
    keys = {key for run in runs if run.tuning is not None for key in run.tuning.values}
    return ", ".join(sorted(keys))


def _ranges(tuned: Tuned) -> str:
    """Return the space of a tuned sweep in words, without what it grew by."""
    parts = []
    for key, leaf in tuned.config.leaves.items():
        if leaf.bounds is None:
            parts.append(f"{key} of {', '.join(map(str, leaf.values or ()))}")
        else:
            parts.append(f"{key} {leaf.bounds[0]:g} to {leaf.bounds[1]:g}")
    shapes = ["shapes"] if tuned.config.shape is not None else []
    return ", ".join([*parts, *shapes])


def trials(subject: Subject) -> Finding | None:
    """Compare how many settings were tried for each model."""
    if subject.trials:
        counts = {arm: len(runs) for arm, runs in subject.trials.items()}
        return _same({arm: f"{count} trials" for arm, count in counts.items()}, "")
    counts = {}
    for group in subject.groups:
        for model, rows in group.by_model.items():
            counts[model] = max(len(rows), counts.get(model, 0))
    if len(counts) < 2 or {*counts.values()} == {1}:
        return None
    return _same({model: f"{count} settings" for model, count in counts.items()}, "")


def _same(texts: Mapping[str, str], what: str) -> Finding | None:
    """Compare a text of each arm or model."""
    places: dict[str, list[str]] = {}
    for name, text in texts.items():
        places.setdefault(text, []).append(name)
    head = f"{what}: " if what else ""
    if len(places) > 1:
        return unequal(head + listed(places))
    return equal(f"{head}{next(iter(places))} for each model") if places else None


def trial_budget(subject: Subject) -> Finding | None:
    """Compare the budgets of the trials."""
    if not subject.trials:
        return None
    budgets, silent = {}, []
    for arm, runs in subject.trials.items():
        known = {limits_text(run.section("train")) for run in runs if run.config is not None}
        if not known:
            silent.append(arm)
        else:
            budgets[arm] = " and ".join(sorted(known))
    if silent:
        return unknown(f"no trial of {named(silent)} has a configuration")
    return _same(budgets, "")


def edges(subject: Subject) -> Finding | None:
    """Look whether a model's best value lies at the edge of what was tried: then it is no best."""
    if not subject.groups:
        return None
    if not subject.trials:
        return _edges_by_hand(subject)
    at_edges = [
        f"{key} of {arm} at its {side} edge"
        for tuned in subject.tuned
        for arm, keys in edges_of_sweep(tuned).items()
        for key, side in keys.items()
    ]
    if at_edges:
        return unequal(named(at_edges))
    if not subject.tuned:
        return unknown("sweep.json does not say what was searched")
    grown = max(len(tuned.ranges) for tuned in subject.tuned) - 1
    more = f"; the range grew {grown} times, for every model alike" if grown > 0 else ""
    return equal(f"every best value has worse ones on both sides{more}")


def _edges_by_hand(subject: Subject) -> Finding | None:
    """Look at rates that were swept by hand, run by run."""
    if len(_models(subject)) < 2:
        return None
    at_edges, inside = [], []
    for model, tried in _by_rate(subject).items():
        rates = sorted(float(one.values[RATE]) for one in tried)
        if rates[0] == rates[-1]:
            continue
        side = at_edge(tried, RATE, rates[0], rates[-1], "minimize")
        if side is None:
            inside.append(model)
        else:
            at_edges.append(f"{RATE} of {model} at its {side} edge")
    if at_edges:
        return unequal(named(at_edges))
    return equal("every best rate has worse ones on both sides") if inside else None


def _by_rate(subject: Subject) -> dict[str, list[Trial]]:
    """Return the runs of each model as trials of its rate, on text alone."""
    by_model: dict[str, list[Trial]] = {}
    for row in subject.rows:
        for run in row.runs:
            rate = run.section("optim").get("lr")
            searched = run.tuning is not None or task_of(run)
            if searched or not isinstance(rate, int | float):
                continue
            bits = run.result.val_bpb if run.result and run.counts else None
            known = by_model.setdefault(row.model, [])
            known.append(
                Trial(
                    arm=row.model,
                    number=None,
                    phase="trial",
                    values={RATE: float(rate)},
                    status=run.status,
                    score=bits,
                    seed=run.seed or 0,
                    job=run.job or 0,
                )
            )
    return by_model


def fresh_seeds(subject: Subject) -> Finding | None:
    """Look whether the runs that are compared have other seeds than the trials that chose them."""
    if not subject.trials:
        return _chosen_by_hand(subject)
    used = {run.seed for runs in subject.trials.values() for run in runs}
    both = [
        f"{row.label} (seed {run.seed})"
        for group in subject.groups
        for row in group.rows
        for run in row.counted
        if run.tuning is not None and run.seed in used
    ]
    if not subject.groups:
        return None
    if both:
        return unequal(f"confirmed with a seed of the trials: {named(both)}")
    known = sorted(seed for seed in used if seed is not None)
    return equal(f"trials had {', '.join(map(str, known))}")


def _chosen_by_hand(subject: Subject) -> Finding | None:
    """Say that nothing was confirmed where every model has several rows that differ in the rate."""
    if len(_models(subject)) < 2:
        return None
    several = [
        model for group in subject.groups for model, keys in _tried(group).items() if RATE in keys
    ]
    if not several:
        return None
    return unknown(
        f"whether a row was chosen for its score: {named(several)} have several rates, and no "
        "run was made again with a fresh seed"
    )
