"""Typed schema of everything in ``conf/``: the plain objects that the program works with.

Composition (Hydra) yields an untyped tree; :func:`validate` turns it into a :class:`RunConfig` or
raises one :class:`~elman.errors.UserError` that names the key. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elman.errors import UserError, did_you_mean
from elman.models import registry
from elman.models.registry.spec import Value

VOCAB_SIZE = 256
DIM_ALIGNMENT = 128

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration: immutable, strictly typed, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelConfig(Section):
    """Group ``model``: one cell in one language model.

    ``options`` holds the cell's own settings, already checked and complete; in YAML and on the
    command line they stand beside the other keys (``model.n_state=16``).
    """

    name: str
    cell: str
    dim: Count
    depth: Count
    wrapper: Literal["rms", "legacy_ln"] = "rms"
    allow_unaligned: bool = False
    expected_params: Count | None = None
    options: dict[str, Value] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _aligned(self) -> ModelConfig:
        if self.dim % DIM_ALIGNMENT and not self.allow_unaligned:
            below = max(DIM_ALIGNMENT, self.dim // DIM_ALIGNMENT * DIM_ALIGNMENT)
            above = (self.dim // DIM_ALIGNMENT + 1) * DIM_ALIGNMENT
            near = f"{below} or {above}" if below < self.dim else f"{above}"
            raise UserError(
                f"model.dim={self.dim}: not a multiple of {DIM_ALIGNMENT}; "
                f"use {near}, or add model.allow_unaligned=true"
            )
        return self


class DataConfig(Section):
    """Group ``data``: raw bytes and how much of their tail is held out.

    Args:
        path: A file, a glob, or a list of them; null is the Python standard library's own text.
        val_bytes: Length of the held-out tail in bytes; null is 5 % of the data, at most 4 MiB.
        val_sample: Bytes predicted at each validation, at fixed positions of the tail.
    """

    path: str | list[str] | None = None
    val_bytes: Count | None = None
    val_sample: Count = 65536


class AdamWConfig(Section):
    """``optim=adamw``: fp32 master weights, decay on matrices only, warm-up then a schedule."""

    name: Literal["adamw"]
    lr: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    schedule: Literal["cosine", "constant"]
    final_lr_ratio: Annotated[float, Field(ge=0, le=1)]
    weight_decay: NonNegative
    beta1: Fraction
    beta2: Fraction
    eps: Positive


class ScheduleFreeConfig(Section):
    """``optim=schedulefree``: schedule-free AdamW of the ``schedulefree`` library."""

    name: Literal["schedulefree"]
    lr: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: NonNegative
    beta1: Annotated[float, Field(gt=0, lt=1)]
    beta2: Fraction
    eps: Positive


class LegacyConfig(Section):
    """``optim=legacy``: AdamW with the periodic cosine of the January 2026 runs (comparison only).

    Weight decay on every parameter; the rate returns to ``lr`` every ``2 * warmup_steps`` steps.
    """

    name: Literal["legacy"]
    lr: Positive
    warmup_steps: Count
    weight_decay: NonNegative
    beta1: Fraction
    beta2: Fraction
    eps: Positive


OptimConfig = Annotated[
    AdamWConfig | ScheduleFreeConfig | LegacyConfig, Field(discriminator="name")
]


class TrainConfig(Section):
    """Group ``train``. With neither ``minutes`` nor ``steps``, a run lasts one minute.

    Args:
        minutes: Training time; validation and checkpoints do not count.
        steps: Optimizer steps.
        batch_size: Rows per micro-batch.
        chunk_size: Bytes predicted per row.
        seed: Seed of the initial weights and of the data order.
        grad_accum: Micro-batches per optimizer step.
        grad_clip: Largest global gradient norm; 0 is off.
        tbptt: Train on ``batch_size`` contiguous streams with carried states.
        compile: torch.compile the model.
        activation_checkpointing: Recompute each mixer in the backward pass.
        device: ``auto`` is the GPU if there is one.
        precision: ``auto`` is bf16 autocast on a GPU and fp32 on a CPU.
        deterministic: Refuse operations whose results vary from run to run.
        profile: Write a torch profiler trace of a few steps into the run folder.
        val_every: Optimizer steps between validations; null is only at the end.
        save_every: Optimizer steps between checkpoints; null leaves it to ``save_minutes``.
        save_minutes: Minutes between checkpoints; null leaves it to ``save_every``.
        keep_checkpoints: Newest checkpoints kept; the best one is kept besides.
        resume: Run folder to continue.
        init_from: Run folder or checkpoint whose weights a new run starts from.
    """

    minutes: Positive | None = None
    steps: Count | None = None
    batch_size: Count
    chunk_size: Count
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    grad_accum: Count = 1
    grad_clip: NonNegative = 1.0
    tbptt: bool = False
    compile: bool = False
    activation_checkpointing: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    deterministic: bool = False
    profile: bool = False
    val_every: Count | None = None
    save_every: Count | None = None
    save_minutes: Positive | None = None
    keep_checkpoints: Count = 2
    resume: str | None = None
    init_from: str | None = None

    @property
    def budget_minutes(self) -> float | None:
        """Minutes that bound the run; one minute if neither minutes nor steps are named."""
        if self.minutes is None and self.steps is None:
            return 1.0
        return self.minutes


class KernelsConfig(Section):
    """Group ``kernels``: which implementation of the recurrence runs."""

    backend: Literal["auto", "reference", "cpu", "cuda", "triton"] = "auto"


class LogConfig(Section):
    """Group ``log``.

    Args:
        every: Optimizer steps between records and progress lines.
        tensorboard: Write TensorBoard events into the run folder.
        wandb: Also report to Weights & Biases (needs ``pip install 'elman[wandb]'``).
        wandb_project: Project name there.
    """

    every: Count = 10
    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str = "elman"


class EvalConfig(Section):
    """Keys of ``mode=eval``.

    Args:
        checkpoint: Run folder, its ``checkpoints`` folder, or one checkpoint in it.
        path: Bytes to score; null is the run's own held-out tail at its fixed positions.
        max_bytes: Score at most so many bytes of ``path``, evenly spaced; null is all of it.
        batch_size: Rows at a time; null is the run's own.
        carry_state: Score ``path`` as one contiguous text with carried state, not in windows.
        device: As ``train.device``.
    """

    checkpoint: str
    path: str | list[str] | None = None
    max_bytes: Count | None = None
    batch_size: Count | None = None
    carry_state: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"


class GenerateConfig(Section):
    """Keys of ``mode=generate``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        prompt: Text to continue.
        max_bytes: Bytes to generate.
        temperature: 0 always takes the most probable byte.
        top_k: Sample among the k most probable bytes; 0 is off.
        top_p: Sample among the smallest set of bytes with this probability; 1 is off.
        seed: Seed of the sampling.
        device: As ``train.device``.
    """

    checkpoint: str
    prompt: str = ""
    max_bytes: Count = 500
    temperature: NonNegative = 0.8
    top_k: Annotated[int, Field(ge=0, le=VOCAB_SIZE)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    device: Literal["auto", "cpu", "cuda"] = "auto"


class RunConfig(Section):
    """One job, whole. ``eval`` and ``generate`` are present in their own modes only."""

    mode: Literal["train", "eval", "generate"]
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig
    train: TrainConfig
    kernels: KernelsConfig
    log: LogConfig
    eval: EvalConfig | None = None
    generate: GenerateConfig | None = None


_MODEL_KEYS = tuple(key for key in ModelConfig.model_fields if key != "options")


def validate(tree: Mapping[str, Any], named: frozenset[str] = frozenset()) -> RunConfig:
    """Return the typed configuration of a composed tree.

    Args:
        tree: Plain containers with the sections of :class:`RunConfig`; the cell's options stand
            flat in ``model``.
        named: Dotted keys that the user named, for errors about settings that nothing reads.

    Raises:
        UserError: one line with the key, what is wrong with it, and what to type.
    """
    sections = {key: value for key, value in tree.items()}
    if isinstance(model := sections.get("model"), Mapping):
        sections["model"] = _split_model(model, named)
    try:
        return RunConfig.model_validate(sections)
    except ValidationError as error:
        raise UserError(_first_problem(error)) from None


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the tree that :func:`validate` accepts again, with the cell's options flat."""
    tree = config.model_dump(exclude_none=False)
    tree["model"] |= tree["model"].pop("options")
    return {key: value for key, value in tree.items() if value is not None}


