"""The state that a layer carries from one call to the next."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from elman.ops.common.checks import FLOATING, WIDE, Shape, check
from elman.ops.common.precision import wide_dtype

State = dict[str, Tensor]
"""Named tensors, each with the batch as its first axis; an absent state means zeros."""

STORED = frozenset({"conv", "past"})
"""Parts that hold outputs of the projections, in their dtype; other parts are wider."""
_NARROW = frozenset(dtype for dtype in FLOATING if wide_dtype(dtype) == torch.float32)
_KEPT = {dtype: _NARROW if dtype in _NARROW else frozenset({dtype}) for dtype in FLOATING}


def check_state(
    of: str, state: State, shapes: Mapping[str, Shape], like: Tensor, dtype: torch.dtype
) -> None:
    """Check that a state fits a layer.

    Args:
        of: The layer, for people.
        state: The state.
        shapes: The shape of every part, without the batch.
        like: The layer's input, with the batch as its first axis.
        dtype: Dtype of the layer's projections.

    Raises:
        ValueError: it has other parts, or a part has another shape, dtype or device.
    """
    if not isinstance(state, dict):
        raise ValueError(
            f"state of {of}: {type(state).__name__}, expected a dict of {', '.join(shapes)}"
        )
    if state.keys() != shapes.keys():
        raise ValueError(
            f"state of {of}: parts {', '.join(map(str, state))}, expected {', '.join(shapes)}"
        )
    batch, device = like.shape[0], like.device
    for name, shape in shapes.items():
        dtypes = (_KEPT if name in STORED else WIDE)[dtype]
        part, wanted = state[name], (batch, *shape)
        good = isinstance(part, Tensor) and part.shape == wanted
        if not good or part.dtype not in dtypes or part.device != device:
            check(f"state {name} of {of}", part, wanted, device, dtypes, batched=True)


class CarriedState(dict[str, Tensor]):
    """The state that layers return: a dict that ``copy.deepcopy`` can copy.

    PyTorch cannot deep-copy a tensor with an autograd history. So a copy, like a pickled state, has
    the numbers without the history. It is pickled as an OrderedDict, which ``torch.load`` reads
    with ``weights_only=True``.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> CarriedState:
        """Return a copy that shares no memory with this state."""
        return CarriedState(
            (name, copy.deepcopy(part if part.is_leaf else part.detach(), memo))
            for name, part in self.items()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle it; tensors are pickled without their histories."""
        return OrderedDict, (), None, None, iter(self.items())


# Registered like a dict, because PyTorch's transforms and exporters look for tensors inside.
pytree.register_pytree_node(
    CarriedState,
    lambda state: (list(state.values()), list(state)),
    lambda parts, names: CarriedState(zip(names, parts, strict=True)),
    serialized_type_name="elman.CarriedState",
)


def first_state(part: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """Return a part of the state before the first step.

    Args:
        part: The carried part; None starts a sequence.
        like: Any tensor with the batch as its first axis.
        shape: Lengths of the part's other axes.

    Returns:
        The given part, or zeros in fp32 or wider.
    """
    if part is not None:
        return part
    return like.new_zeros(like.shape[0], *shape, dtype=wide_dtype(like.dtype))


def copied(states: Sequence[State]) -> list[State]:
    """Return copies of the states of all layers; the originals do not change."""
    return [{key: part.clone() for key, part in state.items()} for state in states]


def zeroed(states: Sequence[State], rows_b: Tensor) -> list[State]:
    """Return the states of all layers with those of some rows zero, which no gradient passes.

    Args:
        states: The states.
        rows_b: True for these rows.
    """

    def kept(part: Tensor) -> Tensor:
        return part.masked_fill(rows_b.view(-1, *[1] * (part.ndim - 1)), 0)

    zeroed = [{key: kept(part) for key, part in state.items()} for state in states]
    return zeroed if torch.compiler.is_compiling() else [CarriedState(one) for one in zeroed]


def layout(states: Sequence[State]) -> list[dict[str, tuple[torch.Size, torch.dtype]]]:
    """Return every part's shape and dtype; equal layouts can be copied onto each other."""
    return [{key: (v.shape, v.dtype) for key, v in state.items()} for state in states]


def overwrite(homes: Sequence[State], states: Sequence[State]) -> None:
    """Copy states of the same layout into ``homes``; parts may be views of ``homes``."""
    here = [part for state in homes for part in state.values()]
    taken = {part.untyped_storage().data_ptr() for part in here}
    given = [new[key] for old, new in zip(homes, states, strict=True) for key in old]
    given = [v.clone() if v.untyped_storage().data_ptr() in taken else v for v in given]
    torch._foreach_copy_(here, given)
