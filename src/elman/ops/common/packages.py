"""Kernels of other people's packages, with the refusals of this project's own.

What a package computes is unknown to PyTorch's transforms: a second derivative would be zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.kernels.packages import import_kernels
from elman.ops.common.transforms import SavedOnce, refuse_backward, refuse_transforms


def package_kernels(package: str, module: str) -> Any:
    """Return a module of a package, whose functions refuse what they cannot compute.

    Args:
        package: As for :func:`elman.kernels.packages.import_kernels`.
        module: Likewise.

    Raises:
        UserError: the package cannot be imported.
    """
    return _Guarded(package, import_kernels(package, module))


class _Guarded:
    """A module whose functions, once they are read, are guarded."""

    def __init__(self, package: str, module: ModuleType) -> None:
        self._package, self._module = package, module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = guarded(f"{self._package}: {name}", getattr(self._module, name))
        setattr(self, name, found)
        return found


def guarded(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses PyTorch's transforms, forward and in its backward pass.

    Args:
        name: The function, for people.
        run: Returns a tensor, or tensors and others.
    """

    @wraps(run)
    def refusing(*given: Any, **named: Any) -> Any:
        refuse_transforms(name)
        found = run(*given, **named)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        for one in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(lambda _: refuse_backward(name))
        return found

    return refusing


def unpack_once(function: type[Function]) -> None:
    """Let the backward pass of a package's function unpack its saved tensors once.

    A recomputed pass (``torch.utils.checkpoint``) hands each of them out once, and refuses a
    backward pass that reads ``ctx.saved_tensors`` twice.

    Args:
        function: What is changed, in place.
    """
    backward = function.backward

    @wraps(backward)
    def once(ctx: Any, *gradients: Any) -> Any:
        return backward(SavedOnce(ctx), *gradients)

    function.backward = staticmethod(once)  # type: ignore[method-assign]
