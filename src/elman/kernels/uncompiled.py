"""Decorators that keep torch.compile out of what it cannot or should not trace.

PyTorch's own decorators import Dynamo at once, which takes a second or more even for a user who
never compiles. These set the same marks without that import.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile run ``function`` as it is, while the code around it still compiles.

    A compiler would unroll a loop over time into thousands of operations. This does the same as
    ``torch.compiler.disable``, but the function stays the same object.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # private names, which another version of PyTorch may not have
        from torch.compiler import disable

        disabled: Callable[_P, _R] = disable(function)
        return disabled
    marked: Any = function
    # A traced caller breaks its graph at the call ...
    marked._torchdynamo_disable = True
    # ... and the function, with all that it calls, runs without Dynamo between the two graphs.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(marked.__code__, skip)
    return function


def traced_as_constant(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile call ``function`` while it traces and keep the answer for good.

    It is for a choice that depends on the machine and is made by calls that no graph can hold. It
    does the same as ``torch.compiler.assume_constant_result``.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function


@contextmanager
def imported_without_dynamo() -> Iterator[None]:
    """Let packages that are imported in this context decorate functions without that import.

    What they keep from torch.compile is marked as by :func:`uncompiled`. What they hand to
    torch.compile is compiled when it is first called.
    """
    compiler: Any = torch.compile
    disable: Any = torch.compiler.disable

    def marking(function: Any = None, recursive: bool = True, **settings: Any) -> Any:
        if function is None or not recursive or settings:
            return disable(function, recursive, **settings)
        return uncompiled(function)

    def compiling_later(function: Any = None, **settings: Any) -> Any:
        if function is None:
            return functools.partial(compiling_later, **settings)
        compiled = functools.cache(lambda: compiler(function, **settings))
        return functools.wraps(function)(lambda *given, **named: compiled()(*given, **named))

    if "torch._dynamo" in sys.modules:
        yield
        return
    try:
        vars(torch).update(compile=compiling_later)
        vars(torch.compiler).update(disable=marking)
        yield
    finally:
        vars(torch).update(compile=compiler)
        vars(torch.compiler).update(disable=disable)
