"""Keeping torch.compile out of what it cannot or should not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile run ``function`` as it is; what stands around it still compiles.

    A compiler would unroll the loop, thousands of operations for one layer.
    """
    disabled: Callable[_P, _R] = torch.compiler.disable(function)
    return disabled


def traced_as_constant(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make torch.compile call ``function`` while it traces and keep the answer for good.

    For a choice that the machine decides, found with calls that no graph can hold.
    """
    constant: Callable[_P, _R] = torch.compiler.assume_constant_result(function)
    return constant
