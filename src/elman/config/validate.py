"""Turns a composed tree into a typed configuration, or refuses it with one line.

Composition (Hydra) yields an untyped tree. :func:`validate` turns it into a
:class:`~elman.config.run_config.RunConfig`, or raises one
:class:`~elman.base.errors.UserError` that names the key. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from elman.base.errors import UserError, nearest
from elman.config.layer_entries import checked_layers
from elman.config.ranks import check_ranks
from elman.config.run_config import RunConfig, size_keys
from elman.config.setting_mistakes import (
    VOCAB_SIZE_FOLLOWS,
    first_problem,
    not_an_option,
    shown,
    unread_key,
)
from elman.config.suggestions import MODEL_KEYS
from elman.models.cells import registry
from elman.sections.data import AnyData, refuse_unknown_task
from elman.sections.graphs import graph_conflict
from elman.sections.launching import LAUNCHERS, SweepConfig, SweepSettings
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.optim import OPTIMIZERS
from elman.sections.section import whole
from elman.sections.tasks import TaskConfig
from elman.sections.training import BPE, BYTES, DataConfig, TrainConfig
from elman.sections.tune import TuneConfig

_DATA: TypeAdapter[AnyData] = TypeAdapter(AnyData)


def validate(tree: Mapping[str, Any], named: frozenset[str] = frozenset()) -> RunConfig:
    """Return the typed configuration of a composed tree.

    Args:
        tree: Plain containers with the sections of :class:`RunConfig`; the cell's options are
            keys of ``model`` itself.
        named: Dotted keys that the user named, for errors about settings that nothing reads.

    Raises:
        UserError: one line with the key, what is wrong with it, and what to type.
    """
    sections = dict(tree)
    check_read(named, sections.get("mode"))
    _refuse_optimizer_by_key(sections.get("optim"), named)
    refuse_unknown_task(sections.get("data"), named)
    if isinstance(model := sections.get("model"), Mapping):
        sections["model"] = _split_model(model, named)
    try:
        config = RunConfig.model_validate(sections)
    except ValidationError as error:
        raise UserError(first_problem(error, sections)) from None
    _check_combinations(config)
    config = _with_its_vocabulary(config, named)
    for section in (config.solve, config.models):
        if section is not None:
            section.refuse(config.model, named)
    return config


def _with_its_vocabulary(config: RunConfig, named: frozenset[str]) -> RunConfig:
    """Return the configuration with a model whose vocabulary is that of the data."""
    if "model.vocab_size" in named:
        raise UserError(VOCAB_SIZE_FOLLOWS)
    data = config.data
    if isinstance(data, DataConfig):
        data = _with_its_tokens(data, named)
        size = data.vocab_size or VOCAB_SIZE
    else:
        size = data.vocabulary
    model = config.model.with_vocabulary(size)
    if "model.expected_params" in named:
        model = model.model_copy(update={"expected_params": config.model.expected_params})
    return config.model_copy(update={"model": model, "data": data})


def _with_its_tokens(data: DataConfig, named: frozenset[str]) -> DataConfig:
    """Return the group with the number of tokens, which a tokenizer of a file has."""
    if data.tokenizer in (BYTES, BPE):
        return data
    if "data.vocab_size" in named:
        raise UserError(
            f"data.vocab_size={data.vocab_size}: follows data.tokenizer={data.tokenizer}; drop it"
        )
    # What a run has recorded holds without the file.
    if data.vocab_size is not None:
        return data
    from elman.data.tokenizers.opening import named_tokenizer  # it may import a package

    tokenizer = named_tokenizer(data.tokenizer)
    return data.model_copy(update={"vocab_size": tokenizer.vocab_size})


def validate_data(section: Mapping[str, Any]) -> AnyData:
    """Return the typed form of section ``data`` of a file.

    Raises:
        UserError: as :func:`validate`.
    """
    refuse_unknown_task(section, frozenset())
    try:
        found: AnyData = _DATA.validate_python(section)
    except ValidationError as error:
        raise UserError(first_problem(error, {"data": section}, "data")) from None
    return found


def validate_model(section: Mapping[str, Any]) -> ModelConfig:
    """Return the typed form of section ``model`` of a file, with the cell's options as its keys.

    Raises:
        UserError: as :func:`validate`.
    """
    try:
        return ModelConfig.model_validate(_split_model(section, frozenset()))
    except ValidationError as error:
        raise UserError(first_problem(error, {"model": section}, "model")) from None


def check_read(named: Iterable[str], mode: Any) -> None:
    """Raise UserError on a key of a section that this mode does not read."""
    for key in sorted(named):
        if unread := unread_key(key, mode):
            raise UserError(unread)


def _check_combinations(config: RunConfig) -> None:
    """Raise UserError on sections that are each right but do not go together."""
    model = config.model
    parts = [(registry.cell(one.cell), one) for one in model.parts()]
    for cell, part in parts:
        cell.check_wrapper(part.wrapper)
        cell.check_mlp(part.mlp_ratio)
    for _, part in parts:
        if config.train.tbptt and part.options.get("context") == 0:
            add = "model.context=<bytes>, as in model.context=2048"
            if model.of_entry(part, "context"):
                add = f"the limit in model.layers, as in {{cell: {part.cell}, context: 2048}}"
            raise UserError(
                "train.tbptt=true: a carried attention over every byte so far grows without end; "
                f"add {add}, or drop train.tbptt"
            )
    if config.data.reset_at_documents:
        for cell, part in parts:
            other = part.cell != model.cell
            instead = f"leave {part.cell} out of model.layers" if other else "choose another model"
            asked = "data.reset_at_documents=true"
            cell.check_resets(part.options, asked, f"drop it, or {instead}")
    if isinstance(config.data, TaskConfig):
        _check_task(config.data, config.train)
    elif config.train.until_accuracy is not None:
        raise UserError(
            "train.until_accuracy: read only with a task, as in data=parity; text has no answers; "
            "drop it"
        )
    conflict = graph_conflict(config.train, model)
    if config.train.graph is True and conflict is not None:
        raise UserError(f"train.graph=true: {conflict}")
    # The settings of a resumed run are known only once its folder is read.
    if config.train.resume is None:
        check_ranks(config)


def _check_task(task: TaskConfig, train: TrainConfig) -> None:
    """Raise UserError on training settings with which the task cannot be learned."""
    task.check_lengths(f"train.chunk_size={train.chunk_size}", [train.chunk_size])
    if train.tbptt:
        raise UserError(
            f"train.tbptt=true: rows of data={task.task} do not continue one another; drop it"
        )
    if train.until_accuracy is not None and train.val_every is None:
        raise UserError(
            "train.until_accuracy: read at each validation, and train.val_every=null has one at "
            "the end only; add train.val_every=250"
        )


def validate_sweep(
    launcher: Any, sweep: Any, named: frozenset[str], tune: Any = None
) -> SweepSettings:
    """Return the typed settings of a whole sweep.

    Args:
        launcher: Section ``launcher`` of the composed tree, as plain containers.
        sweep: Section ``sweep``.
        named: Dotted keys that the user named.
        tune: Section ``tune``; None if nothing is tuned.

    Raises:
        UserError: as :func:`validate`.
    """
    name = launcher.get("name") if isinstance(launcher, Mapping) else None
    known = LAUNCHERS.get(name) if isinstance(name, str) else None
    if known is None or "launcher.name" in named:
        best = nearest(str(name), LAUNCHERS) or "gpus"
        raise UserError(
            f"launcher.name={shown(name)}: choose the launcher, with its settings, by "
            f"launcher={best}; choices: {', '.join(LAUNCHERS)}"
        )
    tree = {"launcher": launcher, "sweep": sweep, "tune": tune}
    try:
        return SweepSettings(
            launcher=known.model_validate(launcher),
            sweep=SweepConfig.model_validate(sweep),
            tune=None if tune is None else TuneConfig.model_validate(tune),
        )
    except ValidationError as error:
        titles = {known.__name__: "launcher", TuneConfig.__name__: "tune"}
        section = titles.get(error.title, "sweep")
        raise UserError(first_problem(error, tree, section)) from None


def _refuse_optimizer_by_key(optim: Any, named: frozenset[str]) -> None:
    if "optim.name" not in named or not isinstance(optim, Mapping):
        return
    name = optim.get("name")
    known = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if known is None or set(optim) != set(known.model_fields):
        best = nearest(str(name), OPTIMIZERS) or "adamw"
        raise UserError(
            f"optim.name={shown(name)}: choose the optimizer, with its settings, by "
            f"optim={best}; choices: {', '.join(OPTIMIZERS)}"
        )


def _split_model(model: Mapping[str, Any], named: frozenset[str]) -> dict[str, Any]:
    """Split the cell's options off the ``model`` section; check and complete them."""
    if not isinstance(cell_name := model.get("cell"), str):
        raise UserError("model.cell: missing; choose a model, as in model=e88_tiny")
    cell = registry.cell(cell_name)
    given = {key: value for key, value in model.items() if key not in MODEL_KEYS}
    unknown = [key for key in given if key not in cell.options]
    if unknown and "model.cell" in named:
        raise UserError(
            f"model.cell={cell_name}: the other settings belong to another cell; "
            "choose a model of that cell by model=<name>"
        )
    if unknown:
        raise UserError(not_an_option(unknown[0], cell_name, model.get("layers")))
    dim = whole(model.get("dim"))
    if type(dim) is not int:
        raise UserError(f"model.dim={shown(dim)}: expected a whole number, as in model.dim=512")
    named_options = frozenset(key.removeprefix("model.") for key in named)
    split = {key: model[key] for key in MODEL_KEYS if key in model}
    split["options"] = cell.parse_options(dim, given, named_options)
    section = {**model, "dim": dim}
    if (layers := checked_layers(section, split["options"], named_options)) is None:
        split.pop("layers", None)
    else:
        split["layers"] = layers
    if named & size_keys(cell.name) and "model.expected_params" not in named:
        split["expected_params"] = None
    return split
