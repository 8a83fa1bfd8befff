"""Typed schema of everything in ``conf/``: the plain objects that the program works with.

Composition (Hydra) yields an untyped tree; :func:`validate` turns it into a :class:`RunConfig` or
raises one :class:`~elman.base.errors.UserError` that names the key. The sections are in
:mod:`elman.sections`. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from elman.base.errors import UserError, did_you_mean, nearest
from elman.config.meanings import meant_key
from elman.models.cells import registry
from elman.sections.data import TEXT, AnyData, chosen_by_file, refuse_unknown_task
from elman.sections.graphs import graph_conflict
from elman.sections.launching import LAUNCHERS, SweepConfig, SweepSettings
from elman.sections.measuring import BenchConfig, ParityConfig
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.modes import EvalConfig, GenerateConfig, ModelsConfig, SolveConfig
from elman.sections.optim import OPTIMISERS, OptimConfig
from elman.sections.parallel import ParallelConfig, refuse_uneven
from elman.sections.reporting import ReportConfig
from elman.sections.section import Section
from elman.sections.tasks import TASKS, TaskConfig
from elman.sections.training import (
    BaselineConfig,
    DataConfig,
    KernelsConfig,
    LogConfig,
    TrainConfig,
)


class RunConfig(Section):
    """The configuration of one job. Sections after ``log`` exist only in the mode they name."""

    mode: Literal[
        "train",
        "eval",
        "generate",
        "solve",
        "models",
        "suites",
        "doctor",
        "parity",
        "bench",
        "report",
        "tasks",
    ]
    model: ModelConfig
    data: AnyData
    optim: OptimConfig
    train: TrainConfig
    kernels: KernelsConfig
    baseline: BaselineConfig = BaselineConfig()
    parallel: ParallelConfig = ParallelConfig()
    log: LogConfig
    eval: EvalConfig | None = None
    generate: GenerateConfig | None = None
    solve: SolveConfig | None = None
    models: ModelsConfig | None = None
    parity: ParityConfig | None = None
    bench: BenchConfig | None = None
    report: ReportConfig | None = None


_DATA: TypeAdapter[AnyData] = TypeAdapter(AnyData)
_VOCABULARY = (
    "model.vocab_size: follows the data, 256 for text and its own symbols for a task; drop it"
)
_MODEL_KEYS = tuple(key for key in ModelConfig.model_fields if key != "options")
# Sections without a config group of their own: the file of their mode contains them.
_MODE_SECTIONS = ("eval", "generate", "solve", "models", "parity", "bench", "report")
OF_SWEEPS = ("launcher", "sweep")
"""Groups that only a sweep as a whole reads, never a single job."""
_SECTIONS: dict[str, type[Section]] = {
    "train": TrainConfig,
    "kernels": KernelsConfig,
    "baseline": BaselineConfig,
    "parallel": ParallelConfig,
    "log": LogConfig,
    "eval": EvalConfig,
    "generate": GenerateConfig,
    "solve": SolveConfig,
    "models": ModelsConfig,
    "parity": ParityConfig,
    "bench": BenchConfig,
    "report": ReportConfig,
}


@dataclass(frozen=True)
class Mode:
    """What the rest of the program knows about a mode before its module is imported.

    Args:
        reads: Sections that it reads; a key of another section is an error on the command line.
        makes_folder: Whether a job of this mode gets a run folder.
        result_file: File in the run folder with the result of a job that has ended.
        table: ``module:function`` that prints the table at the end of a sweep; it gets the sweep's
            rows, configurations and folder.
        compares: Whether the table compares models, which is unfair if their sizes differ.
        in_process: Whether a sweep runs its jobs in its own process, one after another: for a mode
            that makes no folder and ends in seconds.
    """

    reads: frozenset[str]
    makes_folder: bool = False
    result_file: str = "result.json"
    table: str = "elman.report.tables.sweep:print_sweep"
    compares: bool = False
    in_process: bool = False


MODES: dict[str, Mode] = {
    "train": Mode(
        frozenset(
            {
                "model",
                "data",
                "optim",
                "train",
                "kernels",
                "baseline",
                "parallel",
                "log",
                "benchmark",
            }
        ),
        makes_folder=True,
        table="elman.report.comparison.sweep_end:print_training_sweep",
        compares=True,
    ),
    "eval": Mode(frozenset({"eval", "kernels", "baseline"})),
    "generate": Mode(frozenset({"generate", "kernels", "baseline"})),
    "solve": Mode(
        frozenset({"solve", "model", "train", "kernels"}),
        table="elman.report.tables.solve:print_solutions",
        in_process=True,
    ),
    "models": Mode(frozenset({"models", "model"}), in_process=True),
    "suites": Mode(frozenset({"benchmark"}), in_process=True),
    "doctor": Mode(frozenset()),
    "tasks": Mode(frozenset({"data"}), in_process=True),
    "report": Mode(frozenset({"report"}), in_process=True),
    "parity": Mode(
        frozenset({"parity", "model", "kernels", "baseline", "benchmark"}),
        makes_folder=True,
        result_file="parity.json",
        table="elman.report.tables.parity:print_parity_sweep",
    ),
    "bench": Mode(
        frozenset({"bench", "model", "data", "optim", "baseline", "benchmark"}),
        makes_folder=True,
        compares=True,
        result_file="bench.json",
        table="elman.report.tables.bench:print_bench_sweep",
    ),
}


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
    _refuse_optimiser_by_key(sections.get("optim"), named)
    refuse_unknown_task(sections.get("data"), named)
    if isinstance(model := sections.get("model"), Mapping):
        sections["model"] = _split_model(model, named)
    try:
        config = RunConfig.model_validate(sections)
    except ValidationError as error:
        raise UserError(_first_problem(error, sections)) from None
    _check_combinations(config)
    config = _with_its_vocabulary(config, named)
    for section in (config.solve, config.models):
        if section is not None:
            section.refuse(config.model, named)
    return config


def _with_its_vocabulary(config: RunConfig, named: frozenset[str]) -> RunConfig:
    """Return the configuration with a model whose vocabulary is that of the data."""
    if "model.vocab_size" in named:
        raise UserError(_VOCABULARY)
    task = config.data if isinstance(config.data, TaskConfig) else None
    model = config.model.with_vocabulary(VOCAB_SIZE if task is None else task.vocabulary)
    if "model.expected_params" in named:
        model = model.model_copy(update={"expected_params": config.model.expected_params})
    return config.model_copy(update={"model": model})


def validate_data(section: Mapping[str, Any]) -> AnyData:
    """Return the typed form of section ``data`` of a file.

    Raises:
        UserError: as :func:`validate`.
    """
    refuse_unknown_task(section, frozenset())
    try:
        found: AnyData = _DATA.validate_python(section)
    except ValidationError as error:
        raise UserError(_first_problem(error, {"data": section}, "data")) from None
    return found


def check_read(named: Iterable[str], mode: Any) -> None:
    """Raise UserError on a key of a section that this mode does not read."""
    for key in sorted(named):
        if unread := _unread(key, mode):
            raise UserError(unread)


def _check_combinations(config: RunConfig) -> None:
    """Raise UserError on sections that are each right but do not go together."""
    model = config.model
    registry.cell(model.cell).check_wrapper(model.wrapper)
    registry.cell(model.cell).check_mlp(model.mlp_ratio)
    if config.train.tbptt and model.options.get("context") == 0:
        raise UserError(
            "train.tbptt=true: a carried attention over every byte so far grows without end; "
            "add model.context=<bytes>, as in model.context=2048, or drop train.tbptt"
        )
    if config.data.reset_at_documents:
        asked, instead = "data.reset_at_documents=true", "drop it, or choose another model"
        registry.cell(model.cell).check_resets(model.options, asked, instead)
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
        check_ranked(config)


def check_ranked(config: RunConfig, ranks: int = 1) -> None:
    """Raise UserError on settings of ranks that do not go with those of the training.

    Args:
        config: The configuration as it is trained.
        ranks: How many processes train it.
    """
    parallel, optim = config.parallel, config.optim.name
    if isinstance(config.data, TaskConfig) and (ranks > 1 or parallel.exact is True):
        what, instead = "parallel.exact=true", "drop it"
        if ranks > 1:
            what, instead = f"{ranks} ranks", "use one, or a GPU for each seed: -m train.seed=1,2"
        raise UserError(
            f"data={config.data.task}: a task is trained on one rank, not with {what}: its models "
            f"are small, and a part of a batch may have fewer answers than another; {instead}"
        )
    if parallel.exact is True:
        refuse_uneven(parallel.virtual_shards, config.train.batch_size)
    if parallel.average_every and optim == "schedulefree":
        raise UserError(
            f"parallel.average_every={parallel.average_every}: optim=schedulefree trains two sets "
            "of weights, which one mean does not keep together; choose optim=adamw"
        )
    if parallel.shard == "none":
        return
    cut = f"parallel.shard={parallel.shard}"
    if optim in ("muon", "schedulefree"):
        raise UserError(f"{cut}: optim={optim} needs whole weights; choose optim=adamw")
    for name, used in (("compile", config.train.compile), ("graph", config.train.graph is True)):
        if used:
            raise UserError(
                f"train.{name}=true: cannot be combined with {cut}, whose weights come and go in "
                "a pass; drop one of them"
            )


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


def validate_sweep(launcher: Any, sweep: Any, named: frozenset[str]) -> SweepSettings:
    """Return the typed settings of a whole sweep.

    Args:
        launcher: Section ``launcher`` of the composed tree, as plain containers.
        sweep: Section ``sweep``.
        named: Dotted keys that the user named.

    Raises:
        UserError: as :func:`validate`.
    """
    name = launcher.get("name") if isinstance(launcher, Mapping) else None
    known = LAUNCHERS.get(name) if isinstance(name, str) else None
    if known is None or "launcher.name" in named:
        best = nearest(str(name), LAUNCHERS) or "gpus"
        raise UserError(
            f"launcher.name={_shown(name)}: choose the launcher, with its settings, by "
            f"launcher={best}; choices: {', '.join(LAUNCHERS)}"
        )
    tree = {"launcher": launcher, "sweep": sweep}
    try:
        return SweepSettings(
            launcher=known.model_validate(launcher), sweep=SweepConfig.model_validate(sweep)
        )
    except ValidationError as error:
        section = "launcher" if error.title == known.__name__ else "sweep"
        raise UserError(_first_problem(error, tree, section)) from None


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return a tree that :func:`validate` accepts, with the cell's options as keys of ``model``."""
    tree = config.model_dump(exclude_none=False)
    tree["model"] |= tree["model"].pop("options")
    return {key: value for key, value in tree.items() if value is not None}


