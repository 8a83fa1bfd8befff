"""The conditions of a run: what must agree before numbers are compared, and the marks of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elman.config.experiment import SECTIONS_WITHOUT_EFFECT, WITHOUT_EFFECT
from elman.config.newer_settings import with_newer
from elman.config.validate import validate_model
from elman.evaluation.metrics import SHARED_GPU
from elman.report.comparison.runs import Run
from elman.sections.budget import MINUTES, BudgetKind, limiting_kinds, limits_text

NOT_RECORDED = "not recorded"

FOLLOWS_DATA = ("vocab_size", "expected_params")
"""Keys of group ``model`` that the data sets."""

# Two runs of one model may differ in these settings and still be the same experiment. The bytes of
# the data, the backend, whether the pass was replayed, in how many parts, and the precision of Muon
# are read from the result, as measured.
_IRRELEVANT = {
    "train": ("seed", "device", "graph", "overlap", *WITHOUT_EFFECT["train"]),
    "data": ("path", "val_path", "format", "field"),
    "optim": ("matrix_precision",),
    "model": FOLLOWS_DATA,
}
_IRRELEVANT_SECTIONS = ("kernels", *SECTIONS_WITHOUT_EFFECT)
# Further settings: if they differ, the reader should know.
_REMARKED = {
    "train": ("grad_clip", "compile", "deterministic", "activation_checkpointing", "init_from"),
}
_REMARKED_SECTIONS = ("optim",)


def conditions(run: Run) -> dict[str, str]:
    """Return, by name, what must be the same in two runs before their losses are compared.

    The seeds must agree too, but they belong to a row, see :class:`~.rows.Row`.
    """
    train, data = run.section("train"), run.section("data")
    known = run.config is not None
    return {
        "data": _data(run),
        "batch": _batch(train) if known else NOT_RECORDED,
        "chunk": _chunk(train) if known else NOT_RECORDED,
        "duration": _duration(train) if known else NOT_RECORDED,
        "metric version": _version(run),
        "validation": (
            f"{data.get('val_rows')} rows of the task"
            if data.get("task") is not None
            else f"{data.get('val_sample')} bytes in windows of {data.get('val_window')}"
            + (", state zeroed after each document" if data.get("reset_at_documents") else "")
            if known
            else NOT_RECORDED
        ),
        "device": _device(run, train),
        "data seed": _data_seed(train) if known else NOT_RECORDED,
    }


def experiment(run: Run) -> str:
    """Return what identifies the experiment of a run: all settings except the seed."""
    if run.config is None:
        return json.dumps([run.model, *sorted(_without_seed(run.overrides) or (run.name,))])
    tree = {
        name: {k: v for k, v in section.items() if k not in _IRRELEVANT.get(name, ())}
        for name, section in _sections(run).items()
    }
    if (model := tree.get("model", {})).get("layers") is not None:
        model["layers"] = _layer_by_layer(model)
    return json.dumps(tree, sort_keys=True, default=str)


def _layer_by_layer(model: Mapping[str, Any]) -> list[Any]:
    """Return what every layer of a mixed stack is, however its ``layers`` were typed."""
    checked = validate_model(model)
    parts = [part.settings() for part in checked.parts()]
    return [parts[place] for place in checked.order()]


def same_layers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sections ``model`` have the same layers, however these were typed."""
    layers = one.get("layers"), other.get("layers")
    if None in layers or layers[0] == layers[1]:
        return layers[0] == layers[1]
    return validate_model(one).stack() == validate_model(other).stack()


def measured(run: Run) -> str:
    """Return what differs between runs of one experiment that were run in different ways."""
    result = run.result
    if result is None:
        return ""
    ran = (result.backend, result.path, result.slow_path, result.params, bool(result.graph))
    return json.dumps([*conditions(run).values(), *ran, result.time_parts or 1])


