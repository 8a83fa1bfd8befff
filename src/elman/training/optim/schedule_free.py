"""Schedule-free AdamW whose step never waits for the host, so that a CUDA graph can hold it.

The library's step reads numbers on the host: whether an update is allowed, and how many there were.
Here they stay on the device. Source of the update: Defazio et al. 2024, "The Road Less Scheduled",
as in the library ``schedulefree`` (weights of the average: the square of the largest rate so far).

Two forms compute it. On a GPU with kernels, groups whose weights, moments and gradients are plain
contiguous fp32 tensors are updated by one kernel (:mod:`.fused`). All else, such as a CPU, takes
about 13 operations of PyTorch over all weights of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from elman.training.optim import fused
from elman.training.optim.eager import EagerOptimizer

_COUNTS = ("k", "weight_sum", "lr_max")
"""Of a group: updates, sum of the average's weights, largest rate; as the library calls them."""


class MaskedScheduleFree(EagerOptimizer, AdamWScheduleFree):  # type: ignore[misc]  # the library has no types
    """The library's optimizer with :meth:`masked_step`; its state is saved in the same form.

    Args:
        args: As for the library's.
        backend: ``cuda`` updates weights in the kernel of :mod:`.fused` where it takes them;
            ``reference`` by PyTorch's operations.
        kwargs: As for the library's.
    """

    def __init__(self, *args: Any, backend: str = "reference", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backend = backend
        self._counts: list[Tensor] = []
        self._scalars: list[Tensor] = []
        self._clipping: fused.Clipping | None = None

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Let the next :meth:`masked_step` clip the gradients; return their norm before that.

        The update multiplies them itself, which saves a pass over all gradients.

        Args:
            parameters: Those whose gradients count.
            limit: Largest norm; infinity clips nothing.
        """
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._clipping = fused.Clipping(norm, limit)
        return norm

    @torch.no_grad()
    def masked_step(self, blocked: Tensor) -> None:
        """Apply the update, in place; change nothing if ``blocked`` (bool, a scalar) is true.

        The gradients are of no use afterwards: PyTorch's operations overwrite them.
        """
        if not self._counts:
            self._begin_counting(blocked.device)
        clipping, self._clipping = self._clipping, None
        groups = []
        for group, counts, scalars in zip(
            self.param_groups, self._counts, self._scalars, strict=True
        ):
            moved = self._moved(group)
            if self.backend == "cuda" and fused.takes(moved):
                groups.append(fused.Group(group, counts, scalars, moved))
            elif moved:
                if clipping is not None and clipping.limit < math.inf:
                    clip_grads_with_norm_(
                        [one.weight for one in moved], clipping.limit, clipping.norm
                    )
                _foreach_update(group, moved, counts, blocked)
        fused.update(groups, blocked, clipping)

    def prepare(self, device: torch.device) -> None:
        """Compile the kernels for a device, if they update its weights."""
        if self.backend == "cuda" and device.type == "cuda":
            fused.prepare(device)

    def state_dict(self) -> dict[str, Any]:
        """Return the library's state; waits for the device."""
        for group, counts in zip(self.param_groups, self._counts, strict=False):
            k, weight_sum, lr_max = counts.tolist()
            group.update(k=int(k), weight_sum=weight_sum, lr_max=lr_max)
        state: dict[str, Any] = super().state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, or from the library's."""
        super().load_state_dict(state_dict)
        self._counts, self._scalars = [], []

    def _begin_counting(self, device: torch.device) -> None:
        """Put the counts of all groups on the device, where they stay."""
        for group in self.param_groups:
            counts = torch.tensor([group[key] for key in _COUNTS], dtype=torch.float64)
            self._counts.append(counts.to(device))
            self._scalars.append(torch.zeros(fused.SCALARS, device=device))

    def _moved(self, group: dict[str, Any]) -> list[fused.Moved]:
        """Return the weights of a group that have a gradient, with their moments."""
        moved = []
        for p in group["params"]:
            if p.grad is None:
                continue
            if "z" not in self.state[p]:
                self.state[p] = {"z": p.clone(), "exp_avg_sq": torch.zeros_like(p)}
            state = self.state[p]
            moved.append(fused.Moved(p, state["z"], state["exp_avg_sq"], p.grad))
        return moved


def _foreach_update(
    group: dict[str, Any], moved: list[fused.Moved], counts: Tensor, blocked: Tensor
) -> None:
    """Update a group by PyTorch's operations, each over all of its weights."""
    beta1, beta2 = group["betas"]
    rate, share, correction = _scalars(group, counts, blocked)
    for one in moved:
        one.gradient.masked_fill_(blocked, 0.0)  # NaN times 0 is NaN
    active, ends, squares, steps = (list(tensors) for tensors in zip(*moved, strict=True))
    torch._foreach_mul_(squares, torch.where(blocked, 1.0, beta2).to(squares[0].dtype))
    torch._foreach_addcmul_(squares, steps, steps, value=1 - beta2)
    scale = torch._foreach_div(squares, correction)
    torch._foreach_sqrt_(scale)
    torch._foreach_add_(scale, group["eps"])
    torch._foreach_div_(steps, scale)
    if group["weight_decay"]:
        torch._foreach_add_(steps, active, alpha=group["weight_decay"])
    # A blocked update has a rate and a share of zero.
    torch._foreach_mul_(steps, rate)
    towards = torch._foreach_sub(ends, active)
    torch._foreach_mul_(towards, share)
    torch._foreach_add_(active, towards)
    torch._foreach_sub_(ends, steps)
    torch._foreach_mul_(steps, beta1 * (1 - share) - 1)
    torch._foreach_add_(active, steps)


def _scalars(
    group: dict[str, Any], counts: Tensor, blocked: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count an update; return its rate, its share of the average, and the squares' correction."""
    k, weight_sum, lr_max = counts.unbind()
    rate = group["lr"] * ((k + 1) / max(1, group["warmup_steps"])).clamp(max=1.0)
    largest = torch.maximum(lr_max, rate)
    weight = largest ** group["weight_lr_power"]
    total = weight_sum + weight
    correction = 1 - group["betas"][1] ** (k + 1)
    share = weight / total
    counts.copy_(torch.where(blocked, counts, torch.stack([k + 1, total, largest])))
    dtype = group["params"][0].dtype
    zero = torch.zeros_like(rate)
    rate, share = (torch.where(blocked, zero, one) for one in (rate, share))
    return rate.to(dtype), share.to(dtype), correction.to(dtype)