def size_keys(cell_name: str) -> frozenset[str]:
    """Return the dotted keys that change the parameter count of a model with this cell."""
    options = registry.cell(cell_name).options
    sizes = {name for name, option in options.items() if option.size}
    return frozenset(
        f"model.{key}" for key in sizes | {"cell", "dim", "depth", "wrapper", "mlp_ratio"}
    )


def known_keys(tree: Mapping[str, Any] | None = None) -> list[str]:
    """Return every dotted key of all cells, optimizers and modes, or of those in ``tree``."""
    chosen = tree or {}
    mode, cell, optim = (_chosen(chosen, path) for path in ("mode", "model.cell", "optim.name"))
    cells = [registry.cells()[cell]] if cell in registry.cells() else registry.cells().values()
    optims = [OPTIMISERS[optim]] if optim in OPTIMISERS else OPTIMISERS.values()
    keys = [f"model.{key}" for key in _MODEL_KEYS]
    keys += [f"model.{name}" for declared in cells for name in declared.options]
    keys += [f"optim.{key}" for section in optims for key in section.model_fields]
    task = _chosen(chosen, "data.task")
    of_data: list[type[Section]] = [DataConfig, *TASKS.values()]
    if task in TASKS:
        of_data = [TASKS[task]]
    keys += [f"data.{key}" for part in of_data for key in part.model_fields if key != "task"]
    keys += [f"{name}.{key}" for name, part in _SECTIONS.items() for key in part.model_fields]
    launcher = _chosen(chosen, "launcher.name")
    launchers = [LAUNCHERS[launcher]] if launcher in LAUNCHERS else LAUNCHERS.values()
    of_sweeps = [f"launcher.{key}" for part in launchers for key in part.model_fields]
    of_sweeps += [f"sweep.{key}" for key in SweepConfig.model_fields]
    of_sweeps += ["benchmark.only"]
    read = MODES[mode].reads if mode in MODES else {key.split(".")[0] for key in keys}
    read_keys = dict.fromkeys(key for key in keys if key.split(".")[0] in read)
    return ["mode", *read_keys, *dict.fromkeys(of_sweeps)]


