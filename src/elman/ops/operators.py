"""Where a call has to be one of PyTorch's operators, and where it need not.

A custom operator with gradients takes 200 to 300 us of Python for a call and its backward pass, as
long as a GPU takes for what it computes. So operators are for those alone who look at them:
compilers and modes of dispatch. Everybody else calls the same functions through a plain
``torch.autograd.Function``, with the same bits and the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

_PLAIN = frozenset({Tensor, Parameter, type(None)})


def operators_are_seen(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a call on tensors has to be an operator.

    That is where torch.compile, torch.export or torch.jit.trace traces, a mode of dispatch counts
    or replaces operators, a transform of torch.func is active, a tensor is of a class of its own
    (fake ones are), lies on a device that has no kernels, or autocast on a CPU widens it.

    Args:
        tensors: Those of the call, all on the device of the first; None is no tensor.
    """
    # The compiler first: of what stands behind it, torch.compile can trace nothing.
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return True
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return True
    first = tensors[0]
    assert first is not None
    if not first.is_cuda and (not first.is_cpu or torch.is_autocast_enabled("cpu")):
        return True
    return not _PLAIN.issuperset(map(type, tensors))
