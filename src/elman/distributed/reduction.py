"""Sums the gradients of all parts of a batch, between the backward passes and the optimizer.

Shape legend: n numbers of all gradients, padded to a multiple of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from elman.distributed.division import Division
from elman.distributed.team import Team
from elman.distributed.tree import RunningTree


class Reduction(Protocol):
    """Makes the mean gradient of the whole batch from the gradients of its parts."""

    def prepare(self) -> None:
        """Allocate what :meth:`add` and :meth:`finish` need, so that it is there before a step."""

    def begin(self) -> None:
        """Start a step: forget what an interrupted one has added."""

    def add(self) -> None:
        """Take the gradients of one part of this rank."""

    def finish(self) -> None:
        """Give every parameter the mean gradient over all parts of all ranks."""


class OwnGradients:
    """No reduction: the gradients of one pass, or of a library that sums by itself."""

    def prepare(self) -> None:
        """See :class:`Reduction`."""

    def begin(self) -> None:
        """See :class:`Reduction`."""

    def add(self) -> None:
        """See :class:`Reduction`."""

    def finish(self) -> None:
        """See :class:`Reduction`."""


class SummedGradients:
    """Sums in fp32: in the fixed tree if the division is exact, else as the library likes.

    Args:
        team: The ranks.
        division: The parts.
        parameters: The parameters of the model.
    """

    def __init__(self, team: Team, division: Division, parameters: Iterable[nn.Parameter]) -> None:
        self._team, self._division = team, division
        self._parameters = [p for p in parameters if p.requires_grad]
        self._views: dict[int, list[Tensor]] = {}
        self._tree: RunningTree | None = None
        self._owners = [False] * len(self._parameters)

    def prepare(self) -> None:
        """See :class:`Reduction`."""
        if self._tree is not None:
            return
        size = sum(p.numel() for p in self._parameters)
        padded = -(-size // self._team.place.size) * self._team.place.size
        device = self._parameters[0].device
        # RunningTree keeps at most log2(leaves) partial sums at a time, and the newest leaf.
        count = self._division.own_parts.bit_length()
        made = [torch.zeros(padded, device=device) for _ in range(count)]
        self._views = {id(flat_n): self._cut(flat_n) for flat_n in made}
        self._tree = RunningTree(made)

    def begin(self) -> None:
        """See :class:`Reduction`."""
        self.prepare()
        assert self._tree is not None
        self._tree.clear()
        self._owners = [False] * len(self._parameters)

    def add(self) -> None:
        """See :class:`Reduction`."""
        assert self._tree is not None, "begin comes first"
        leaf_n = self._tree.leaf()
        views = self._views[id(leaf_n)]
        gradients = [p.grad for p in self._parameters]
        if any(gradient is None for gradient in gradients):
            leaf_n.zero_()
        pairs = [(view, g) for view, g in zip(views, gradients, strict=True) if g is not None]
        torch._foreach_copy_([view for view, _ in pairs], [gradient for _, gradient in pairs])
        self._owners = [
            owner or g is not None for owner, g in zip(self._owners, gradients, strict=True)
        ]
        self._tree.add(leaf_n)

    def finish(self) -> None:
        """See :class:`Reduction`."""
        assert self._tree is not None, "begin comes first"
        flat_n = self._tree.take()
        if self._division.exact:
            self._team.tree_sum(flat_n)
        else:
            self._team.plain_sum(flat_n)
        flat_n.mul_(1.0 / self._division.parts)
        self._hand_out(self._views[id(flat_n)])
        self._tree.give_back(flat_n)

    def _hand_out(self, views: list[Tensor]) -> None:
        given = [
            (parameter, view)
            for parameter, view, owner in zip(self._parameters, views, self._owners, strict=True)
            if owner
        ]
        for parameter, _ in given:
            if parameter.grad is None:  # another part of the batch reached it
                parameter.grad = torch.empty_like(parameter)
        homes = [p.grad for p, _ in given if p.grad is not None]
        torch._foreach_copy_(homes, [view for _, view in given])

    def _cut(self, flat_n: Tensor) -> list[Tensor]:
        """Return the part of a flat tensor that belongs to each parameter, in its shape."""
        sizes = [p.numel() for p in self._parameters]
        parts = flat_n[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]