def remarks(run: Run) -> dict[str, str]:
    """Return the further settings, and the versions that ran, as text by dotted key."""
    config = run.config or {}
    facts = {
        f"{name}.{key}": _text(config[name][key])
        for name, keys in _REMARKED.items()
        for key in keys
        if key in (config.get(name) or {})
    }
    whole = with_newer({name: {} for name in _REMARKED_SECTIONS} | dict(config))
    for name in _REMARKED_SECTIONS:
        facts |= {
            f"{name}.{key}": _text(value)
            for key, value in (whole[name] or {}).items()
            if key not in _IRRELEVANT.get(name, ())
        }
    if run.config is not None:
        facts["MLP behind the mixers"] = _mlp(run.section("model"))
        free = run.section("optim").get("name") == "schedulefree"
        facts["weights of the validation"] = "averaged" if free else "as trained"
    if run.result is not None:
        facts["data.path"] = data_names(run)
        # The oldest results have no such key: nothing was replayed then.
        facts["train.graph"] = _text(bool(run.result.graph))
        facts["parts of a row side by side (train.overlap)"] = str(run.result.time_parts or 1)
        if run.section("optim").get("name") == "muon":  # the oldest results do not say
            facts["optim.matrix_precision"] = run.result.matrix_precision or "bf16"
        environment = run.result.environment
        facts["revision of elman"] = environment.revision or environment.elman or NOT_RECORDED
        facts["torch"] = environment.packages.get("torch") or NOT_RECORDED
    return facts


def _data_seed(train: Mapping[str, Any]) -> str:
    """Word whether every seed has a data order of its own; the seeds themselves must agree, too."""
    seed = train.get("data_seed")
    return "as train.seed" if seed is None else str(seed)


