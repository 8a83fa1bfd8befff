"""Group ``model``: one cell in one language model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, NonNegative, Section

Value = bool | int | float | str
"""Value of a cell's option."""
DIM_ALIGNMENT = 128
VOCAB_SIZE = 256


class ModelConfig(Section):
    """Group ``model``: one cell in one language model.

    ``options`` holds the cell's own settings, already checked and complete; in YAML and on the
    command line they are keys like the others (``model.n_state=16``). ``vocab_size`` follows the
    data: 256 for bytes, else the number of the tokenizer's tokens or of the task's symbols. The
    file of a model may have it, for a published row with a vocabulary of its own. Its
    ``expected_params`` are for that vocabulary, and :meth:`with_vocabulary` leads to any other.

    ``mlp_ratio`` is the width of a SwiGLU MLP behind every mixer over ``dim``; 0 is no MLP, and is
    left out where the section is written.
    """

    name: str
    cell: str
    dim: Count
    depth: Count
    wrapper: Literal["rms", "legacy_ln"] = "rms"
    mlp_ratio: NonNegative = 0.0
    allow_unaligned: bool = False
    expected_params: Count | None = None
    vocab_size: Count = VOCAB_SIZE
    options: dict[str, Value] = Field(default_factory=dict)

    @property
    def mlp_width(self) -> int:
        """Hidden channels of the MLP: int(mlp_ratio dim), up to a multiple of 128; 0 is none."""
        return -(-int(self.mlp_ratio * self.dim) // DIM_ALIGNMENT) * DIM_ALIGNMENT

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the MLP that is not there, as in what was written before there could be one."""
        found: dict[str, Any] = write(self)
        if not self.mlp_ratio:
            found.pop("mlp_ratio", None)
        return found

    @model_validator(mode="after")
    def _norm_before_the_mlp(self) -> ModelConfig:
        if self.mlp_ratio and self.wrapper != "rms":
            raise UserError(
                f"model.mlp_ratio={self.mlp_ratio:g}: the MLP has an RMSNorm, which "
                f"model.wrapper={self.wrapper} has not; add model.wrapper=rms or drop the MLP"
            )
        return self

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

    def settings(self) -> dict[str, Any]:
        """Return every setting of the model by its key, without its name and its count."""
        found: dict[str, Any] = {"mlp_ratio": 0.0}
        found |= self.model_dump(exclude={"name", "expected_params", "options"})
        return found | self.options

    def difference(self, other: ModelConfig) -> str:
        """Return in words in which settings another model differs, this one's value first."""
        one, two = self.settings(), other.settings()
        keys = [key for key in one | two if one.get(key) != two.get(key)]
        return ", ".join(f"{key} {one.get(key)} and {two.get(key)}" for key in keys)

    def with_vocabulary(self, size: int) -> ModelConfig:
        """Return the model with another vocabulary; the expected count follows its embedding."""
        expected = self.expected_params
        if expected is not None:
            expected += (size - self.vocab_size) * self.dim
        return self.model_copy(update={"vocab_size": size, "expected_params": expected})
