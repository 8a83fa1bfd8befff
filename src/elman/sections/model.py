"""Group ``model``: one cell, or a stack of several, in one language model."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from elman.base.errors import UserError
from elman.base.quoting import as_override
from elman.sections.layers import LayerEntry, stacked
from elman.sections.layers import Value as Value
from elman.sections.section import Count, NonNegative, Section, rounded

Kind = TypeVar("Kind")
DIM_ALIGNMENT = 128
VOCAB_SIZE = 256


class ModelConfig(Section):
    """Group ``model``: one cell, or a stack of several, in one language model.

    ``options`` holds the cell's own settings, already checked and complete; in YAML and on the
    command line they are keys like the others (``model.n_state=16``). ``vocab_size`` follows the
    data: 256 for bytes, else the number of the tokenizer's tokens or of the task's symbols. The
    file of a model may have it, for a published row with a vocabulary of its own. Its
    ``expected_params`` are for that vocabulary, and :meth:`with_vocabulary` leads to any other.

    ``mlp_ratio`` is the width of a SwiGLU MLP behind every mixer over ``dim``; 0 is no MLP, and is
    left out where the section is written.

    ``layers`` are those of a mixed stack; without them, and they are then left out likewise, all
    layers have ``cell``. In a mixed stack ``cell`` and its options are those of each layer of this
    cell, and of each layer that ``layers`` does not name.
    """

    name: str
    cell: str
    dim: Count
    depth: Annotated[int, rounded, Field(ge=1, le=10_000)]
    wrapper: Literal["rms", "legacy_ln"] = "rms"
    mlp_ratio: NonNegative = 0.0
    allow_unaligned: bool = False
    expected_params: Count | None = None
    vocab_size: Count = VOCAB_SIZE
    options: dict[str, Value] = Field(default_factory=dict)
    layers: list[LayerEntry] | None = None

    @property
    def mlp_width(self) -> int:
        """Hidden channels of the MLP: int(mlp_ratio dim), up to a multiple of 128; 0 is none."""
        return -(-int(self.mlp_ratio * self.dim) // DIM_ALIGNMENT) * DIM_ALIGNMENT

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not there, as in what was written before there could be any."""
        found: dict[str, Any] = write(self)
        if not self.mlp_ratio:
            found.pop("mlp_ratio", None)
        if self.layers is None:
            found.pop("layers", None)
        return found

    @model_validator(mode="after")
    def _norm_before_the_mlp(self) -> ModelConfig:
        ratios = (self.mlp_ratio, *(one.mlp_ratio for one in self.layers or ()))
        if (ratio := next(filter(None, ratios), 0.0)) and self.wrapper != "rms":
            raise UserError(
                f"model.mlp_ratio={ratio:g}: the MLP has an RMSNorm, which "
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

    @model_validator(mode="after")
    def _stacked(self) -> ModelConfig:
        self.stack()
        return self

    @property
    def mixed(self) -> bool:
        """Whether the layers are named one by one."""
        return self.layers is not None

    @property
    def cells(self) -> str:
        """The cell; of a mixed stack all its cells, the first layer's first, joined by ``+``."""
        return "+".join(dict.fromkeys(one.cell for one in self.stack()))

    def stack(self) -> list[LayerEntry]:
        """Return the entry of every layer, without its places.

        Raises:
            UserError: ``layers`` do not fit the depth.
        """
        own = LayerEntry(cell=self.cell)
        return [own] * self.depth if self.layers is None else stacked(self.layers, own, self.depth)

    def depths(self) -> tuple[int, int]:
        """Return the smallest depth that ``layers`` fit, and the step to the next one."""
        entries = self.layers or ()
        step = max(1, sum(one.at is None for one in entries))
        last = max((place for one in entries for place in one.at or ()), default=0)
        return (last // step + 1) * step, step

    def parts(self) -> list[ModelConfig]:
        """Return a model of each kind of layer by itself, as deep as there are such layers.

        A model of one cell is its only part.
        """
        if self.layers is None:
            return [self]
        layers = self._layers_alone()
        return [kind.model_copy(update={"depth": layers.count(kind)}) for kind in _distinct(layers)]

    def order(self) -> list[int]:
        """Return for every layer which of :meth:`parts` it is."""
        layers = self._layers_alone()
        kinds = _distinct(layers)
        return [kinds.index(one) for one in layers]

    def few_layers(self) -> tuple[ModelConfig, list[tuple[ModelConfig, int]]]:
        """Return small models that tell a number of this one, if it is a sum over the layers.

        Returns:
            A model with one layer of each kind; and for each kind that model with one more such
            layer, and how many more of them this model has.
        """
        stack = self.stack()
        kinds = _distinct(stack)
        more = [(self._of([*kinds, kind]), stack.count(kind) - 1) for kind in kinds]
        return self._of(kinds), more

    def reads(self, name: str) -> bool:
        """Whether a layer has the model's own value of an option: not every entry has another."""
        return name in self.options and any(
            one.cell == self.cell and name not in one.options for one in self.stack()
        )

    def of_entry(self, part: ModelConfig, name: str) -> bool:
        """Whether a part has an option by an entry of ``layers``, not by ``model.<name>``."""
        return part.cell != self.cell or part.options[name] != self.options[name]

    def with_option(self, name: str, change: Callable[[Any], Value]) -> ModelConfig:
        """Return the model with an option changed from its value, in all layers that have it."""

        def changed(options: dict[str, Value]) -> dict[str, Value]:
            return options | {name: change(options[name])} if name in options else options

        layers = self.layers and [
            one.model_copy(update={"options": changed(one.options)}) for one in self.layers
        ]
        return self.model_copy(update={"options": changed(self.options), "layers": layers})

    def _layers_alone(self) -> list[ModelConfig]:
        """Return a model of one layer for every layer."""
        stack = self.stack()
        kinds = _distinct(stack)
        alone = [self._alone(kind) for kind in kinds]
        return [alone[kinds.index(one)] for one in stack]

    def _alone(self, entry: LayerEntry) -> ModelConfig:
        shared = self.options if entry.cell == self.cell else {}
        return self.model_copy(
            update={
                "cell": entry.cell,
                "options": shared | entry.options,
                "mlp_ratio": self.mlp_ratio if entry.mlp_ratio is None else entry.mlp_ratio,
                "depth": 1,
                "layers": None,
                "expected_params": None,
            }
        )

    def _of(self, stack: Sequence[LayerEntry]) -> ModelConfig:
        layers = None if self.layers is None else list(stack)
        update = {"depth": len(stack), "layers": layers, "expected_params": None}
        return self.model_copy(update=update)

    def settings(self) -> dict[str, Any]:
        """Return every setting of the model by its key, without its name and its count."""
        found: dict[str, Any] = {"mlp_ratio": 0.0, "layers": None}
        found |= self.model_dump(exclude={"name", "expected_params", "options"})
        return found | self.options

    def changes(self, other: ModelConfig) -> dict[str, Any]:
        """Return the options and the MLP of this one-cell model that another one does not have."""
        found = {"mlp_ratio": self.mlp_ratio, **self.options}
        before = {"mlp_ratio": other.mlp_ratio, **other.options}
        return {key: value for key, value in found.items() if before.get(key) != value}

    def difference(self, other: ModelConfig) -> str:
        """Return in words in which settings another model differs, this one's value first.

        Options of another cell are no differences: they follow from the cell.
        """
        one, two = self.settings(), other.settings()
        if self.cell != other.cell:
            one, two = _without(one, self.options), _without(two, other.options)
        found = _unlike(one, two)
        if "layers" in found and (first := self._first_unlike(other)):
            found["layers"] = first
        return ", ".join(found.values())

    def _first_unlike(self, other: ModelConfig) -> str:
        """Return in words the first layer that is another one in another model, if there is one."""
        for place, (one, two) in enumerate(zip(self.stack(), other.stack(), strict=False)):
            if one.cell != two.cell:
                return f"layer {place} {one.cell} and {two.cell}"
            if one != two:
                own, theirs = ({"mlp_ratio": x.mlp_ratio, **x.options} for x in (one, two))
                return f"layer {place} {', '.join(_unlike(own, theirs).values())}"
        return ""

    def with_vocabulary(self, size: int) -> ModelConfig:
        """Return the model with another vocabulary; the expected count follows its embedding."""
        expected = self.expected_params
        if expected is not None:
            expected += (size - self.vocab_size) * self.dim
        return self.model_copy(update={"vocab_size": size, "expected_params": expected})


def _without(settings: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _unlike(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, str]:
    """Return in words the values of two models that differ, by their keys."""
    keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
    return {key: f"{key} {_typed(one.get(key))} and {_typed(two.get(key))}" for key in keys}


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else as_override(value)


def _distinct(layers: Sequence[Kind]) -> list[Kind]:
    kinds: list[Kind] = []
    for one in layers:
        if one not in kinds:
            kinds.append(one)
    return kinds
