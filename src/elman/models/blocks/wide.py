"""Modules whose buffers are part of a state, or make one, and so stay in fp32 or wider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

from elman.ops.common.precision import wide_dtype


class WideBuffers(nn.Module):
    """A module whose own buffers stay in fp32 or wider where ``.to`` or ``.half`` casts it."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            old = before[name]
            if old is None or buffer is None or buffer.dtype == wide_dtype(buffer.dtype):
                continue
            # From the old one: the cast one has lost its digits.
            self._buffers[name] = old.to(buffer.device, wide_dtype(buffer.dtype))
        return self
