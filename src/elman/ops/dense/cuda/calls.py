"""What the forms of the dense engine share that run a whole sequence in one launch.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
k blocks, c channels of any kind.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.dense.abi import DenseArgs, DenseSequence, sequence
from elman.ops.dense.results import Results, Tensors, adjacent


class PassConfig(Protocol):
    """What a call has to know of how a pass runs."""

    @property
    def channels(self) -> int:
        """Channels of the state, and zeros."""
        ...

    @property
    def back(self) -> bool:
        """Which pass."""
        ...


class SequenceCall:
    """The arguments of one call, and the tensors that they point to.

    Attributes:
        args: The arguments.
        like: A tensor of the call.
    """

    def __init__(
        self, like_btc: Tensor, first_sbi: Tensor, results: Results, resets_bt: Tensor | None
    ) -> None:
        (batch, steps, _), channels = like_btc.shape, first_sbi.shape[2]
        self.like, self.kept = like_btc, list[Tensor]()
        self.args = DenseArgs(batch=batch, steps=steps, channels=channels)
        self.args.y = sequence(results.y_bti)
        self.point(first=aligned(first_sbi))
        if results.memo_btmi.numel():
            self.point(memo=results.memo_btmi)
        if resets_bt is not None:
            self.point(resets=resets_bt.contiguous())

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one contiguous tensor each."""
        for name, tensor in tensors.items():
            setattr(self.args, name, self.keep(tensor).data_ptr())

    def sequence(self, tensor_btc: Tensor) -> DenseSequence:
        """Return where a sequence lies whose pairs of channels are words."""
        one = adjacent(tensor_btc)
        if (one.data_ptr() // one.element_size() | one.stride(0) | one.stride(1)) % 2:
            one = one.clone(memory_format=torch.contiguous_format)
        return sequence(self.keep(one))

    def padded(self, matrix_pi: Tensor, config: PassConfig) -> Tensor:
        """Return the matrix as a pass reads it, with zeros for the channels that are none."""
        channels = self.args.channels
        more = config.channels - channels
        matrix_kii = matrix_pi.reshape(-1, channels, channels)
        if more:
            matrix_kii = functional.pad(matrix_kii, (0, more, 0, more))
        matrix = matrix_kii.flatten(0, 1)
        return aligned(matrix.T if config.back else matrix)


def aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that loads of 16 bytes can begin at."""
    one = tensor.contiguous()
    return one.clone() if one.data_ptr() % 16 else one


def multiplied(recurrent: Tensors) -> Tensor:
    """Return R: as it is, or the product of its factors."""
    return recurrent[0] if len(recurrent) == 1 else torch.mm(*recurrent)
