"""Layer RWKV-7: parameters and computation of flash-linear-attention's RWKV7Attention.

Shape legend: b batch, t time, d model width, h heads, k width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.channel_delta.rwkv7 import CELL, rank_of
from elman.models.cells.common.mixer import Mixer
from elman.models.state import State
from elman.ops.channel_delta import rwkv7_mix
from elman.ops.channel_delta.op import channel_delta
from elman.ops.channel_delta.package import RWKV7_LOWEST
from elman.ops.channel_delta.rules import Rwkv7
from elman.ops.common.checks import Shape, is_empty
from elman.ops.common.precision import wide_dtype
from elman.ops.linear import linear


def _undrawn(inputs: int, outputs: int, *, bias: bool, **to: Any) -> nn.Linear:
    """Return a projection whose weights are not drawn yet."""
    device = to["device"] or torch.get_default_device()
    made = nn.Linear(inputs, outputs, bias=bias, device="meta", dtype=to["dtype"])
    return made.to_empty(device=device)


class LowRank(nn.Module):
    """A product of two matrices with a function between them, and a bias."""

    def __init__(self, dim: int, rank: int, function: nn.Module, *, bias: bool, **to: Any) -> None:
        super().__init__()
        self.lora = nn.Sequential(
            _undrawn(dim, rank, bias=False, **to), function, _undrawn(rank, dim, bias=bias, **to)
        )

    @property
    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        """Return the two projections."""
        first, _, second = self.lora
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        return first, second

    def reset_parameters(self) -> None:
        """Draw the second matrix, orthogonal; the first one and the bias are zero."""
        first, second = self.ends
        nn.init.zeros_(first.weight)
        rows, columns = second.weight.shape
        init.orthogonal_(second.weight, 0.1 * max(1.0, math.sqrt(columns / rows)))
        if second.bias is not None:
            nn.init.zeros_(second.bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Return the product, with the bias if there is one."""
        first, second = self.ends
        y_btd = linear(self.lora[1](linear(x_btd, first.weight)), second.weight)
        return y_btd if second.bias is None else y_btd + second.bias.to(y_btd.dtype)


