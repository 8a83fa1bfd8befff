"""Sections in the YAML of a mode, one for each mode that has keys of its own."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from elman.base.errors import UserError
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.section import Count, NonNegative, Positive, Section, rounded
from elman.sections.training import DataFormat, refuse_unread


class EvalConfig(Section):
    """Keys of ``mode=eval``.

    Args:
        checkpoint: Run folder, its ``checkpoints`` folder, or one checkpoint in it.
        path: Bytes to score; null is the run's own held-out tail at its fixed positions.
        format: As ``data.format``, of ``path``.
        field: As ``data.field``, of ``path``.
        max_bytes: Score at most so many bytes of ``path``, evenly spaced; null is all of it.
        batch_size: Rows at a time; null is the run's own.
        lengths: Of a run that learned a task: test these lengths; null is the run's own.
        carry_state: Score ``path`` as one contiguous text with carried state, not in windows.
        device: As ``train.device``.
    """

    checkpoint: str
    path: str | list[str] | None = None
    format: DataFormat = "auto"
    field: str = "text"
    max_bytes: Count | None = None
    batch_size: Count | None = None
    lengths: Annotated[list[Count], Field(min_length=1)] | None = None
    carry_state: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _each_is_read(self) -> Self:
        refuse_unread("eval", self.path, self.format, self.field)
        return self


class GenerateConfig(Section):
    """Keys of ``mode=generate``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        prompt: Text to continue, or a list of texts, which are continued together.
        samples: Continuations of each prompt, each with random draws of its own.
        max_bytes: Bytes to generate after each.
        temperature: 0 always takes the most probable byte.
        top_k: Sample among the k most probable bytes; 0 is off.
        top_p: Sample among the smallest set of bytes with this probability; 1 is off.
        seed: Seed of the sampling; continuation i draws with ``seed + i``.
        state: File from ``save_state``; its texts continue, with the prompt after them.
        save_state: File to write the state after the last byte to.
        graph: ``auto`` replays each step as a CUDA graph on a GPU where the state keeps its shape.
        precision: As ``train.precision``; ``auto`` is the precision of the training run.
        device: As ``train.device``.
    """

    checkpoint: str
    prompt: str | list[str] = ""
    samples: Count = 1
    max_bytes: Count = 500
    temperature: NonNegative = 0.8
    top_k: Annotated[int, rounded, Field(ge=0, le=VOCAB_SIZE)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 42
    state: str | None = None
    save_state: str | None = None
    graph: bool | Literal["auto"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


Size = Literal["dim", "depth", "n_heads", "n_state", "rank", "expansion"]
"""Sizes that ``mode=solve`` can find; those after depth are options that only some cells have."""
_DIM: list[Size] = ["dim"]
# `solve.over=depth` means `solve.over=[depth]`.
_one_or_more = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "g": 1_000_000_000}


MOST_PARAMS = 10**12
MOST_LAYERS = 1024
"""The models that are found are built whole, layer by layer."""


def parse_params(value: object) -> int | None:
    """Return a number of parameters typed as 100M, 1.3B, 50k, 1e8 or 100_000_000.

    Raises:
        UserError: it has none of these forms, is less than one, or absurdly large.
    """
    if value is None:
        return None
    text = str(value).replace("_", "")
    found = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d+)?)([kmbg]?)", text, re.IGNORECASE)
    # Decimal, because 1.3 * 1e9 is not a whole number in float arithmetic.
    params = round(Decimal(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if params < 1 or isinstance(value, bool):
        raise UserError(
            f"solve.params={value}: expected a number of parameters, as in 100M, 1.3B, 50k or 1e8"
        )
    if params > MOST_PARAMS:
        raise UserError(
            f"solve.params={value}: more than {MOST_PARAMS:,}, the most that is searched for"
        )
    return params


class SolveConfig(Section):
    """Keys of ``mode=solve``.

    Args:
        params: Wanted number of parameters, as 100M, 1.3B, 50k, 1e8 or 100_000_000.
        over: The size to find, or several to find together; every other size stays as it is.
        depth: Layers; null is the model's own depth.
        ranks: GPUs that train the model together; its memory is estimated for each of them.
        gpu_gb: Memory of each GPU in GiB. Without ``params``, the largest size that fits is found.
        standard: Print the seeds' standard 100M table beside ours, and nothing else.
    """

    params: Annotated[int | None, BeforeValidator(parse_params)] = None
    over: Annotated[list[Size], _one_or_more] = Field(default_factory=_DIM.copy)
    depth: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
    ranks: Count = 1
    gpu_gb: Positive | None = None
    standard: bool = False

    @model_validator(mode="after")
    def _has_a_target(self) -> SolveConfig:
        if self.params is None and self.gpu_gb is None and not self.standard:
            raise UserError("solve.params: missing; add solve.params=100M")
        if self.params is None and self.gpu_gb is not None and len(self.over) > 1:
            raise UserError(
                f"solve.over=[{','.join(self.over)}]: what fits into solve.gpu_gb is found for one "
                "size; type solve.over=dim, or add solve.params=100M"
            )
        return self

    def refuse(self, model: ModelConfig, named: frozenset[str]) -> None:
        """Raise UserError on a size that the cell lacks, or a typed key that nothing would read."""
        if self.standard:
            if unread := sorted(named - {"mode", "solve.standard"}):
                raise UserError(
                    f"{unread[0]}: not read with solve.standard=true, which prints one table; "
                    "drop one of them"
                )
            return
        self._refuse_sizes(model, named)
        if self.depth is not None and "model.depth" in named:
            raise UserError("model.depth: not read together with solve.depth; drop one of them")
        if self.depth is None and model.depth > MOST_LAYERS:
            raise UserError(
                f"model.depth={model.depth}: mode=solve builds at most {MOST_LAYERS} layers"
            )

    def _refuse_sizes(self, model: ModelConfig, named: frozenset[str]) -> None:
        """Raise UserError on sizes that cannot be found, or that the user also set."""
        sizes = [size for size in get_args(Size) if size in ("dim", "depth", *model.options)]
        typed = self.over[0] if len(self.over) == 1 else f"[{','.join(self.over)}]"
        if not self.over or len(set(self.over)) < len(self.over):
            raise UserError(
                f"solve.over={typed}: name each size once, as in solve.over=[dim,depth]"
            )
        for size in self.over:
            if size not in sizes:
                raise UserError(
                    f"solve.over={typed}: cell {model.cell} has no such size as {size}; "
                    f"choose from {', '.join(sizes)}"
                )
            if f"model.{size}" in named:
                raise UserError(
                    f"model.{size}: not read with solve.over={typed}, which finds it; drop it"
                )
        if "depth" in self.over and self.depth is not None:
            raise UserError(
                f"solve.depth: not read with solve.over={typed}, which finds it; drop it"
            )


class ModelsConfig(Section):
    """Keys of ``mode=models``.

    Args:
        filter: List only the models that have this text in their name, cell, source or folder.
        sizes: List the sizes of published comparisons, too.
    """

    filter: str | None = None
    sizes: bool = False

    def refuse(self, model: ModelConfig, named: frozenset[str]) -> None:
        """Raise UserError on a typed key that nothing would read."""
        explained = "model" in named
        if explained and "models.filter" in named:
            raise UserError(
                "models.filter: not read together with model=..., which explains one model; drop it"
            )
        if unread := sorted(key for key in named if key.startswith("model.") and not explained):
            raise UserError(
                f"{unread[0]}: mode=models reads it only for a named model; add model=<name>"
            )
