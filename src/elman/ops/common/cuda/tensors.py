"""Tensors as the kernels of a cluster or a group read them.

Shape legend: p blocks * i rows of matrices, i channels, k blocks.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that loads of 16 bytes can begin at."""
    one = tensor.contiguous()
    return one.clone() if one.data_ptr() % 16 else one


def padded(matrix_pi: Tensor, channels: int, *, transposed: bool) -> Tensor:
    """Return matrices as a pass reads them, with zeros for the channels that are none.

    Args:
        matrix_pi: Square matrices below each other; with heads a tensor of as many such.
        channels: Channels with those that are none.
        transposed: Whether it reads the transpose of all.
    """
    own = matrix_pi.shape[-1]
    matrix_kii: Tensor = matrix_pi.unflatten(-2, (-1, own))
    if more := channels - own:
        matrix_kii = functional.pad(matrix_kii, (0, more, 0, more))
    matrix = matrix_kii.flatten(-3, -2)
    return aligned(matrix.mT if transposed else matrix)
