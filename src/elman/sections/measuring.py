"""Sections of the modes that check and time kernels."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Section, Switch, rounded
from elman.sections.training import Backend

Peer = Literal[
    "mamba2_transformers",
    "gated_delta_fla",
    "gated_delta_fla_op",
    "torch_lstm",
    "torch_gru",
    "torch_rnn",
]
"""Implementations of other projects that ``mode=bench`` can time beside a model."""


_AUTO: list[Backend] = ["auto"]
# `bench.models=e1` means `bench.models=[e1]`.
_one_or_more = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


class ParityConfig(Section):
    """Keys of ``mode=parity``.

    Args:
        seed: Seed of weights, inputs and incoming gradients.
        quick: Only two small shapes, as before a training run.
    """

    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 42
    quick: bool = False


class BenchConfig(Section):
    """Keys of ``mode=bench``.

    Args:
        models: Models to time beside ``model``, by name.
        backends: Backends of each; one that a model does not have is left out, with a note.
        peers: Implementations of other projects, built at the width of ``model``.
        same_size: Build every model at ``model.dim`` and ``model.depth``, not at its own size.
        level: One layer alone, the whole model's optimizer step, or both.
        batch_size: Rows.
        chunk_size: Bytes a row.
        shapes: Several of both, as ``32x512``: rows times bytes. Everything is timed at one after
            another, and a table compares their tok/s; what does not fit into memory is left out.
        ranks: With ``level=step``: also estimate the memory of a step on each of so many GPUs, of
            which each computes ``batch_size`` rows.
        rounds: Number of rounds; each round times everything once, in turn.
        graph: Replay CUDA graphs, as training does: ``auto`` on a GPU where training does so, too.
            ``false`` launches one operation at a time, so Python's time counts.
        device: As ``train.device``.
        precision: As ``train.precision``.
    """

    models: Annotated[list[str], _one_or_more] = Field(default_factory=list)
    backends: Annotated[list[Backend], _one_or_more] = Field(default_factory=_AUTO.copy)
    peers: Annotated[list[Peer], _one_or_more] = Field(default_factory=list)
    same_size: bool = False
    level: Literal["layer", "step", "both"] = "layer"
    batch_size: Count = 8
    chunk_size: Count = 256
    shapes: list[str] = Field(default_factory=list)
    ranks: Count = 1
    rounds: Count = 7
    graph: Switch = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="after")
    def _ranks_are_read(self) -> Self:
        if self.ranks > 1 and self.level == "layer":
            raise UserError(
                f"bench.ranks={self.ranks}: read only with a whole step; add bench.level=step"
            )
        return self

    @field_validator("shapes", mode="before")
    @classmethod
    def _sizes(cls, typed: object) -> object:
        shapes = typed if isinstance(typed, list) else [typed]
        for shape in shapes:
            if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", str(shape)):
                raise UserError(
                    f"bench.shapes={shape}: expected rows times bytes, as in "
                    "'bench.shapes=[32x512,4x4096]'"
                )
        return shapes

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and bytes a row of everything that is timed."""
        pairs = (shape.split("x") for shape in self.shapes)
        return [(int(rows), int(steps)) for rows, steps in pairs] or [
            (self.batch_size, self.chunk_size)
        ]

    @field_validator("backends")
    @classmethod
    def _not_empty(cls, backends: list[Backend]) -> list[Backend]:
        if not backends:
            raise UserError(
                "bench.backends=[]: an empty list; name one, as in bench.backends=[auto]"
            )
        return backends
