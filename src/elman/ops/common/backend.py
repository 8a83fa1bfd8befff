"""What every engine says of its implementations: one table ``BACKENDS`` in its ``backends.py``.

The keys of a table are values of ``kernels.backend``; ``elman.models.backends`` has chosen one of
them before a layer calls an engine. What a layer calls (``op.py``) checks the tensors of a call
and hands it to the chosen backend, so that no file asks for a tensor's device to find its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.common.precision import wide_dtype

Run = TypeVar("Run", bound=Callable[..., Any])
Call = TypeVar("Call")
Results = TypeVar("Results")
Saved = TypeVar("Saved")
Gradients = TypeVar("Gradients")


@dataclass(frozen=True)
class Backend(Generic[Run]):
    """One implementation of an engine.

    Args:
        run: Computes a call whose tensors were checked. All backends of an engine have the same
            signature, and gradients reach every tensor argument.
        narrow: Whether it reads sequences in their own dtype and writes its output in that dtype.
            Otherwise both are in fp32 or wider. States always are.
    """

    run: Run
    narrow: bool = False

    def io_dtype(self, sequences: torch.dtype) -> torch.dtype:
        """Return the dtype of its output, and of the sequences that it reads.

        Args:
            sequences: The dtype in which the caller has the sequences.
        """
        return sequences if self.narrow else wide_dtype(sequences)


@dataclass(frozen=True)
class Kernels(Generic[Call, Results, Saved, Gradients]):
    """The passes of an engine's kernels, on one machine or in one of its forms there.

    Args:
        forward: Runs a call of the engine's operator.
        backward: Returns the gradients, from what the operator saved of a call.
        narrow: Whether the sequences may be narrower than the state.
    """

    forward: Callable[[Call], Results]
    backward: Callable[[Saved], Gradients]
    narrow: bool = False


def require_cpu(tensor: Tensor) -> None:
    """Refuse a tensor that a kernel for the CPU cannot read.

    Raises:
        UserError: it lies on another device.
    """
    if not tensor.is_cpu:
        raise UserError(
            f"kernels.backend=cpu: the tensors lie on {tensor.device}; use kernels.backend=auto"
        )
