"""Where a call has to be one of PyTorch's operators, and where it need not.

A custom operator with gradients takes 200 to 300 us of Python for a call and its backward pass, as
long as a GPU takes for what it computes. So operators are for those alone who look at them:
compilers and modes of dispatch. Everybody else calls the same functions through a plain
``torch.autograd.Function``, with the same bits and the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

_PLAIN = frozenset({Tensor, Parameter, type(None)})


def operators_are_seen(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a call on tensors has to be an operator.

    That is where somebody looks (see :func:`watched`), the tensors lie on a device that has no
    kernels, or autocast on a CPU widens them.

    Args:
        tensors: Those of the call, all on the device of the first; None is no tensor.
    """
    if watched(tensors):
        return True
    first = tensors[0]
    assert first is not None
    return not first.is_cuda and (not first.is_cpu or torch.is_autocast_enabled("cpu"))


def watched(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether anybody looks at the operators of a call on tensors.

    That is where torch.compile, torch.export or torch.jit.trace traces, a mode of dispatch counts
    or replaces operators, a transform of torch.func is active, or a tensor is of a class of its own
    (fake ones are).
    """
    # The compiler first: of what stands behind it, torch.compile can trace nothing.
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return True
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return True
    return not _PLAIN.issuperset(map(type, tensors))


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a function of autograd in a call that nobody looks at (see :func:`watched`).

    ``Function.apply`` first looks for wrappers that transforms of torch.func have left, and of one
    with a ``setup_context`` it reads the signature: 2 and 25 us for nothing here.
    """
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]
