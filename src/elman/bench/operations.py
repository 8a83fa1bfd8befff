"""Times our kernels and the matrix products inside an iteration, and counts the moved bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elman.bench.clock import clock_for
from elman.bench.floors import Work, work_of
from elman.bench.subjects import Subject

PRODUCTS = "products"
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "matmul"})
_OURS, _BACKWARD = "elman", "_backward"


@dataclass
class Operations:
    """One iteration's kernels and products.

    Attributes:
        seconds: Time of ``products``, ``kernel forward`` and ``kernel backward``.
        work: The work of the kernels of each direction.
        calls: Number of kernel calls.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    calls: int = 0


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
        self._clock = clock_for(device)
        self._work: defaultdict[str, Work] = defaultdict(Work)
        self._calls = 0

    def operations(self) -> Operations:
        """Return what was measured."""
        return Operations(self._clock.read(), dict(self._work), self._calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part = _part(func)
        if part is None:
            return func(*args, **(kwargs or {}))
        self._clock.start()
        result = func(*args, **(kwargs or {}))
        self._clock.mark(part)
        if part != PRODUCTS:
            self._calls += 1
            tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
            self._work[part] += work_of(func.__name__.split(".")[0], args, tensors)
        return result


def _part(func: Any) -> str | None:
    namespace, _, name = func._schema.name.partition("::")
    if namespace == _OURS:
        return "kernel backward" if name.endswith(_BACKWARD) else "kernel forward"
    return PRODUCTS if namespace == "aten" and name in _PRODUCTS else None