def model_parts(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return section ``model`` of a run for each kind of layer by itself, its depth their number.

    A model of one cell is its only part, as it was written.
    """
    if model.get("layers") is None:
        return [model]
    parts = validate_model(model).parts()
    return [part.model_dump(exclude={"options"}) | part.options for part in parts]


def by_cell(parts: Sequence[Mapping[str, Any]], text: Callable[[Mapping[str, Any]], str]) -> str:
    """Return a text of every part, once if all have the same."""
    cells: dict[str, list[str]] = {}
    for part in parts:
        cells.setdefault(text(part), []).append(str(part.get("cell")))
    if len(cells) == 1:
        return next(iter(cells))
    return ", ".join(f"{one} in {' and '.join(dict.fromkeys(of))}" for one, of in cells.items())


def _mlp(model: Mapping[str, Any]) -> str:
    return by_cell(model_parts(model), _mlp_of_part)


def _mlp_of_part(model: Mapping[str, Any]) -> str:
    ratio = model.get("mlp_ratio") or 0
    if not ratio:
        return "llama's own" if model.get("cell") == "llama" else "none"
    return f"SwiGLU, {ratio:g} times the width"


def settings(run: Run) -> dict[str, str]:
    """Return every setting that makes up the experiment, as text by dotted key."""
    return {
        f"{name}.{key}": _text(value)
        for name, section in _sections(run).items()
        for key, value in section.items()
        if key not in _IRRELEVANT.get(name, ())
    }


def _sections(run: Run) -> dict[str, dict[str, Any]]:
    """Return the sections that make up an experiment, complete for older runs, too."""
    return {
        name: section
        for name, section in (with_newer(run.config) if run.config else {}).items()
        if name not in _IRRELEVANT_SECTIONS and isinstance(section, dict)
    }


def _without_seed(overrides: tuple[str, ...]) -> list[str]:
    return [text for text in overrides if not text.startswith("train.seed=")]


def data_names(run: Run) -> str:
    """Return what the files of a run's data are called."""
    paths = run.result.data.paths if run.result is not None else []
    names = ", ".join(path.rsplit("/", 1)[-1] for path in paths[:2])
    return (names or NOT_RECORDED) + (", ..." if len(paths) > 2 else "")


def _data(run: Run) -> str:
    """Word which bytes a run read: the same bytes are the same data, whatever they are called.

    Of many bytes those that are read where they lie have a hash of samples alone, so that this is
    what is compared then, for packed ones as well.
    """
    if run.result is None:
        return NOT_RECORDED
    data = run.result.data
    if data.task is not None:
        return f"task {data.task}, rows {(data.sha256 or '')[:12]}"
    if data.bytes is None:
        return NOT_RECORDED
    print_ = data.sample_sha256 or data.sha256
    if print_ is None:
        mark = f", {data_names(run)}"
    else:
        mark = f", {'sampled ' if data.sample_sha256 else ''}sha256 {print_[:12]}"
    return f"{data.bytes:,} bytes{mark}, {data.val_bytes or 0:,} held out"


def _batch(train: Mapping[str, Any]) -> str:
    accumulated = train.get("grad_accum", 1)
    times = "" if accumulated == 1 else f" x {accumulated} accumulated"
    return f"{train.get('batch_size')}{times}"


def _chunk(train: Mapping[str, Any]) -> str:
    carried = ", states carried (tbptt)" if train.get("tbptt") else ""
    return f"{train.get('chunk_size')}{carried}"


def _duration(train: Mapping[str, Any]) -> str:
    """Word the budgets; a run without one lasts one minute."""
    text = limits_text(train)
    if train.get("until_accuracy") is not None:
        text += f" or until accuracy {train['until_accuracy']}"
    return text


def budget_kinds(run: Run) -> list[BudgetKind]:
    """Return what limits a run; time, if its configuration is not known."""
    if run.config is None:
        return [MINUTES]
    return limiting_kinds(run.section("train"))


def _version(run: Run) -> str:
    version = run.result.metrics_version if run.result else None
    return NOT_RECORDED if version is None else str(version)


def _device(run: Run, train: Mapping[str, Any]) -> str:
    name = run.result.environment.device_name if run.result else None
    precision = train.get("precision", "auto")
    return (name or NOT_RECORDED) + ("" if precision == "auto" else f", {precision}")


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


IN_WARM_UP, LONG_WARM_UP = "never left warm-up", "long warm-up"
"""The marks of such runs."""
LONG_SHARE = 0.2
"""A warm-up that takes a larger share of a run's steps is long: 1 to 10 % are usual."""
WARM_UP = (
    f"{IN_WARM_UP}: the run ended before its learning rate had reached optim.lr; {LONG_WARM_UP}: "
    f"it rose for more than {LONG_SHARE:.0%} of the steps. With a budget of time a slower model "
    "takes fewer steps, so that the same optim.warmup_steps leave it the smaller rate"
)


def warm_up_share(run: Run) -> float | None:
    """Return the share of a run's steps that its warm-up needed, above 1 if it had fewer.

    None if the run has no step, or none of these settings.
    """
    optim: Mapping[str, Any] = run.section("optim")
    share, steps = optim.get("warmup_share"), run.result.steps if run.result is not None else None
    if isinstance(share, int | float):
        return float(share)
    needed = optim.get("warmup_steps")
    return needed / steps if isinstance(needed, int) and steps else None


def only_warmed_up(run: Run) -> bool:
    """Whether a run that ended well never left its warm-up."""
    share = warm_up_share(run) if run.counts else None
    return share is not None and share >= 1


def warmed_up_long(run: Run) -> bool:
    """Whether a run that ended well left its warm-up, but late."""
    share = warm_up_share(run) if run.counts else None
    return share is not None and LONG_SHARE < share < 1


def warm_up_words(run: Run) -> str:
    """Say how much of a run was warm-up, and how far its rate came."""
    optim, share = run.section("optim"), warm_up_share(run)
    steps = run.result.steps if run.result is not None else None
    if share is None or not steps:
        return ""
    needed = f"{optim.get('warmup_steps'):,} steps of warm-up, and the run had {steps:,}"
    return f"{needed}: its rate reached {1 / share:.0%} of optim.lr" if share >= 1 else needed


def begins_from(run: Run) -> str | None:
    """Return the run or checkpoint whose weights a run began from; None if it began from none."""
    place = run.section("train").get("init_from")
    return None if place is None else str(place)


MARKS: dict[str, Callable[[Run], bool]] = {
    "contended": lambda run: bool(run.result and run.result.contended),
    SHARED_GPU: lambda run: bool(run.result and (run.result.jobs_per_gpu or 1) > 1),
    "slow path": lambda run: bool(run.result and run.result.slow_path),
    "resumed": lambda run: run.resumed,
    "from weights": lambda run: begins_from(run) is not None,
    IN_WARM_UP: only_warmed_up,
    LONG_WARM_UP: warmed_up_long,
    "unknown metric version": lambda run: not run.version_is_known,
}
OF_SPEED = ("contended", SHARED_GPU, "slow path")
"""The marks that say why a speed is not the model's own."""


def run_marks(run: Run) -> tuple[str, ...]:
    """Return what a reader must know about how one run was computed."""
    return tuple(mark for mark, holds in MARKS.items() if holds(run))
