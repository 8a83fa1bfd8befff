"""Times our kernels and the matrix products inside an iteration, and counts the moved bytes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elman.bench.floors import Work, work_of
from elman.bench.replays import device_seconds
from elman.bench.slow_products import SlowProduct, slow_product
from elman.bench.subjects import Subject

PRODUCTS = "products"
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "matmul"})
_OURS, _BACKWARD = "elman", "_backward"


@dataclass
class Operations:
    """One iteration's kernels and products.

    Attributes:
        seconds: Time of ``products``, ``kernel forward`` and ``kernel backward``. On a GPU it is
            the GPU's own: each operation is replayed as a CUDA graph, so no launch counts.
        work: The work of the kernels of each direction.
        calls: Number of kernel calls.
        slow: Time of the products of one iteration that run on slow kernels of a GPU, each by what
            it is.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    calls: int = 0
    slow: dict[SlowProduct, float] = field(default_factory=dict)


def look_into(subject: Subject, repeats: int = 3) -> Operations:
    """Run forward and backward several times, timing each operation; the fastest time counts."""
    found: list[Operations] = []
    for _ in range(repeats):
        with _Watch(subject.device) as watch:
            subject.loss_and_gradients()
        found.append(watch.operations())
    best = found[-1]
    for name in best.seconds:
        best.seconds[name] = min(one.seconds[name] for one in found)
    return best


class _Watch(TorchDispatchMode):
    """Times the operations that matter and counts what they read and write."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._known: dict[str, float] = {}
        self._work: defaultdict[str, Work] = defaultdict(Work)
        self._slow: defaultdict[SlowProduct, float] = defaultdict(float)
        self._calls = 0

    def operations(self) -> Operations:
        """Return what was measured."""
        return Operations(dict(self._seconds), dict(self._work), self._calls, dict(self._slow))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part = _part(func)
        if part is None:
            return func(*args, **(kwargs or {}))
        call = partial(func, *args, **(kwargs or {}))
        began = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - began
        if self._device.type == "cuda":
            seconds = self._on_device(call, _sizes(func, args, kwargs))
            if part == PRODUCTS and (slow := slow_product(args)) is not None:
                self._slow[slow] += seconds
        self._seconds[part] += seconds
        if part != PRODUCTS:
            self._calls += 1
            tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
            self._work[part] += work_of(func.__name__.split(".")[0], args, tensors)
        return result

    def _on_device(self, call: Callable[[], Any], sizes: str) -> float:
        """Return the GPU's time of a call; calls of the same sizes take the same."""
        if sizes not in self._known:
            self._known[sizes] = device_seconds(call, self._device)
        return self._known[sizes]


def _sizes(func: Any, args: Any, kwargs: Any) -> str:
    """Return what the time of an operation depends on: not the numbers in its tensors."""
    leaves = [
        (tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf
        for leaf in tree_leaves((args, kwargs))
    ]
    return repr((func.name(), leaves))


def _part(func: Any) -> str | None:
    namespace, _, name = func._schema.name.partition("::")
    if namespace == _OURS:
        return "kernel backward" if name.endswith(_BACKWARD) else "kernel forward"
    return PRODUCTS if namespace == "aten" and name in _PRODUCTS else None
