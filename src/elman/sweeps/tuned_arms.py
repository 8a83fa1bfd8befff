"""The arms of a tuned sweep: from the jobs that its command would have without tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elman.base.errors import UserError, did_you_mean
from elman.base.quoting import as_override
from elman.config.keys import key_of, merged
from elman.config.run_config import RunConfig, flatten, size_keys
from elman.launchers.job import SweepJob
from elman.sections.budget import BUDGETS, typed_limit
from elman.sections.tasks import TaskConfig
from elman.sections.tune import SHAPE, LadderConfig, Leaf, TuneConfig, Value
from elman.sweeps.composing import JobComposer
from elman.tuning.ladder import check_families, family_and_size
from elman.tuning.shapes import check_shapes, shapes_of, text_of
from elman.tuning.space import Space, overrides_of
from elman.tuning.study import check_sampler
from elman.tuning.trials import Arm

SEED = "train.seed"
_SECTIONS = ("optim", "model", "train")
_OF_TRAIN = ("batch_size", "chunk_size", "grad_accum", "grad_clip")
"""Keys of group ``train`` that can be tuned: the others are budgets, seeds, or change no number."""


@dataclass(frozen=True)
class ArmJobs:
    """An arm, with what its jobs are made from.

    Args:
        arm: The arm.
        whole: Configuration of its whole runs, with the first of its seeds.
        trial: Configuration that its trials are made from: of another model, perhaps.
        trial_overrides: The overrides of that, without ``train.seed``.
    """

    arm: Arm
    whole: RunConfig
    trial: RunConfig
    trial_overrides: tuple[str, ...]


def arms_of(jobs: Sequence[SweepJob], config: TuneConfig, composer: JobComposer) -> list[ArmJobs]:
    """Return the arms of jobs: all that distinguishes them but ``train.seed``.

    Args:
        jobs: The jobs that the command would have without tuning.
        config: Group ``tune``.
        composer: Composes the trials' configurations.

    Raises:
        UserError: the arms cannot be tuned in this space.
    """
    by_texts: dict[tuple[str, ...], list[SweepJob]] = {}
    for job in jobs:
        by_texts.setdefault(without_seed(job.overrides), []).append(job)
    labels = _labels(list(by_texts))
    _refuse_swept(config, labels_of=by_texts)
    arms = []
    for (texts, own), label in zip(by_texts.items(), labels, strict=True):
        seeds = tuple(dict.fromkeys(job.config.train.seed for job in own))
        refuse_seed(config, seeds)
        arms.append(_arm(label, texts, own[0].config, seeds, config, composer))
    if config.ladder is not None:
        check_families(one.arm for one in arms)
    return arms


def _arm(
    label: str,
    texts: tuple[str, ...],
    whole: RunConfig,
    seeds: tuple[int, ...],
    config: TuneConfig,
    composer: JobComposer,
) -> ArmJobs:
    """Return one arm, after every check that needs no place to run."""
    _refuse_unscored(config, whole)
    model = whole.model.name
    family, size = "", None
    if config.ladder is not None:
        if isinstance(whole.data, TaskConfig):
            raise UserError(
                f"data={whole.data.task}: a ladder predicts bits per byte of text; drop it, or "
                "type tune=rates"
            )
        family, size = family_and_size(model)
        texts = merged(texts, _ladder_budget(texts, size, config.ladder))
        whole = composer.config([*texts, f"{SEED}={seeds[0]}"])
    trial_model = config.trial_models.get(model, model)
    trial_texts, trial = texts, whole
    if trial_model != model:
        trial_texts = merged(texts, [f"model={trial_model}"])
        trial = composer.config(trial_texts)
    _refuse_longer(config, whole)
    published = _published(label, whole, config)
    for key in published:
        _read(label, key, trial)
    shapes: tuple[str, ...] = ()
    if config.shape is not None:
        shapes = _shapes(label, whole, trial_model != model, config)
        published |= {SHAPE: _own_shape(whole, shapes)}
    arm = Arm(
        label=label,
        model=model,
        trial_model=trial_model,
        published=published,
        seeds=seeds,
        overrides=texts,
        shapes=shapes,
        family=family,
        size=size,
        width=whole.model.dim if family else None,
    )
    check_sampler(config, Space.of(config, arm))
    return ArmJobs(arm, whole, trial, trial_texts)


def _ladder_budget(texts: Sequence[str], size: int, ladder: LadderConfig) -> list[str]:
    """Return the overrides that let a model learn from bytes in proportion to its size.

    Raises:
        UserError: the command sets another budget.
    """
    kept = without_budget(texts)
    for text in (text for text in texts if text not in kept):
        raise UserError(
            f"{text}: a ladder gives every size bytes in proportion; drop it, and type "
            f"tune.ladder.bytes_per_param={ladder.bytes_per_param:g} or another number"
        )
    others = [f"train.{kind}=null" for kind in BUDGETS if kind != "bytes"]
    return [*others, f"train.bytes={round(size * ladder.bytes_per_param)}"]


def without_budget(texts: Iterable[str]) -> tuple[str, ...]:
    """Return overrides without those that say how long a run is."""
    budgets = {f"train.{kind}" for kind in BUDGETS}
    return tuple(text for text in texts if key_of(text) not in budgets)


def without_seed(texts: Iterable[str]) -> tuple[str, ...]:
    """Return overrides without ``train.seed``."""
    return tuple(text for text in texts if key_of(text) != SEED)


def values_overrides(values: Mapping[str, Value]) -> list[str]:
    """Return the overrides that set the values of a point."""
    return [
        text
        for key, value in values.items()
        for text in (overrides_of(str(value)) if key == SHAPE else [f"{key}={as_override(value)}"])
    ]


def _labels(arms: Sequence[tuple[str, ...]]) -> list[str]:
    """Return what each arm is called: its model, and the other settings that distinguish it."""
    differing = {
        text for texts in arms for text in texts if not all(text in others for others in arms)
    }
    labels = []
    for texts in arms:
        models = [text.partition("=")[2] for text in texts if key_of(text) == "model"]
        others = [text for text in texts if text in differing and key_of(text) != "model"]
        labels.append(" ".join([*models[-1:], *others]) or "model")
    return labels


def _refuse_swept(
    config: TuneConfig, labels_of: Mapping[tuple[str, ...], Sequence[SweepJob]]
) -> None:
    """Raise UserError if the arms differ in a key that is tuned."""
    values: dict[str, set[str]] = {}
    for texts in labels_of:
        for text in texts:
            values.setdefault(key_of(text), set()).add(text)
    for key in config.leaves:
        if len(values.get(key, ())) > 1:
            raise UserError(
                f"{key}: is swept, and tune.space.{key} finds it; give it one value, or drop the "
                "key from the space"
            )


def refuse_seed(config: TuneConfig, seeds: Sequence[int]) -> None:
    """Raise UserError if a whole run would have the seed of the trials."""
    if config.seed not in seeds:
        return
    free = next(seed for seed in range(len(seeds) + 1) if seed not in seeds)
    raise UserError(
        f"tune.seed={config.seed}: train.seed has it too, and a run with the seed of the trials "
        f"confirms nothing; type tune.seed={free}"
    )


def _refuse_unscored(config: TuneConfig, whole: RunConfig) -> None:
    if config.score == "accuracy" and not isinstance(whole.data, TaskConfig):
        raise UserError("tune.score=accuracy: text has no answers; type tune.score=val_bpb")
    if whole.train.init_from is not None:
        raise UserError(
            "train.init_from: a run that starts from trained weights shows how they were trained, "
            "not how its setting trains; drop it, or add tune=null"
        )


def _refuse_longer(config: TuneConfig, whole: RunConfig) -> None:
    """Raise UserError if a trial would last longer than a whole run."""
    full = whole.train.limits
    for key, own in config.trial_limits.items():
        if key in full and own > full[key]:
            most = typed_limit(full[key])
            raise UserError(
                f"tune.{key}={typed_limit(own)}: longer than a whole run, which has train.{key}="
                f"{most}; type tune.{key}={most} or less"
            )


def _published(label: str, whole: RunConfig, config: TuneConfig) -> dict[str, Value]:
    """Return an arm's own values of the space.

    Raises:
        UserError: it does not read a key, or its value is not in the space.
    """
    values: dict[str, Value] = {}
    for key, leaf in config.leaves.items():
        value = _read(label, key, whole)
        _refuse_outside(label, key, leaf, value)
        values[key] = value
    return values


def _read(label: str, key: str, config: RunConfig) -> Any:
    """Return the value of a key; raise UserError if the arm does not read it, or may not."""
    section, _, name = key.partition(".")
    tree, typed = flatten(config), f"tune.space.{key}"
    if section not in _SECTIONS or (section == "train" and name not in _OF_TRAIN):
        raise UserError(f"{typed}: {_why_not(key, tree)}; drop it from the space")
    if name not in tree[section]:
        hint = did_you_mean(typed, [f"tune.space.{section}.{one}" for one in tree[section]])
        raise UserError(
            f"{typed}: {label} ({_reader(section, config)}) does not read it{hint}; drop it from "
            "the space, or leave that arm out"
        )
    if key in size_keys(config.model.cell):
        raise UserError(
            f"{typed}: changes the size of {label}; tune=shape searches shapes of one size"
        )
    return tree[section][name]


def _why_not(key: str, tree: Mapping[str, Any]) -> str:
    """Return why a key cannot be tuned whatever the arm, and which one may be meant."""
    if key in (SEED, *(f"train.{kind}" for kind in BUDGETS)):
        return "is the same for all trials"
    known = [f"tune.space.train.{one}" for one in _OF_TRAIN]
    known += [f"tune.space.{one}.{each}" for one in ("optim", "model") for each in tree[one]]
    hint = did_you_mean(f"tune.space.{key}", known)
    return f"no arm is tuned in it{hint}"


def _reader(section: str, config: RunConfig) -> str:
    if section == "optim":
        return f"optim={config.optim.name}"
    return f"cell {config.model.cells}" if section == "model" else section


def _refuse_outside(label: str, key: str, leaf: Leaf, value: Any) -> None:
    """Raise UserError if an arm's own value is not in the space."""
    name = f"tune.space.{key}"
    if leaf.values is not None:
        if value not in leaf.values:
            raise UserError(
                f"{name}: the published setting of {label} is {value}, which is not in the list; "
                "add it"
            )
        return
    assert leaf.low is not None
    assert leaf.high is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name}: {label} has {value} there, no number; name values: [...]")
    if not leaf.low <= value <= leaf.high:
        side = "low" if value < leaf.low else "high"
        raise UserError(
            f"{name}: the published setting of {label} is {value:g}, outside {leaf.low:g} to "
            f"{leaf.high:g}; type {name}.{side}={value:g}"
        )


def _shapes(label: str, whole: RunConfig, other_model: bool, config: TuneConfig) -> tuple[str, ...]:
    assert config.shape is not None
    if other_model:
        raise UserError(
            f"tune.trial_models: the shape of {label} is tuned, and a shape of another model says "
            "nothing about it; drop one of them"
        )
    hold = config.hold_params
    shapes = shapes_of(whole.model, whole.kernels.backend, config.shape, hold)
    check_shapes(label, whole.model, shapes, hold)
    return shapes


def _own_shape(whole: RunConfig, shapes: Sequence[str]) -> str:
    """Return the text of a model's own shape."""
    keys = [part.partition("=")[0] for part in shapes[0].split()]
    model = {"depth": whole.model.depth, "dim": whole.model.dim} | whole.model.options
    return text_of({key: model[key] for key in keys})  # type: ignore[misc]