def size_keys(cell_name: str) -> frozenset[str]:
    """Return the dotted keys that change the parameter count of a model with this cell."""
    options = registry.cell(cell_name).options
    sizes = {name for name, option in options.items() if option.size}
    return frozenset(f"model.{key}" for key in sizes | {"cell", "dim", "depth", "wrapper"})


def _split_model(model: Mapping[str, Any], named: frozenset[str]) -> dict[str, Any]:
    """Move the cell's options out of the flat ``model`` section, checked and completed."""
    if not isinstance(cell_name := model.get("cell"), str):
        raise UserError("model.cell: missing; choose a model, as in model=e88_tiny")
    cell = registry.cell(cell_name)
    dim = model.get("dim")
    if type(dim) is not int:
        raise UserError(f"model.dim={dim}: expected a whole number, as in model.dim=512")
    given = {key: value for key, value in model.items() if key not in _MODEL_KEYS}
    unknown = [key for key in given if key not in cell.options]
    if unknown:
        hint = did_you_mean(unknown[0], (*_MODEL_KEYS, *cell.options))
        raise UserError(
            f"model.{unknown[0]}: cell {cell.name} does not read it{hint}; "
            f"its options: {', '.join(cell.options)}"
        )
    named_options = frozenset(key.removeprefix("model.") for key in named)
    split = {key: model[key] for key in _MODEL_KEYS if key in model}
    split["options"] = cell.parse_options(dim, given, named_options)
    if named & size_keys(cell.name) and "model.expected_params" not in named:
        split["expected_params"] = None
    return split


