"""CUDA graphs: work on the device recorded once and done again without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Graphs(Protocol):
    """Records work on the device, to be done again on the same tensors."""

    def aside(self) -> AbstractContextManager[None]:
        """Return a context in which work runs at once, and otherwise as it is recorded."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work``, which may not have been done afterwards; return what does it again."""
        ...


class CudaGraphs:
    """CUDA graphs that share their memory: of several, one runs at a time.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """See :class:`Graphs`: on the stream on which graphs are captured."""
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Graphs`; frees the memory that is cached before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay
