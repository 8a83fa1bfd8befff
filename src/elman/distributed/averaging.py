"""Local updates: ranks train on their own for some steps, and then average their weights.

The mean is a plain one, without an outer optimizer. The moments stay each rank's own, except at a
checkpoint, which has one set of them: there the ranks average these, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from elman.distributed.team import Team


def average(team: Team, tensors: Iterable[Tensor]) -> None:
    """Replace every fp32 tensor by its mean over the ranks.

    Args:
        team: The ranks.
        tensors: Tensors of the same shapes on every rank, in the same order.
    """
    averaged = [t.detach() for t in tensors if t.dtype == torch.float32 and t.numel()]
    if not averaged:
        return
    flat_n = torch.cat([t.flatten() for t in averaged])
    team.plain_sum(flat_n)
    flat_n.mul_(1.0 / team.place.size)
    parts = flat_n.split([t.numel() for t in averaged])
    homes = [part.view(t.shape) for part, t in zip(parts, averaged, strict=True)]
    torch._foreach_copy_(averaged, homes)
