"""Layer Gated DeltaProduct: parameters and computation of flash-linear-attention's layer.

Shape legend: b batch, t time, s = n t delta rules, d model width, h heads, k key width of a head,
v value width of a head, a channels of a projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.gated_delta.deltaproduct import CELL
from elman.models.cells.gated_delta.peer_layer import DeltaPeer
from elman.models.state import State
from elman.ops.common.precision import wide_dtype
from elman.ops.gated_delta.product import gated_delta_product
from elman.ops.linear import linear


class GatedDeltaProduct(DeltaPeer):
    """S' = c S, then n delta rules, y = S' q, out = W_o (norm(y) silu(W_g x)), per head.

    Every delta rule of a step has its own key, value and strength (Siems et al. 2025). Names,
    shapes, order and initial values of the parameters are those of
    ``fla.layers.GatedDeltaProduct`` 0.6.0. State: ``S`` [B, H, v, k] in fp32 or wider and, with
    ``use_conv``, ``conv`` [B, d_conv - 1, channels of q, k and v].
    """

    cell = CELL
    decays_after = "a_proj"

    def add_modules(self, to: dict[str, Any]) -> None:
        """Register everything in the order of the package; ``to`` has device and dtype."""
        given, rules = self.settings, self.settings.count("n_householder")
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        self.add_qkv((keys, rules * keys, rules * values), to)
        self.b_proj = nn.Linear(self.dim, self.heads * rules, bias=False, **to)
        if given.flag("use_forget_gate"):
            self.a_proj = nn.Linear(self.dim, self.heads, bias=False, **to)
            self.A_log = init.no_decay(torch.empty(self.heads, **to))
            self.dt_bias = init.no_decay(torch.empty(self.heads, **to))
            self.reset_decays()
        self.add_convs(to)
        if given.flag("use_gate"):
            self.g_proj = nn.Linear(self.dim, values, bias=False, **to)
        self.add_output(to)

    def reset_decays(self) -> None:
        """Draw the parameters of the decays."""
        init.mamba_decay_(self.A_log, self.dt_bias)

    def recur(
        self, q_bta: Tensor, k_bta: Tensor, v_bta: Tensor, x_btd: Tensor, state: State, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Run n delta rules a step."""
        given, log_decay_bth = self.settings, None
        if given.flag("use_forget_gate"):
            logits_bth = linear(x_btd, self.a_proj.weight)
            wide = wide_dtype(logits_bth.dtype)
            step_bth = functional.softplus(logits_bth.to(wide) + self.dt_bias.to(wide))
            log_decay_bth = step_bth * -self.A_log.to(wide).exp()
        rules = given.count("n_householder")
        write_bta = linear(x_btd, self.b_proj.weight).sigmoid()
        k_bshk, v_bshv, write_bsh = (
            one.unflatten(-1, (rules, self.heads, -1)).flatten(1, 2)
            for one in (k_bta, v_bta, write_bta)
        )
        return gated_delta_product(
            self.by_head(q_bta),
            k_bshk,
            v_bshv,
            log_decay_bth,
            write_bsh.squeeze(-1) * (2.0 if given.flag("allow_neg_eigval") else 1.0),
            rules=rules,
            state_bhvk=state.get("S"),
            backend=backend,
        )

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return each head's decay [B, T, heads]; None without a forget gate."""
        return super().applied_decay(x_btd) if self.settings.flag("use_forget_gate") else None

    def _gated(self, y_bthv: Tensor, x_btd: Tensor, backend: str) -> Tensor:
        """Return the normed reads, times the output gate if there is one."""
        if self.settings.flag("use_gate"):
            return self.gate(y_bthv, linear(x_btd, self.g_proj.weight), "silu", backend)
        normed_bthv: Tensor = self.o_norm(y_bthv)
        return normed_bthv