# Groups have short names, in which one wrong letter weighs more.
_GROUP_LIKE = 0.6


def unknown_key(key: str, value: str, tree: Mapping[str, Any] | None = None) -> str:
    """Return the error for a key that composition does not know, given the tree's choices.

    Args:
        key: Dotted key or group as the user typed it, without ``+``.
        value: Its value as typed.
        tree: The sections composed without that key, if they compose.
    """
    section, _, name = key.partition(".")
    if unread := _unread(key, (tree or {}).get("mode", "train")):
        return unread
    if key == "data.task":
        return chosen_by_file(value)
    if key in known_keys():
        return _known_elsewhere(key, section, tree or {})
    if key in RunConfig.model_fields:
        return whole_section(key, value)
    if section == "model" and name and (cell := _chosen(tree or {}, "model.cell")):
        return _not_an_option(name, cell)
    if not name:
        groups = [group for group in RunConfig.model_fields if group not in _MODE_SECTIONS]
        # `modle=e1` means a group.
        if group := nearest(key, [*groups, *OF_SWEEPS, "benchmark"], _GROUP_LIKE):
            return f"{key}={value}: no such setting; did you mean {group}={value}?"
    meant = meant_key(key, known_keys(tree)) or meant_key(key, known_keys())
    hint = "`elman --cfg job` prints every setting"
    if meant is not None:
        best, fits = meant
        hint = f"did you mean {best}={value if fits else '...'}?"
    return f"{key}={value}: no such setting; {hint}"


