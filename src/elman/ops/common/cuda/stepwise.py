"""What the calls of engines share that run step by step: a kernel between products of PyTorch's."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.native import words_of

_words_of = cache(words_of)


class StepwiseCall(ABC):
    """The arguments of one pass, and the tensors that they point to.

    Args:
        arguments: What the kernels read, a structure of 64-bit words.
        numbers: Its numbers by name; at least ``batch`` and ``channels``.
        resets_bt: Whether a row's state is zero before a step; None: never.
        io: Dtype of the inputs.
        like: A tensor on the device of the call, in the dtype of the state.

    Attributes:
        args: The arguments.
        words: The same memory as numbers.
        at: By the name of a field: the index of its first word.
        places: Whatever has to be even for a thread to have two channels, joined by "or".
        resets: Whether there are resets.
    """

    def __init__(
        self,
        arguments: type[ctypes.Structure],
        numbers: Mapping[str, int],
        resets_bt: Tensor | None,
        io: torch.dtype,
        like: Tensor,
    ) -> None:
        self.io, self.like, self.kept = io, like, list[Tensor]()
        self.at = _words_of(arguments)
        self.words = array("q", bytes(ctypes.sizeof(arguments)))
        self.args = arguments.from_buffer(self.words)
        for name, number in numbers.items():
            self.words[self.at[name]] = number
        self.batch, self.channels = numbers["batch"], numbers["channels"]
        self.places = self.channels
        self.resets = resets_bt is not None
        if resets_bt is not None:
            self.words[self.at["resets"]] = self.held(resets_bt.contiguous()).data_ptr()

    def held(self, tensor: Tensor) -> Tensor:
        """Keep a tensor alive as long as the call, and return it."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one tensor each; those without a number in them stay null."""
        for name, tensor in tensors.items():
            if tensor.numel():
                one = self.held(tensor.contiguous())
                place = self.words[self.at[name]] = one.data_ptr()
                self.places |= place // one.element_size()

    def narrow(self, width: int) -> Tensor:
        """Return room for a row of numbers in the dtype of the inputs, for every row."""
        return self.held(self.like.new_empty(self.batch, width, dtype=self.io))

    def wide(self, width: int, rows: int | None = None) -> Tensor:
        """Return room for a row of numbers in the dtype of the state, for every row."""
        return self.held(self.like.new_empty(self.batch if rows is None else rows, width))

    def runner(self, kernel: str) -> Callable[[int], None]:
        """Return what runs a kernel for a step of time."""
        start, wanted = self._start_of(kernel)
        words, step_word = self.words, self.at["step"]

        def run(t: int) -> None:
            words[step_word] = t
            start(wanted)

        return run

    @abstractmethod
    def _start_of(self, kernel: str) -> tuple[Callable[[list[Launch]], None], list[Launch]]:
        """Return what launches kernels of the call, and how this one is launched."""