class FirstValues:
    """The values of a model's first layer, which its other layers mix with their own.

    A copy is empty: the next forward pass of the copied model fills it.
    """

    def __init__(self) -> None:
        self.v_btd: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> FirstValues:
        """Return an empty one, the same for all layers of one copied model."""
        return memo.setdefault(id(self), FirstValues())  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle it: empty."""
        return FirstValues, ()


class Rwkv7TimeMix(Mixer):
    """S' = S C - (S k^) (a o k^)^T + v k'^T, y = S' r, per head, between RWKV-7's shifts and gates.

    Every layer but a model's first one mixes its values with those of the first (Peng et al. 2025;
    :meth:`place`). Names, shapes and initial values of the parameters are those of
    ``fla.layers.RWKV7Attention`` 0.6.0. The feed-forward layer of the paper is not part of it: see
    ``model.mlp_ratio``. State: ``S`` [B, H, k, k] in fp32 or wider, and the last input ``conv``
    [B, 1, dim].
    """

    cell = CELL
    exchanges = True
    x_r: nn.Parameter
    x_w: nn.Parameter
    x_k: nn.Parameter
    x_v: nn.Parameter
    x_a: nn.Parameter
    x_g: nn.Parameter

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        self.heads = self.dim // self.settings.count("head_dim")
        self.index, self.depth, self.first = 0, 1, FirstValues()
        for name in "rwkvag":
            setattr(self, f"x_{name}", init.no_decay(torch.empty(1, 1, self.dim, **to)))
        self.k_k, self.k_a = (nn.Parameter(torch.empty(self.dim, **to)) for _ in range(2))
        self.r_k = init.no_decay(torch.empty(self.heads, self.dim // self.heads, **to))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (
            _undrawn(self.dim, self.dim, bias=False, **to) for _ in range(4)
        )
        self.w_lora = self._low_rank("decay_rank", nn.Tanh(), bias=True)
        self.v_lora: LowRank | None = None
        self.a_lora = self._low_rank("a_rank", nn.Identity(), bias=True)
        self.g_lora = self._low_rank("gate_rank", nn.Sigmoid(), bias=False)
        epsilon = self.dim // self.heads * self.settings.number("norm_eps")
        self.g_norm = nn.GroupNorm(self.heads, self.dim, epsilon, **to)
        self.reset_parameters()

    def _low_rank(self, name: str, function: nn.Module, *, bias: bool) -> LowRank:
        weight = self.r_proj.weight
        rank = rank_of(name, self.dim, self.settings.values)
        return LowRank(
            self.dim, rank, function, bias=bias, device=weight.device, dtype=weight.dtype
        )

    def place(self, index: int, layers: Sequence[nn.Module]) -> None:
        """Take the place ``index`` among a model's layers: first values depend on it."""
        # In a mixed stack, the first layer of this cell is the one whose values the others mix in.
        first = next(one for one in layers if isinstance(one, Rwkv7TimeMix))
        self.index, self.depth, self.first = index, len(layers), first.first
        if first is not self:
            self.v_lora = self._low_rank("v_rank", nn.Identity(), bias=True)
            self.v_lora.reset_parameters()
        self._set_values()

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        init.orthogonal_(self.r_proj.weight)
        init.orthogonal_(self.k_proj.weight, 0.1)
        init.orthogonal_(self.v_proj.weight)
        nn.init.zeros_(self.o_proj.weight)
        for product in (self.w_lora, self.v_lora, self.a_lora, self.g_lora):
            if product is not None:
                product.reset_parameters()
        self._set_values()

    @torch.no_grad()
    def _set_values(self) -> None:
        """Set what is not random; it depends on the layer's place (0 to depth - 1)."""
        if self.x_r.is_meta:
            return
        forth = self.index / max(1, self.depth - 1)
        back = 1.0 - self.index / self.depth
        width = self.dim // self.heads
        place_d = torch.arange(self.dim, dtype=torch.float32, device=self.x_r.device)
        for name, power in zip("rwkvag", (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            getattr(self, f"x_{name}").copy_(1.0 - (place_d / self.dim) ** (power * back))
        ramp_d = place_d / max(1, self.dim - 1)
        center = (width - 1) / 2
        zigzag_d = (place_d % width - center) / center
        zigzag_d = zigzag_d * zigzag_d.abs()
        self.k_k.copy_(0.71 - 0.1 * (ramp_d - 0.5))
        self.k_a.fill_(1.02)
        self.r_k.fill_(-0.04)
        decay_d = -6 + 6 * ramp_d ** (1 + forth**0.3)
        self.w_lora.ends[1].bias.copy_(decay_d + 0.5 + 2.5 * zigzag_d)
        self.a_lora.ends[1].bias.copy_(-0.19 + 0.3 * zigzag_d + 0.4 * (ramp_d - 0.5))
        if self.v_lora is not None:
            self.v_lora.ends[1].bias.copy_(0.73 - 0.4 * (ramp_d - 0.5))
        self.g_norm.weight.fill_(((self.index + 1) / self.depth) ** 0.7)
        self.g_norm.bias.zero_()

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the last input and of S."""
        width = self.dim // self.heads
        return {"conv": (1, self.dim), "S": (self.heads, width, width)}

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.r_proj.weight

    def forward(  # type: ignore[override]  # its cell says why it takes no resets
        self, x_btd: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        # The package cannot launch kernels for zero steps.
        backend = "reference" if is_empty(x_btd) else self.backend_for(x_btd)
        padded = self._padded(x_btd, state)
        change_btd = padded[:, :-1] - x_btd
        r, w, k, v, a, g = self._mixed(x_btd, change_btd, backend)
        gate_btd, rate_btd = self.g_lora(g), torch.sigmoid(self.a_lora(a))
        v_btd = self._values(v)
        r_btd, k_btd = linear(r, self.r_proj.weight), linear(k, self.k_proj.weight)
        log_btd = RWKV7_LOWEST * torch.sigmoid(self.w_lora(w))
        removal = functional.normalize(self._by_head(k_btd * self.k_k.to(k_btd.dtype)), dim=-1)
        removal = removal.to(k_btd.dtype)
        k_btd = self._scaled_key(k_btd, rate_btd, backend)
        r_bthk, k_bthk, v_bthk = (self._by_head(one) for one in (r_btd, k_btd, v_btd))
        rule = Rwkv7(
            r_bthk,
            k_bthk,
            v_bthk,
            -removal,
            removal * self._by_head(rate_btd),
            self._by_head(log_btd),
        )
        y_bthk, last = channel_delta(rule, state_bhvk=state.get("S"), backend=backend)
        o_btd = self._output(y_bthk, r_bthk, k_bthk, v_bthk, gate_btd, backend)
        carried = {"conv": padded[:, -1:].clone(), "S": last}
        return linear(o_btd.to(r_btd.dtype), self.o_proj.weight), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor:
        """Return the decay of each key channel [B, T, heads, keys]."""
        change_btd = self._padded(x_btd, state or {})[:, :-1] - x_btd
        mixed_btd = torch.addcmul(x_btd, change_btd, self.x_w.to(x_btd.dtype))
        log_btd = RWKV7_LOWEST * torch.sigmoid(self.w_lora(mixed_btd))
        return self._by_head(log_btd.to(wide_dtype(log_btd.dtype)).exp())

    def _padded(self, x_btd: Tensor, state: State) -> Tensor:
        """Return the input behind the last one of the call before: [B, T + 1, d]."""
        past = x_btd.new_zeros(x_btd.shape[0], 1, self.dim)
        past = state["conv"].to(x_btd.dtype) if "conv" in state else past
        return torch.cat([past, x_btd], dim=1)

    def _by_head(self, one_btd: Tensor) -> Tensor:
        split: Tensor = one_btd.unflatten(-1, (self.heads, -1))
        return split

    def _mixed(self, x_btd: Tensor, change_btd: Tensor, backend: str) -> tuple[Tensor, ...]:
        """Return the input mixed with the one before it, once for each projection."""
        shares = (self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g)
        if backend == "triton":
            return rwkv7_mix.mixed(x_btd, change_btd, shares)
        return tuple(torch.addcmul(x_btd, change_btd, one.to(x_btd.dtype)) for one in shares)

    def _values(self, mixed_btd: Tensor) -> Tensor:
        """Return the values, mixed with those of the model's first layer."""
        v_btd = linear(mixed_btd, self.v_proj.weight)
        if self.v_lora is None:
            self.first.v_btd = v_btd
            return v_btd
        assert self.first.v_btd is not None
        # One of the two may have every step as a row of its own.
        first_btd = self.first.v_btd.reshape(v_btd.shape)
        return torch.lerp(v_btd, first_btd, torch.sigmoid(self.v_lora(mixed_btd)))

    def _scaled_key(self, k_btd: Tensor, rate_btd: Tensor, backend: str) -> Tensor:
        """Return k (1 + (a - 1) k_a)."""
        if backend == "triton":
            return rwkv7_mix.scaled_key(k_btd, rate_btd, self.k_a)
        return torch.addcmul(k_btd, k_btd * (rate_btd - 1), self.k_a.to(k_btd.dtype))

    def _output(
        self,
        y_bthk: Tensor,
        r_bthk: Tensor,
        k_bthk: Tensor,
        v_bthk: Tensor,
        gate_btd: Tensor,
        backend: str,
    ) -> Tensor:
        """Return the normed reads, with each step's own value added, times the gate."""
        norm, wide = self.g_norm, wide_dtype(y_bthk.dtype)
        normed = functional.group_norm(
            y_bthk.to(wide).flatten(0, 1).flatten(1),
            self.heads,
            norm.weight.to(wide),
            norm.bias.to(wide),
            norm.eps,
        ).view(*y_bthk.shape[:2], self.dim)
        if backend == "triton":
            normed = normed.to(gate_btd.dtype)
            return rwkv7_mix.corrected(normed, r_bthk, k_bthk, self.r_k, v_bthk, gate_btd)
        r_bthk, k_bthk, v_bthk = (one.to(wide) for one in (r_bthk, k_bthk, v_bthk))
        own = (r_bthk * k_bthk * self.r_k.to(wide)).sum(-1, keepdim=True) * v_bthk
        return (normed + own.flatten(-2)) * gate_btd.to(wide)
