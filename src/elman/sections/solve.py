"""The section of ``mode=solve``, and the targets that it takes.

A new target is a :class:`Target` and a field here, a line in ``conf/mode/solve.yaml``, and the
function that counts it, in ``elman.modes.solve.COUNTS``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from elman.base.errors import UserError
from elman.sections.model import ModelConfig
from elman.sections.section import Count, Positive, Section

Size = Literal["dim", "depth", "n_heads", "n_state", "rank", "expansion"]
"""Sizes that ``mode=solve`` can find; those after depth are options that only some cells have."""
_DIM: list[Size] = ["dim"]
# `solve.over=depth` means `solve.over=[depth]`.
_one_or_more = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "g": 1_000_000_000}

MOST_LAYERS = 1024
"""The models that are found are built whole, layer by layer."""


@dataclass(frozen=True)
class Target:
    """A number that a model has, and that the answer comes nearest to.

    Args:
        key: Its key in group ``solve``.
        unit: The words behind a number of it.
        result: The key of an answer's number in the result.
        examples: Numbers as people type them.
        most: The largest number that is searched for.
    """

    key: str
    unit: str
    result: str
    examples: str
    most: int

    def parse(self, value: object) -> int | None:
        """Return a number typed as 100M, 1.3B, 50k, 1e8 or 100_000_000.

        Raises:
            UserError: it has none of these forms, is less than one, or absurdly large.
        """
        if value is None:
            return None
        text = str(value).replace("_", "")
        found = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d+)?)([kmbg]?)", text, re.IGNORECASE)
        # Decimal, because 1.3 * 1e9 is not a whole number in float arithmetic.
        number = round(Decimal(found[1]) * _UNITS[found[2].lower()]) if found else 0
        typed = f"solve.{self.key}={value}"
        if number < 1 or isinstance(value, bool):
            raise UserError(f"{typed}: expected a number of {self.unit}, as in {self.examples}")
        if number > self.most:
            raise UserError(f"{typed}: more than {self.most:,}, the most that is searched for")
        return number

    def text(self, number: float) -> str:
        """Return a number in words: ``100,000,000 parameters``."""
        return f"{number:,.0f} {self.unit}"


PARAMS = Target("params", "parameters", "params", "100M, 1.3B, 50k or 1e8", 10**12)
FLOPS = Target("flops", "FLOPs a byte", "flops_per_byte", "600M, 1.3B or 1e9", 10**13)
TARGETS = (PARAMS, FLOPS)
"""At most one of them is set; if none is, the largest size that fits is found."""


class SolveConfig(Section):
    """Keys of ``mode=solve``.

    Args:
        params: Wanted number of parameters, as 100M, 1.3B, 50k, 1e8 or 100_000_000.
        flops: Wanted operations of training for a byte, as ``flops_per_byte`` in result.json.
        over: The size to find, or several to find together; every other size stays as it is.
        depth: Layers; null is the model's own depth.
        ranks: GPUs that train the model together; its memory is estimated for each of them.
        gpu_gb: Memory of each GPU in GiB. Without a target, the largest size that fits is found.
        standard: Print the seeds' standard 100M table beside ours, and nothing else.
    """

    params: Annotated[int | None, BeforeValidator(PARAMS.parse)] = None
    flops: Annotated[int | None, BeforeValidator(FLOPS.parse)] = None
    over: Annotated[list[Size], _one_or_more] = Field(default_factory=_DIM.copy)
    depth: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
    ranks: Count = 1
    gpu_gb: Positive | None = None
    standard: bool = False

    @model_validator(mode="after")
    def _has_a_target(self) -> SolveConfig:
        goals = [target.key for target in TARGETS if self.number_of(target) is not None]
        if len(goals) > 1:
            raise UserError(
                f"solve.{goals[1]}: not read together with solve.{goals[0]}; drop one of them"
            )
        if not goals and self.gpu_gb is None and not self.standard:
            raise UserError("solve.params: missing; add solve.params=100M")
        if not goals and self.gpu_gb is not None and len(self.over) > 1:
            raise UserError(
                f"solve.over=[{','.join(self.over)}]: what fits into solve.gpu_gb is found for one "
                "size; type solve.over=dim, or add solve.params=100M"
            )
        return self

    @property
    def target(self) -> Target | None:
        """What the answer comes nearest to; None if it is the largest that fits."""
        return next((one for one in TARGETS if self.number_of(one) is not None), None)

    def number_of(self, target: Target) -> int | None:
        """Return the number that is set for a target; None if it is not set."""
        number: int | None = getattr(self, target.key)
        return number

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
        sizes = [size for size in get_args(Size) if size in ("dim", "depth") or model.reads(size)]
        typed = self.over[0] if len(self.over) == 1 else f"[{','.join(self.over)}]"
        if not self.over or len(set(self.over)) < len(self.over):
            raise UserError(
                f"solve.over={typed}: name each size once, as in solve.over=[dim,depth]"
            )
        for size in self.over:
            if size not in sizes:
                why = f"cell {model.cell} has no such size as {size}"
                if size in model.options:
                    why = f"every entry of model.layers says its own {size}"
                raise UserError(f"solve.over={typed}: {why}; choose from {', '.join(sizes)}")
            if f"model.{size}" in named:
                raise UserError(
                    f"model.{size}: not read with solve.over={typed}, which finds it; drop it"
                )
        if "depth" in self.over and self.depth is not None:
            raise UserError(
                f"solve.depth: not read with solve.over={typed}, which finds it; drop it"
            )