def _first_problem(error: ValidationError) -> str:
    """Word the first of pydantic's findings as one line."""
    problem = error.errors()[0]
    tags = {"adamw", "schedulefree", "legacy"}
    location = [str(part) for part in problem["loc"] if part not in tags and part != "list[str]"]
    if location and location[-1] == "str":
        location = location[:-1]
    key = ".".join(location)
    given = problem.get("input")
    kind = problem["type"]
    if kind == "extra_forbidden":
        return f"{key}: no such setting{did_you_mean(key, known_keys())}"
    if kind == "missing":
        return f"{key}: missing; add {key}=..."
    wording = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "value_error":
        return wording
    return f"{key}={_shown(given)}: expected {wording}"


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def known_keys() -> list[str]:
    """Return every dotted key of the configuration, all cells and modes included."""
    keys = ["mode"]
    keys += [f"model.{key}" for key in _MODEL_KEYS]
    for cell in registry.cells().values():
        keys += [f"model.{name}" for name in cell.options]
    for name, section in _sections():
        keys += [f"{name}.{key}" for key in section.model_fields]
    return list(dict.fromkeys(keys))


def _sections() -> Iterator[tuple[str, type[Section]]]:
    yield "data", DataConfig
    for optim in (AdamWConfig, ScheduleFreeConfig, LegacyConfig):
        yield "optim", optim
    yield "train", TrainConfig
    yield "kernels", KernelsConfig
    yield "log", LogConfig
    yield "eval", EvalConfig
    yield "generate", GenerateConfig
