"""The shapes of one size that a model can have: depth against width, and sizes of its cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from elman.base.errors import UserError
from elman.sections.model import ModelConfig
from elman.sections.solve import Size
from elman.sections.tune import ShapeSpace

if TYPE_CHECKING:  # it imports torch, which a sweep without shapes needs only later
    from elman.models.counts import Counts

_MOST_DIM = 16384
Number = int | float
Sizes = dict[Size, Number]


def shapes_of(model: ModelConfig, backend: str, space: ShapeSpace, hold: float) -> tuple[str, ...]:
    """Return the shapes of a model whose size is its own, the shallowest first.

    Each is counted as ``mode=solve`` counts, on a model without memory. For every width and every
    choice of the cell's sizes the depth is taken whose count is nearest.

    Args:
        model: The model.
        backend: ``kernels.backend`` of its runs.
        space: Which shapes are looked at.
        hold: How far the count may be from the model's own, as a share of it.

    Returns:
        Texts such as ``depth=12 dim=768 n_state=32``; the model's own shape is among them.

    Raises:
        UserError: the model cannot be built.
    """
    from elman.models.counts import Counts, count_params, own_size

    target = count_params(model.model_copy(update={"expected_params": None}), backend)
    counts = Counts(model, lambda one: count_params(one, backend), lambda seen: None)
    lists = _options(model, space)
    found = {text_of(sizes) for sizes in _fits(model, counts, target, space, hold, lists)}
    own: Sizes = {"depth": model.depth, "dim": model.dim}
    own |= {key: own_size(model, key) for key in lists}
    return tuple(sorted({*found, text_of(own)}, key=_order))


def _options(model: ModelConfig, space: ShapeSpace) -> dict[Size, list[Number]]:
    """Return the values of each other size that the model's cell has, and that a layer reads."""
    found: dict[Size, list[Number]] = {}
    for name, factors in space.options.items():
        own = model.options[name] if model.reads(name) else None
        if isinstance(own, int) and not isinstance(own, bool) and own > 0:
            key: Size = name  # type: ignore[assignment]
            found[key] = sorted({own, *(max(1, round(own * factor)) for factor in factors)})
    return found


def _fits(
    model: ModelConfig,
    counts: Counts,
    target: float,
    space: ShapeSpace,
    hold: float,
    lists: Mapping[Size, list[Number]],
) -> Iterator[Sizes]:
    """Yield the sizes whose count is near enough to the target."""
    least, most = (max(1, round(factor * model.depth)) for factor in space.depth)
    shallowest, step = model.depths()
    for values in itertools.product(*lists.values()):
        others: Sizes = dict(zip(lists, values, strict=True))
        for dim in range(space.multiple, _MOST_DIM + 1, space.multiple):
            sizes: Sizes = others | {"dim": dim}
            depths = shallowest, shallowest + step
            one, two = (counts.at({**sizes, "depth": depth}) for depth in depths)
            if one is None or two is None or two <= one:
                continue
            further = round((target - one) / (two - one))
            depth, count = shallowest + further * step, one + further * (two - one)
            if least <= depth <= most and abs(count - target) <= hold * target:
                yield {**sizes, "depth": depth}
            if one + (least - shallowest) / step * (two - one) > (1 + hold) * target:
                break


def text_of(sizes: Mapping[Size, Number]) -> str:
    """Return sizes as one text: depth, width, and then those of the cell."""
    first: list[Size] = ["depth", "dim"]
    keys = [*first, *(key for key in sizes if key not in first)]
    return " ".join(f"{key}={sizes[key]}" for key in keys)


def _order(shape: str) -> list[float]:
    return [float(text.partition("=")[2]) for text in shape.split()]


def check_shapes(label: str, model: ModelConfig, shapes: tuple[str, ...], hold: float) -> None:
    """Raise UserError if an arm has fewer than two shapes of its own size.

    Args:
        label: Label of the arm.
        model: Its model.
        shapes: Its shapes.
        hold: How far their sizes may differ from the model's own, as a share of it.
    """
    if len(shapes) < 2:
        raise UserError(
            f"tune.shape: {label}: no other shape of {model.name} has its size within {hold:.1%}; "
            f"type tune.hold_params={max(2 * hold, 0.02):g}, or leave it out"
        )
