"""What the forms of the dense engine share that run a whole sequence in one launch.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
k blocks, c channels of any kind.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from elman.ops.common.cuda.tensors import aligned, padded
from elman.ops.common.native import Arguments
from elman.ops.dense.abi import DenseArgs, DenseSequence, sequence
from elman.ops.dense.heads import head_count
from elman.ops.dense.passes import Call, Results, Saved, Tensors, adjacent


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


class SequenceCall(Arguments[DenseArgs]):
    """The arguments of one call, and the tensors that they point to.

    Args:
        call: What is read.
        results: What the forward pass leaves or left.

    Attributes:
        like: The states of all steps.
        config: How the pass runs; a form sets it.
        heads: Of a block-diagonal matrix; ``args.channels`` are those of one.
    """

    config: PassConfig

    def __init__(self, call: Call | Saved, results: Results | Saved) -> None:
        batch, steps, pitch = results.y_bti.shape
        self.like, self.heads = results.y_bti, head_count(call.recurrent)
        channels = pitch // self.heads
        super().__init__(DenseArgs(batch=batch, steps=steps, channels=channels, pitch=pitch))
        self.args.y = sequence(results.y_bti)
        self.point(first=aligned(call.first_sbi), memo=results.memo_btmi, resets=call.resets_bt)

    def sequence(self, tensor_btc: Tensor) -> DenseSequence:
        """Return where a sequence lies whose pairs of channels are words."""
        one = adjacent(tensor_btc)
        if (one.data_ptr() // one.element_size() | one.stride(0) | one.stride(1)) % 2:
            one = one.clone(memory_format=torch.contiguous_format)
        return sequence(self.keep(one))

    def point_forward(self, call: Call, results: Results) -> None:
        """Set what a forward pass reads and writes beside what every pass does."""
        self.args.x = self.sequence(call.inputs[0])
        for number, other in enumerate(call.inputs[1:]):
            self.args.p[number] = self.sequence(other)
        self.point(matrix=self.padded(multiplied(call.recurrent)), last=results.last_sbi)

    def point_backward(self, saved: Saved, dinputs: Tensors, dfirst_sbi: Tensor) -> None:
        """Set what a backward pass reads and writes beside what every pass does."""
        self.args.dx = sequence(dinputs[0])
        for number, dinput in enumerate(dinputs[1:]):
            self.args.dp[number] = sequence(dinput)
        if saved.dy_bti is not None:
            self.args.dy = self.sequence(saved.dy_bti)
        if saved.dlast_sbi is not None:
            self.point(dlast=aligned(saved.dlast_sbi))
        self.point(matrix=self.padded(multiplied(saved.recurrent)), dfirst=dfirst_sbi)

    def padded(self, matrix_pi: Tensor) -> Tensor:
        """Return the matrix as the pass reads it, with zeros for the channels that are none."""
        return padded(matrix_pi, self.config.channels, transposed=self.config.back)


def multiplied(recurrent: Tensors) -> Tensor:
    """Return R: as it is, or the product of its factors."""
    return recurrent[0] if len(recurrent) == 1 else torch.mm(*recurrent)
