"""What the calls of engines share that run step by step: a kernel between products of PyTorch's."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable

import torch
from torch import Tensor

from elman.kernels.launching import Launch


class StepwiseCall(ABC):
    """The arguments of one pass, and the tensors that they point to.

    Attributes:
        args: The arguments.
        words: The same memory as numbers.
        step_word: Index of the word with the step of time.
        batch: Rows of the batch.
        io: Dtype of the inputs.
        like: A tensor on the device of the call, in the dtype of the state.
    """

    args: ctypes.Structure
    words: array[int]
    step_word: int
    batch: int
    io: torch.dtype
    like: Tensor

    def narrow(self, width: int) -> Tensor:
        """Return room for a row of numbers in the dtype of the inputs, for every row."""
        return self._held(self.like.new_empty(self.batch, width, dtype=self.io))

    def wide(self, width: int, rows: int | None = None) -> Tensor:
        """Return room for a row of numbers in the dtype of the state, for every row."""
        return self._held(self.like.new_empty(self.batch if rows is None else rows, width))

    def runner(self, kernel: str) -> Callable[[int], None]:
        """Return what runs a kernel for a step of time."""
        start, wanted = self._start_of(kernel)
        words, step_word = self.words, self.step_word

        def run(t: int) -> None:
            words[step_word] = t
            start(wanted)

        return run

    @abstractmethod
    def _held(self, tensor: Tensor) -> Tensor:
        """Keep a tensor alive as long as the call, and return it."""

    @abstractmethod
    def _start_of(self, kernel: str) -> tuple[Callable[[list[Launch]], None], list[Launch]]:
        """Return what launches kernels of the call, and how this one is launched."""
