"""What a layer carries from one call to the next."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from elman.ops.precision import wide_dtype

State = dict[str, Tensor]
"""Named tensors, each with the batch as its first axis; an absent state means zeros."""


class CarriedState(dict[str, Tensor]):
    """A state as layers return it: a dict of which ``copy.deepcopy`` makes an independent one.

    PyTorch deep-copies no tensor with a history. A copy has the numbers and no history, as one
    that was pickled has; pickled, it is an OrderedDict, which ``torch.load`` reads without trust.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> CarriedState:
        """Return a copy that shares no memory with this state."""
        return CarriedState(
            (name, copy.deepcopy(part if part.is_leaf else part.detach(), memo))
            for name, part in self.items()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how it is pickled; tensors are pickled without their histories."""
        return OrderedDict, (), None, None, iter(self.items())


# As a dict is: PyTorch's transforms and exporters look for tensors inside.
pytree.register_pytree_node(
    CarriedState,
    lambda state: (list(state.values()), list(state)),
    lambda parts, names: CarriedState(zip(names, parts, strict=True)),
    serialized_type_name="elman.CarriedState",
)


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
