"""What a layer carries from one call to the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.ops.precision import wide_dtype

State = dict[str, Tensor]
"""Named tensors, each with the batch as its first axis; an absent state means zeros."""


def first_state(part: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """Return a part of the state before the first step.

    Args:
        part: The part as it was carried; None starts a sequence.
        like: Any tensor with the batch as its first axis.
        shape: Lengths of the part's other axes.

    Returns:
        The given part, or zeros in fp32 or wider.
    """
    if part is not None:
        return part
    return like.new_zeros(like.shape[0], *shape, dtype=wide_dtype(like.dtype))


def copied(states: Sequence[State]) -> list[State]:
    """Return copies of the states of all layers, which stay as they are."""
    return [{key: part.clone() for key, part in state.items()} for state in states]


def layout(states: Sequence[State]) -> list[dict[str, tuple[torch.Size, torch.dtype]]]:
    """Return shape and dtype of every part: states of one layout can be copied onto each other."""
    return [{key: (v.shape, v.dtype) for key, v in state.items()} for state in states]


def overwrite(homes: Sequence[State], states: Sequence[State]) -> None:
    """Copy states of the same layout to where ``homes`` are; parts may be views of those."""
    here = [part for state in homes for part in state.values()]
    taken = {part.untyped_storage().data_ptr() for part in here}
    given = [new[key] for old, new in zip(homes, states, strict=True) for key in old]
    given = [v.clone() if v.untyped_storage().data_ptr() in taken else v for v in given]
    torch._foreach_copy_(here, given)
