"""Group ``parallel``: how one model is trained on several ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Section, Switch, rounded

DEFAULT_SHARDS = 8


class ParallelConfig(Section):
    """Group ``parallel``: how one model is trained on several ranks.

    A rank is one process with one GPU. ``torchrun`` or a launcher starts the ranks; these settings
    say how they share the work.

    Args:
        data: Ranks that share the rows of a batch; ``auto`` is all of them.
        shard: ``none``: every rank holds the whole model. ``full``: every rank holds a part of each
            weight, its gradient and its moments (FSDP). ``hybrid``: the ranks of one host hold the
            parts, and the hosts hold copies (HSDP).
        exact: Whether losses and weights have the same bits on any number of ranks. ``auto`` is
            yes where each of several ranks computes exactly one virtual shard, which costs next to
            nothing, and no otherwise.
        virtual_shards: Equal parts of a batch, a power of two. With ``exact``, the gradient of each
            is computed alone, and all are summed in one fixed binary tree.
        average_every: Optimizer steps between two averages of the weights, between which every rank
            trains on its own rows alone; 0 sums the gradients in every step.
    """

    data: Literal["auto"] | Count = "auto"
    shard: Literal["none", "full", "hybrid"] = "none"
    exact: Switch = "auto"
    virtual_shards: Count = DEFAULT_SHARDS
    average_every: Annotated[int, rounded, Field(ge=0)] = 0

    @field_validator("data", mode="before")
    @classmethod
    def _auto_or_count(cls, value: object) -> object:
        if value != "auto" and (type(value) is not int or value < 1):
            raise UserError(f"parallel.data={value}: expected auto or a number of ranks")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> ParallelConfig:
        shards = self.virtual_shards
        if shards & (shards - 1):
            below = 1 << (shards.bit_length() - 1)
            raise UserError(
                f"parallel.virtual_shards={shards}: not a power of two, so their sum has no "
                f"binary tree; use {below} or {2 * below}"
            )
        if self.exact is False and shards != DEFAULT_SHARDS:
            raise UserError(
                f"parallel.virtual_shards={shards}: not read with parallel.exact=false; drop one "
                "of them"
            )
        if self.average_every and self.shard != "none":
            raise UserError(
                f"parallel.average_every={self.average_every}: every rank trains a whole model of "
                f"its own, so parallel.shard={self.shard} cannot cut it; drop one of them"
            )
        if self.exact is True:
            self._refuse_inexact()
        return self

    def _refuse_inexact(self) -> None:
        """Raise UserError if other settings exclude equal bits on any number of ranks."""
        if self.shard != "none":
            raise UserError(
                f"parallel.exact=true: with parallel.shard={self.shard} NCCL chooses the order of "
                "the sums; use parallel.shard=none or drop parallel.exact"
            )
        if self.average_every:
            raise UserError(
                f"parallel.exact=true: with parallel.average_every={self.average_every} every rank "
                "trains on its own, and the loss depends on their number; drop one of them"
            )
