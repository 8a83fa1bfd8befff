"""When a call must be one of PyTorch's operators, and when it need not be.

A custom operator with gradients takes 200 to 300 us of Python for a call and its backward pass. A
GPU computes the result in the same time. So calls are operators only where something looks at them:
compilers and dispatch modes. All other calls run the same functions through a plain
``torch.autograd.Function``, with the same bits and the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from elman.ops.common.transforms import backward_is_seen, transformed

_PLAIN = frozenset({Tensor, Parameter, type(None)})


def operators_are_seen(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a call on tensors has to be an operator.

    It has to where something looks at it (see :func:`watched`), where the tensors lie on a device
    without kernels, and where autocast on a CPU widens them.

    Args:
        tensors: The tensors of the call, all on the device of the first; None is no tensor.
    """
    if watched(tensors):
        return True
    first = tensors[0]
    assert first is not None
    return not first.is_cuda and (not first.is_cpu or torch.is_autocast_enabled("cpu"))


def backward_is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a plain call may compute a backward pass on tensors.

    It may not where it has to be an operator, and where somebody differentiates it again: then the
    operator says that it has no derivative.

    Args:
        tensors: As for :func:`operators_are_seen`.
    """
    return not backward_is_seen() and not operators_are_seen(tensors)


def watched(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether anything looks at the operators of a call on tensors.

    This is so while torch.compile, torch.export or torch.jit.trace traces, while a dispatch mode
    counts or replaces operators, while a transform of torch.func or forward-mode differentiation is
    active, and for tensors of a class of their own, such as fake tensors.
    """
    # The compiler comes first, because torch.compile cannot trace the other questions.
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return True
    if transformed() or torch._C._get_tracing_state() is not None:
        return True
    return not _PLAIN.issuperset(map(type, tensors))


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a function of autograd in a call that nothing looks at (see :func:`watched`).

    ``Function.apply`` first looks for wrappers of torch.func's transforms, which takes 2 us. For a
    function with a ``setup_context`` it also reads the signature, 25 us. Neither is needed here.
    """
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]