def _known_elsewhere(key: str, section: str, tree: Mapping[str, Any]) -> str:
    if section == "optim":
        owners = [name for name, part in OPTIMISERS.items() if key[6:] in part.model_fields]
        return (
            f"{key}: optim={_chosen(tree, 'optim.name')} does not read it; "
            f"drop it or choose optim={' or optim='.join(owners)}"
        )
    if section == "data":
        return _of_another_task(key, tree)
    if section == "launcher":
        owners = [name for name, part in LAUNCHERS.items() if key[9:] in part.model_fields]
        return (
            f"{key}: launcher={_chosen(tree, 'launcher.name')} does not read it; "
            f"drop it or choose launcher={' or launcher='.join(owners)}"
        )
    if section == "model" and (cell := _chosen(tree, "model.cell")):
        return _not_an_option(key.removeprefix("model."), cell)
    return f"{key}: not a setting of the groups chosen here; `elman --cfg job` prints those"


def _of_another_task(key: str, tree: Mapping[str, Any]) -> str:
    """Return the error for a setting of text with a task, or of another task, or with text."""
    name, task = key.removeprefix("data."), _chosen(tree, "data.task")
    owners = [one for one, part in TASKS.items() if name in part.model_fields]
    owners = ["default", *owners] if name in DataConfig.model_fields else owners
    chosen = "text" if task is None else f"data={task}"
    return f"{key}: {chosen} does not read it; drop it or choose data={' or data='.join(owners)}"


def whole_section(section: str, value: str) -> str:
    """Return the error for a value given to a whole section."""
    example = next(known for known in known_keys() if known.startswith(f"{section}."))
    return (
        f"{section}={value}: {section} is a group of settings; set one of them, as in {example}=..."
    )


def _unread(key: str, mode: Any) -> str | None:
    """Return the error line if a known mode does not read the section of ``key``."""
    section = re.split(r"[./@]", key)[0]
    readers = [name for name, declared in MODES.items() if section in declared.reads]
    if mode not in MODES or not readers or mode in readers:
        return None
    # Several modes read what training reads; to name them all would hide the usual one.
    usual = ["train"] if "train" in readers else readers
    ways = " or ".join(f"mode={reader}" for reader in usual)
    drop = f"drop it or use {ways}" if mode != "train" else f"add {ways} or drop it"
    return f"{key}: read only with {ways}, not with mode={mode}; {drop}"


