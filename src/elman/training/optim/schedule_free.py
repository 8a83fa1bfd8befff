"""Schedule-free AdamW whose step never waits for the host, so that a CUDA graph can hold it.

The library's step reads numbers on the host: whether an update is allowed, and how many there were.
Here they stay on the device. Source of the update: Defazio et al. 2024, "The Road Less Scheduled",
as in the library ``schedulefree`` (weights of the average: the square of the largest rate so far).
"""

from __future__ import annotations

from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor

_COUNTS = ("k", "weight_sum", "lr_max")
"""Of a group: updates, sum of the average's weights, largest rate; as the library calls them."""


class MaskedScheduleFree(AdamWScheduleFree):  # type: ignore[misc]  # the library has no types
    """The library's optimizer with :meth:`masked_step`; its state is saved in the same form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counts: list[Tensor] = []

    @torch.no_grad()
    def masked_step(self, blocked: Tensor) -> None:
        """Apply the update, in place; change nothing if ``blocked`` (bool, a scalar) is true."""
        if not self._counts:
            self._counts = [
                torch.tensor([group[key] for key in _COUNTS], dtype=torch.float64).to(
                    blocked.device
                )
                for group in self.param_groups
            ]
        for group, counts in zip(self.param_groups, self._counts, strict=True):
            if active := [p for p in group["params"] if p.grad is not None]:
                self._masked_update(group, active, counts, blocked)

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
        self._counts = []

    def _masked_update(
        self, group: dict[str, Any], active: list[Tensor], counts: Tensor, blocked: Tensor
    ) -> None:
        beta1, beta2 = group["betas"]
        rate, share, correction = _scalars(group, counts, blocked)
        for p in active:
            if "z" not in self.state[p]:
                self.state[p] = {"z": p.clone(), "exp_avg_sq": torch.zeros_like(p)}
            p.grad.masked_fill_(blocked, 0.0)  # type: ignore[union-attr]  # NaN times 0 is NaN
        steps = [p.grad for p in active if p.grad is not None]
        squares = [self.state[p]["exp_avg_sq"] for p in active]
        ends = [self.state[p]["z"] for p in active]
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
