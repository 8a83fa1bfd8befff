"""Stands for CUDA graphs without a GPU: operations recorded, and done again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from elman.ops.causal_conv import cpu as conv_kernel
from elman.training import cuda_graph
from elman.training.optim import muon_kernel

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::unique_dim", "aten::masked_select")


class Tape(TorchDispatchMode):
    """The operations of a piece of work."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in _WAITS:
            raise RuntimeError(f"{NOT_PERMITTED}\nCompile with TORCH_USE_CUDA_DSA")
        # As they are now: operations such as transpose_ change a tensor, not its numbers.
        given = aliases((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, given, aliases(result), torch.is_grad_enabled()))
        return result

    @torch.no_grad()
    def wipe(self) -> None:
        """Leave no number of what was computed."""
        for _, given, result, _ in self._calls:
            places = {place(leaf) for leaf in tensors(given)}
            for made in tensors(result):
                if place(made) not in places and made.is_floating_point():
                    made.fill_(float("nan"))

    def replay(self) -> None:
        """Do it again on the same tensors."""
        with torch._C._AutoDispatchBelowAutograd():
            for func, given, result, grad in self._calls:
                args, kwargs = aliases(given)
                # A network keeps more where somebody will differentiate.
                with torch.set_grad_enabled(grad):
                    again = func(*args, **kwargs)
                for old, new in zip(tensors(result), tensors(again), strict=True):
                    if place(old) != place(new):
                        old.copy_(new)


def aliases(tree: Any) -> Any:
    """Return the same with other tensors in the same places."""
    if isinstance(tree, Tensor):
        return tree.detach()
    if type(tree) in (tuple, list):
        return type(tree)([aliases(child) for child in tree])
    # Of all others PyTorch knows how to take them apart; it takes ten times as long.
    return tree_map_only(Tensor, Tensor.detach, tree) if _has_leaves(tree) else tree


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (tuple, list):
        return [leaf for child in tree for leaf in tensors(child)]
    leaves = tree_leaves(tree) if _has_leaves(tree) else []
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _has_leaves(tree: Any) -> bool:
    return isinstance(tree, (tuple, list, dict)) and bool(tree)


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tapes:
    """Records on tapes."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        tape = Tape()
        with tape:
            work()
        tape.wipe()
        return tape.replay

    def release(self) -> None:
        pass


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tapes play CUDA graphs.

    A tape hears PyTorch's operators, and while it hears them, these two kernels of a CPU leave
    their work to such operators. An eager run then must do the same, or the bits differ.
    """
    monkeypatch.setattr(cuda_graph, "CudaGraphs", Tapes)
    monkeypatch.setattr(conv_kernel, "MOST_TAPS", 0)
    monkeypatch.setattr(muon_kernel, "MOST", 0)
