"""A block-diagonal recurrent matrix: one block for each head, which reads its own channels alone.

Such a matrix is a tensor [heads, out, in]. Pre-activations have its rows in its order, [z o i f] of
the first head before those of the second; states have the channels of the first head first.

Shape legend: b batch, t time, i channels of the state, p rows of the recurrent matrix, e heads,
j = i / e channels of one, k blocks, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def head_count(recurrent: Sequence[Tensor]) -> int:
    """Return how many heads a recurrent matrix has; a full one, or its two factors, is one."""
    return recurrent[0].shape[0] if recurrent[0].ndim == 3 else 1


def channel_count(recurrent: Sequence[Tensor]) -> int:
    """Return how many channels of the state a recurrent matrix reads."""
    return head_count(recurrent) * recurrent[-1].shape[-1]


def row_count(recurrent: Sequence[Tensor]) -> int:
    """Return how many rows a recurrent matrix has, those of all heads together."""
    return head_count(recurrent) * recurrent[0].shape[-2]


def by_head(tensor_bc: Tensor, heads: int) -> Tensor:
    """Return a view [heads, b, c / heads] of the channels of every head."""
    tensor_bej: Tensor = tensor_bc.unflatten(-1, (heads, -1))
    return tensor_bej.transpose(0, 1)


def block_by_block(pre_bp: Tensor, heads: int, channels: int) -> Tensor:
    """Return pre-activations with block k of all heads in columns [k i, (k + 1) i).

    Args:
        pre_bp: Pre-activations in the order of the matrix' rows.
        heads: How many heads it has.
        channels: Channels of the state.
    """
    if heads == 1:
        return pre_bp
    pre_bekj: Tensor = pre_bp.unflatten(-1, (heads, -1, channels // heads))
    return pre_bekj.transpose(1, 2).flatten(1)