def _refuse_optimiser_by_key(optim: Any, named: frozenset[str]) -> None:
    if "optim.name" not in named or not isinstance(optim, Mapping):
        return
    name = optim.get("name")
    known = OPTIMISERS.get(name) if isinstance(name, str) else None
    if known is None or set(optim) != set(known.model_fields):
        best = nearest(str(name), OPTIMISERS) or "adamw"
        raise UserError(
            f"optim.name={_shown(name)}: choose the optimizer, with its settings, by "
            f"optim={best}; choices: {', '.join(OPTIMISERS)}"
        )


def _split_model(model: Mapping[str, Any], named: frozenset[str]) -> dict[str, Any]:
    """Split the cell's options off the ``model`` section; check and complete them."""
    if not isinstance(cell_name := model.get("cell"), str):
        raise UserError("model.cell: missing; choose a model, as in model=e88_tiny")
    cell = registry.cell(cell_name)
    given = {key: value for key, value in model.items() if key not in _MODEL_KEYS}
    unknown = [key for key in given if key not in cell.options]
    if unknown and "model.cell" in named:
        raise UserError(
            f"model.cell={cell_name}: the other settings belong to another cell; "
            "choose a model of that cell by model=<name>"
        )
    if unknown:
        raise UserError(_not_an_option(unknown[0], cell_name))
    dim = model.get("dim")
    if type(dim) is not int:
        raise UserError(f"model.dim={_shown(dim)}: expected a whole number, as in model.dim=512")
    named_options = frozenset(key.removeprefix("model.") for key in named)
    split = {key: model[key] for key in _MODEL_KEYS if key in model}
    split["options"] = cell.parse_options(dim, given, named_options)
    if named & size_keys(cell.name) and "model.expected_params" not in named:
        split["expected_params"] = None
    return split


def _not_an_option(name: str, cell_name: str) -> str:
    if name == "vocab_size":
        return _VOCABULARY
    cell = registry.cell(cell_name)
    hint = did_you_mean(name, (*_MODEL_KEYS, *cell.options))
    return (
        f"model.{name}: cell {cell_name} does not read it{hint}; "
        f"its options: {', '.join(cell.options)}"
    )


def _chosen(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None."""
    node: Any = tree
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


_BRANCHES = (*OPTIMISERS, *TASKS, TEXT, "int", "str", "list[str]")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "text or a list of texts",
    "finite_number": "a finite number",
}
_BOUND_WORDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _first_problem(error: ValidationError, tree: Mapping[str, Any], section: str = "") -> str:
    """Return pydantic's first finding as one line; ``section`` is what was validated."""
    problem = error.errors()[0]
    parts = [str(part) for part in ((section,) if section else ()) + problem["loc"]]
    # pydantic adds the branches of unions, which are not keys: optim.adamw.lr, data.path.str.
    parts = [p for n, p in enumerate(parts) if n == 0 or p not in _BRANCHES]
    # Positions in lists are not keys either: bench.peers.0.
    parts = [part for part in parts if not part.isdigit()]
    key, given, kind = ".".join(parts), problem.get("input"), problem["type"]
    context = problem.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(key, _shown(given), tree)
    if kind == "missing":
        return f"{key}: missing; add {key}=..."
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return whole_section(key, _shown(given))
    if kind == "literal_error":
        expected = str(context["expected"]).replace("True", "true").replace("False", "false")
        choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
        hint = did_you_mean(str(given), choices)
        return f"{key}={_shown(given)}: expected one of {', '.join(choices)}{hint}"
    if kind in _BOUND_WORDS:
        name, words = _BOUND_WORDS[kind]
        if kind == "less_than" and isinstance(context[name], int):
            return f"{key}={_shown(given)}: must be at most {context[name] - 1}"
        return f"{key}={_shown(given)}: must be {words} {_written_out(context[name])}"
    if kind == "list_type" and (section or parts[-1] == "lengths"):
        return f"{key}={_shown(given)}: expected a list, as in {key}=[{_shown(given)}]"
    if kind == "too_short":
        return f"{key}=[]: an empty list; name one value or more, as in {key}=[1]"
    wording = _TYPE_WORDS.get(kind, problem["msg"].removeprefix("Input should be "))
    return f"{key}={_shown(given)}: expected {wording}"


def _written_out(limit: float) -> str:
    """Return a limit with all its digits: 4294967296, not 4.29497e+09."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def _shown(value: Any) -> str:
    """Return a value as a person types it, shortened."""
    text = "null" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."
