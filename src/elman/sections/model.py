"""Group ``model``: one cell in one language model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Section

Value = bool | int | float | str
"""Value of a cell's option."""
DIM_ALIGNMENT = 128
VOCAB_SIZE = 256


class ModelConfig(Section):
    """Group ``model``: one cell in one language model.

    ``options`` holds the cell's own settings, already checked and complete; in YAML and on the
    command line they are keys like the others (``model.n_state=16``). ``vocab_size`` follows the
    data: 256 for text, a task's own vocabulary for a task.
    """

    name: str
    cell: str
    dim: Count
    depth: Count
    wrapper: Literal["rms", "legacy_ln"] = "rms"
    allow_unaligned: bool = False
    expected_params: Count | None = None
    vocab_size: Count = VOCAB_SIZE
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

    def with_vocabulary(self, size: int) -> ModelConfig:
        """Return the model with another vocabulary; the expected count follows its embedding."""
        expected = self.expected_params
        if expected is not None:
            expected += (size - self.vocab_size) * self.dim
        return self.model_copy(update={"vocab_size": size, "expected_params": expected})
