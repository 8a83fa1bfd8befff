"""The base class of every section of the configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def whole(value: Any) -> Any:
    """Return a whole number that was typed as 1e9, which YAML reads as a float, as an int."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


rounded = BeforeValidator(whole)
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, rounded, Field(ge=1)]
# A Literal takes 1 for True.
no_number = BeforeValidator(lambda value: str(value) if type(value) is int else value)
Switch = Annotated[Literal["auto", True, False], no_number]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration: immutable, strictly typed, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
