"""Keeping torch.compile out of what it cannot or should not trace.

PyTorch's own decorators import Dynamo, a second or more, where they stand: for everybody, also who
never compiles. These leave the same marks without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile run ``function`` as it is; what stands around it still compiles.

    A compiler would unroll the loop, thousands of operations for one layer. As
    ``torch.compiler.disable``, but the function stays the same object.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # names of PyTorch's own, which another version may not have
        from torch.compiler import disable

        disabled: Callable[_P, _R] = disable(function)
        return disabled
    marked: Any = function
    # Who is traced breaks the graph at a call of it ...
    marked._torchdynamo_disable = True
    # ... and between two graphs it runs without Dynamo, as does all that it calls.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(marked.__code__, skip)
    return function


def traced_as_constant(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile call ``function`` while it traces and keep the answer for good.

    For a choice that the machine decides, found with calls that no graph can hold. As
    ``torch.compiler.assume_constant_result``.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function
