"""Makes one step of what the ranks compute: the mean gradient, the mean loss, the same update.

On one rank that computes a batch in one pass there is nothing to do.

Shape legend: n numbers of all gradients, padded to a multiple of the ranks; k parts of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from elman.distributed.averaging import average
from elman.distributed.division import Division
from elman.distributed.team import Team
from elman.distributed.tree import RunningTree, summed
from elman.sections.parallel import ParallelConfig


class Reduction:
    """No reduction: the gradients of one pass.

    Args:
        team: The ranks.
    """

    whole = True
    """Whether every rank holds all weights and moments after each step."""
    sharded = False
    """Whether a rank holds only parts of the weights."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def prepare(self) -> None:
        """Allocate what :meth:`add` and :meth:`finish` need, so that it is there before a step."""

    def begin(self) -> None:
        """Start a step: forget what an interrupted one has added."""

    def add(self) -> None:
        """Take the gradients of one part of this rank."""

    def finish(self) -> None:
        """Give every parameter the mean gradient over all parts of all ranks."""

    def gathered(self, losses_k: Tensor) -> Tensor:
        """Return the losses of the parts of all ranks.

        Call it after :meth:`finish`. So where a rank is lost meanwhile, a loss is NaN, and the
        update is blocked.
        """
        return self._team.gathered(losses_k)

    def outcome(self, losses_k: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss, the gradients' norm, and whether both are finite.

        Args:
            losses_k: As :meth:`gathered` returned them.
            norm: The norm of this rank's gradients.
        """
        loss = _mean(losses_k)
        # One question for both, because each takes four kernels. Their sum is finite if they are:
        # neither comes near the largest float.
        return loss, norm, torch.isfinite(loss + norm)

    def updated(self, step: int, parameters: Iterable[nn.Parameter]) -> None:
        """Let the ranks share the weights after an update, if they train on their own."""

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Make weights or moments the same on every rank, if they are not."""


class ShardedGradients(Reduction):
    """A library that cuts the model sums the gradients by itself."""

    whole, sharded = False, True

    def outcome(self, losses_k: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`Reduction`."""
        return super().outcome(losses_k, norm.full_tensor())  # type: ignore[attr-defined]


class LocalUpdates(Reduction):
    """Every rank trains on its own rows, and after some steps the ranks average their weights.

    Args:
        team: The ranks.
        every: Steps between two averages.
    """

    whole = False

    def __init__(self, team: Team, every: int) -> None:
        super().__init__(team)
        self._every = every

    def gathered(self, losses_k: Tensor) -> Tensor:
        """See :class:`Reduction`: :meth:`outcome` exchanges them with the norms."""
        return losses_k

    def outcome(self, losses_k: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`Reduction`: the means over the ranks."""
        pairs = self._team.gathered(torch.stack([losses_k[0], norm])).view(-1, 2)
        loss, norm = pairs[:, 0].mean(), pairs[:, 1].mean()
        return loss, norm, torch.isfinite(pairs).all()

    def updated(self, step: int, parameters: Iterable[nn.Parameter]) -> None:
        """See :class:`Reduction`."""
        if step % self._every == 0:
            average(self._team, parameters)

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """See :class:`Reduction`."""
        average(self._team, tensors)


class SummedGradients(Reduction):
    """Sums in fp32: in the fixed tree if the division is exact, else as the library likes.

    Args:
        team: The ranks.
        division: The parts.
        parameters: The parameters of the model.
    """

    def __init__(self, team: Team, division: Division, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(team)
        self._division = division
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
        parts = [
            (parameter, view)
            for parameter, view, owner in zip(self._parameters, views, self._owners, strict=True)
            if owner
        ]
        for parameter, _ in parts:
            if parameter.grad is None:  # another part of the batch reached it
                parameter.grad = torch.empty_like(parameter)
        homes = [p.grad for p, _ in parts if p.grad is not None]
        torch._foreach_copy_(homes, [view for _, view in parts])

    def _cut(self, flat_n: Tensor) -> list[Tensor]:
        """Return the part of a flat tensor that belongs to each parameter, in its shape."""
        sizes = [p.numel() for p in self._parameters]
        parts = flat_n[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


def reduction_of(
    parallel: ParallelConfig, team: Team, division: Division, parameters: Iterable[nn.Parameter]
) -> Reduction:
    """Return what makes one step of the shares of a run's ranks.

    Args:
        parallel: Group ``parallel``.
        team: The ranks.
        division: The parts of a batch.
        parameters: The parameters of the model.
    """
    if parallel.average_every:
        return LocalUpdates(team, parallel.average_every)
    if parallel.shard != "none":
        return ShardedGradients(team)
    return Reduction(team) if division.whole else SummedGradients(team, division, parameters)


def _mean(losses_k: Tensor) -> Tensor:
    """Return the mean of the parts' losses, summed in the fixed tree's order where there is one."""
    count = losses_k.numel()
    if count == 1:
        return losses_k[0]
    if count & (count - 1):
        return losses_k.mean()
    return summed([one.clone() for one in losses_k]) / count
