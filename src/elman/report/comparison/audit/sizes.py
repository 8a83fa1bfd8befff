"""Size and effort: parameters, states, and how much of each kind of budget the rows took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elman.config.catalog import listed_models
from elman.report.comparison.audit.compare import ends_of, of_group, same_number
from elman.report.comparison.audit.finding import (
    Finding,
    Group,
    Look,
    Subject,
    declared,
    equal,
    named,
    unequal,
    unknown,
    values,
)
from elman.report.comparison.audit.settings import TOKENS
from elman.report.comparison.conditions import budget_kinds, same_layers
from elman.report.comparison.deciding import KIND_OF, NEAR, Axis, different_tokens, ends
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run
from elman.sections.budget import limits
from elman.sections.launching import SweepConfig
from elman.sections.tune import SHAPE
from elman.tuning.space import overrides_of

STATES_NEAR = 0.1
"""States of a layer that differ by less count as equal: heads and widths are whole numbers."""
_NOT_A_SHAPE = frozenset({"name", "expected_params", "vocab_size", "allow_unaligned"})


def params(subject: Subject) -> Finding | None:
    """Compare the parameters, as far apart as a sweep allows without a note."""
    found = same_number(
        subject,
        lambda run: run.result.params if run.result else None,
        _count,
        SweepConfig().max_params_spread,
        ("model", *TOKENS),
    )
    groups = [group for group in subject.groups if different_tokens(group.rows)]
    if found is None or not groups:
        return found
    rest = "; ".join(ends_of(group.rows, _without_tokens).words(_count) for group in groups)
    return replace(found, detail=f"{found.detail}; without the tokens' embedding {rest}")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _without_tokens(run: Run) -> float | None:
    """Return the parameters without those of the embedding, which is the head, too."""
    model, params = run.section("model"), run.result.params if run.result else None
    size, dim = model.get("vocab_size"), model.get("dim")
    if params is None or not isinstance(size, int) or not isinstance(dim, int):
        return None
    return float(params - size * dim)


def states(subject: Subject) -> Finding | None:
    """Compare the bytes of the state of a layer."""
    return same_number(
        subject,
        lambda run: run.result.state_bytes if run.result else None,
        lambda count: f"{count:,.0f} bytes",
        STATES_NEAR,
        ("model",),
    )


def effort(axis: Axis) -> Look:
    """Return what compares how much of a kind of budget the rows took.

    It is equal where it was the budget. Elsewhere it follows from the budget, and says so.
    """

    def look(subject: Subject) -> Finding | None:
        findings = [_effort(group, axis) for group in subject.groups]
        order = [unequal, unknown, declared, equal]
        states_ = [make("").state for make in order]
        findings.sort(key=lambda one: states_.index(one.state))
        return findings[0] if findings else None

    return look


def _effort(group: Group, axis: Axis) -> Finding:
    kind = KIND_OF[axis]

    def of(run: Run) -> float | None:
        return ends(run).get(axis)

    runs = [run for row in group.rows for run in row.counted]
    widest = max(
        (ends_of(rows, of) for rows in group.slices(("train", "model"))),
        key=lambda one: one.spread,
    )
    silent = [row.label for row in group.rows if any(of(run) is None for run in row.counted)]
    words = of_group(group) + widest.words(lambda size: kind.text(_whole(size)))
    bounds = {axis in {one.axis for one in budget_kinds(run)} for run in runs}
    budgets = {limits(run.section("train")).get(kind.key) for run in runs}
    swept = group.swept(("train",))
    if bounds == {True, False} or (True in bounds and len(budgets) > 1 and not swept):
        return unequal(f"{words}; not the same budget in every row")
    if silent:
        return unknown(f"not counted in {named(silent)}")
    if widest.spread <= NEAR:
        return equal(words)
    if True in bounds:
        return _less_than_its_budget(group, words)
    units = dict.fromkeys(one.axis for run in runs for one in budget_kinds(run))
    return declared(f"{words}; the budget is in {' and '.join(units)}")


def _whole(size: float) -> float:
    """Return a mean as a whole number if it is one: 40 steps."""
    return int(size) if size.is_integer() else size


def _less_than_its_budget(group: Group, words: str) -> Finding:
    """Say why rows with one budget took unequal parts of it."""
    trains = [run.section("train") for row in group.rows for run in row.counted]
    if any(train.get("until_accuracy") is not None for train in trains):
        return declared(f"{words}; a run ends at train.until_accuracy")
    if any(len(limits(train)) > 1 for train in trains):
        return declared(f"{words}; the first budget that is spent ends a run")
    return unequal(f"{words}; one budget, but a run took less of it")


def architecture(subject: Subject) -> Finding | None:
    """Compare the shape of each model with its file, but for what the command sets alike for all.

    A name that stands for another model than its file says is the wrong architecture.
    """
    rows = [row for group in subject.groups for row in group.rows]
    if not rows:
        return None
    files = {one.name: one for one in listed_models({row.model for row in rows}, subject.places)}
    wrong, silent = [], []
    for group in subject.groups:
        alike = _set_alike(group)
        for row in group.rows:
            file, shape = files[row.model].config, _shape(row)
            if file is None or shape is None:
                silent.append(row.label)
                continue
            own = file.settings()
            free = {*alike, *map(_option, group.crossed), *_chosen(row)}
            if same_layers(shape, {"name": row.model, **own}):
                free.add("layers")
            keys = [
                key
                for key in own
                if key in shape and shape[key] != own[key] and key not in free | _NOT_A_SHAPE
            ]
            if keys:
                differences = named([f"{key}={shape[key]} for {own[key]}" for key in keys])
                wrong.append(f"{row.label} has {differences}")
    if wrong:
        return unequal(f"not as the file of its name: {'; '.join(wrong[:4])}")
    if silent:
        return unknown(f"no file of that name, or no configuration: {named(silent)}")
    return equal("every model as the file of its name")


def _chosen(row: Row) -> Iterator[str]:
    """Yield the settings that a tuned sweep chose for a row; a shape names several at once."""
    for key, value in values(row.counted[0]).items():
        parts = overrides_of(str(value)) if key == SHAPE else [key]
        yield from (_option(part.partition("=")[0]) for part in parts)


def _option(key: str) -> str:
    return key.removeprefix("model.")


def _shape(row: Row) -> dict[str, object] | None:
    config = row.counted[0].config
    return None if config is None else {"mlp_ratio": 0.0, "layers": None, **config["model"]}


def _set_alike(group: Group) -> set[str]:
    """Return the keys of the model that the command of every run sets, to one value."""
    alike: set[tuple[str, str]] | None = None
    for row in group.rows:
        for run in row.counted:
            own = {text.partition("=")[::2] for text in run.overrides}
            pairs = {(_option(key), value) for key, value in own if key.startswith("model.")}
            alike = pairs if alike is None else alike & pairs
    return {key for key, _ in alike or ()}
