"""CUDA graphs: work on the device is recorded once and then replayed without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from elman.base.errors import first_line


class Graphs(Protocol):
    """Records work on the device, to replay it on the same tensors."""

    def aside(self) -> AbstractContextManager[None]:
        """Return a context in which work runs eagerly, but otherwise as in a recording."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` (recording may not run it); return a function that replays it."""
        ...

    def release(self) -> None:
        """Let go of the memory of recordings that nobody holds any more."""


def why_not_captured(error: BaseException) -> str:
    """Return in one line why a capture failed.

    That is the first error of a chain: after a failed capture, ending it fails, too.

    Raises:
        BaseException: that error, where it is no fault of the capture: memory is short, or Ctrl-C.
    """
    while error.__context__ is not None:
        error = error.__context__
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, Exception):
        raise error from None
    return first_line(error)


class CudaGraphs:
    """CUDA graphs that share one memory pool, so only one of them may run at a time.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """See :class:`Graphs`; uses the stream on which graphs are captured."""
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Graphs`; first frees cached memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

    def release(self) -> None:
        """See :class:`Graphs`; the next recording has a pool of its own."""
        self._pool = torch.cuda.graph_pool_handle()
