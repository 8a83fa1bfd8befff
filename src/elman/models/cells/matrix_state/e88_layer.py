"""Layer E88: a delta rule on a matrix state per head, with tanh around the state.

Shape legend: b batch, t time, d model width, c projected channels, h heads, n key width of a
head, v value width of a head, i = h*v.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.conv import CausalConv
from elman.models.blocks.dropout import Dropout
from elman.models.cells.common.mixer import Mixer, TextLayer
from elman.models.cells.matrix_state.decay_layer import (
    ConstantDecay,
    Decay,
    MambaDecay,
    SigmoidDecay,
)
from elman.models.cells.matrix_state.e88 import CELL
from elman.models.state import State
from elman.ops.common.checks import Shape
from elman.ops.common.precision import wide_dtype
from elman.ops.common.slices import Slice, row_blocks
from elman.ops.head_norm.op import head_norm
from elman.ops.linear import linear, padded_linear
from elman.ops.matrix_state.cuda.kernels import calls_at_once
from elman.ops.matrix_state.op import run
from elman.ops.matrix_state.plan import Plan


class E88(Mixer):
    """S' = tanh(decay S + (v - S k) k^T), y = S' q, per head (matrix-state specification 12).

    State: ``S`` [B, H, v, n] (value rows, key columns; the specification writes its transpose) in
    fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs of the convolution.

    All projections of the input are row blocks of one matrix, so they are one GEMM. The order is
    q, k, [v], [decay], [write], [mix], [gate].
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        given = self.settings
        self.heads = given.count("n_heads")
        self.key_width = given.count("n_state")
        self.width = int(self.heads * self.key_width * given.number("expansion"))
        self.value_width = self.width // self.heads
        self.rows = self._row_blocks()
        self.in_proj = nn.Parameter(torch.empty(sum(self.rows.values()), self.dim, **to))
        self.conv = (
            CausalConv(self._qkv_channels, given.count("d_conv"), bias=False, **to)
            if given.flag("use_conv")
            else None
        )
        self.decay = self._make_decay(to)
        self.value_residual = self._parameter("use_value_residual", self.heads, to)
        self.norm_gain = self._parameter("use_output_norm", None, to)
        if given.flag("phantom_norm_gain"):
            self.phantom_gain = nn.Parameter(torch.empty(self.value_width, **to), False)
        self.mix = given.word("head_mix")
        if self.mix == "weighted_sum":
            self.head_weights = nn.Parameter(torch.empty(self.heads, **to))
        kept = self.width if self.mix in ("concat", "per_head") else self.value_width
        self.out_proj = nn.Parameter(torch.empty(self.dim, kept, **to))
        self.dropout = Dropout(given.number("dropout"))
        self.plan = self._choose_plan()
        self.reset_parameters()

    @property
    def _qkv_channels(self) -> int:
        keys = 2 * self.heads * self.key_width
        return keys if self.settings.flag("tie_kv") else keys + self.width

    def _row_blocks(self) -> dict[str, int]:
        """Return the row blocks of the input projection and their heights, in order."""
        given = self.settings
        blocks = {"qkv": self._qkv_channels}
        if given.word("decay_mode") in ("mamba", "simple"):
            blocks["decay"] = self.heads
        if given.flag("use_write_gate"):
            blocks["write"] = self.heads
        if given.word("head_mix") == "input_weighted":
            blocks["mix"] = self.heads
        if given.flag("use_gate"):
            blocks["gate"] = self.width
        return blocks

    def _make_decay(self, to: dict[str, Any]) -> Decay | None:
        mode = self.settings.word("decay_mode")
        if mode == "mamba":
            return MambaDecay(self.heads, **to)
        if mode == "constant":
            return ConstantDecay(self.heads, **to)
        return SigmoidDecay() if mode == "simple" else None

    def _parameter(self, option: str, heads: int | None, to: dict[str, Any]) -> nn.Parameter | None:
        """Return an unfilled parameter [heads, v] or [v] if ``option`` is on."""
        if not self.settings.flag(option):
            return None
        shape = (self.value_width,) if heads is None else (heads, self.value_width)
        return init.no_decay(torch.empty(shape, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew, block by block with each block's own bound."""
        with torch.no_grad():
            blocks = self._split(self.in_proj, dim=0)
            self._reset_qkv(blocks.pop("qkv"))
            for name, block in blocks.items():
                if name == "write":
                    init.linear_default_(block)
                else:
                    init.xavier_(block)
        if self.conv is not None:
            self.conv.reset_parameters()
        if self.decay is not None:
            self.decay.reset_parameters()
        for gain in (self.value_residual, self.norm_gain, getattr(self, "phantom_gain", None)):
            if gain is not None:
                nn.init.ones_(gain)
        if self.mix == "weighted_sum":
            nn.init.constant_(self.head_weights, 1 / self.heads)
        if self.mix == "per_head":
            init.xavier_column_blocks_(self.out_proj, self.heads)
        else:
            init.xavier_(self.out_proj)

    def _split(self, stacked: Tensor, dim: int) -> dict[str, Tensor]:
        """Return the row blocks of the input projection, or of its output, by name."""
        parts = torch.split(stacked, list(self.rows.values()), dim=dim)
        return dict(zip(self.rows, parts, strict=True))

    def _reset_qkv(self, weight: Tensor) -> None:
        given = self.settings
        if given.flag("tie_kv") or given.word("qkv_init") == "separate":
            keys = self.heads * self.key_width
            for block in torch.split(weight, [keys, keys, weight.shape[0] - 2 * keys]):
                if block.shape[0]:
                    init.xavier_(block)
        else:
            init.xavier_(weight)

    def _choose_plan(self) -> Plan:
        """Return what one call of the engine computes; with a norm, the gate is outside of it."""
        given, places = self.settings, self._places()
        keys = self.heads * self.key_width
        qkv = places["qkv"]
        roles = {"q": qkv, "k": replace(qkv, start=keys), "v": replace(qkv, start=2 * keys)}
        if given.flag("tie_kv"):
            roles["v"] = roles["k"]
        roles |= {name: places[name] for name in ("decay", "write") if name in places}
        if self._fused_gate:
            roles["gate"] = places["gate"]
        act = "silu" if given.flag("use_silu") else "none"
        return Plan(
            "delta",
            self.heads,
            self.value_width,
            self.key_width,
            tuple(roles.items()),
            "linear" if given.flag("linear_state") else "tanh",
            q_act=act,
            k_act=act,
            v_act=act,
            q_unit=given.flag("use_l2_norm"),
            k_unit=given.flag("use_l2_norm"),
            decay="none" if self.decay is None else self.decay.map,
            write="sigmoid" if given.flag("use_write_gate") else "none",
            residual=given.flag("use_value_residual"),
            self_gate=given.flag("use_self_gate"),
            gate_act=given.word("gate_activation") if self._fused_gate else "none",
        )

    @property
    def _fused_gate(self) -> bool:
        return self.settings.flag("use_gate") and not self.settings.flag("use_output_norm")

    @property
    def _gate_follows(self) -> bool:
        """Whether the gate stands behind the output norm, outside of the engine."""
        return self.settings.flag("use_gate") and self.settings.flag("use_output_norm")

    def _places(self) -> dict[str, Slice]:
        """Return the row blocks' places; a convolution's output is a separate first source."""
        if self.conv is None:
            return row_blocks(self.rows)
        rest = {name: height for name, height in self.rows.items() if name != "qkv"}
        return {"qkv": Slice(0, 0), **row_blocks(rest, source=1)}

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.in_proj

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of S and of the convolution's history."""
        shapes: dict[str, Shape] = {"S": (self.heads, self.value_width, self.key_width)}
        if self.conv is not None:
            channels, taps = self.conv.weight.shape
            shapes["conv"] = (taps - 1, channels)
        return shapes

    def calls_at_once(self, batch: int, dtype: torch.dtype, device: torch.device) -> float:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        if self._backend_on(device.type) != "cuda":
            return 1
        return calls_at_once(self.plan, batch, dtype, device.index)

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        projected_btc = padded_linear(x_btd, self.in_proj)
        sources, backend = [projected_btc], self.backend_for(x_btd)
        gate_bti = None
        if self.conv is not None:
            sources, carried["conv"] = self.conv.of_projection(
                projected_btc, state.get("conv"), resets_bt, backend=backend
            )
        if self._gate_follows:
            sources, gate_bti = self._without_gate(sources)
        y_bthv, carried["S"] = run(
            self.plan,
            sources,
            self._plan_parameters(),
            state.get("S"),
            backend=backend,
            resets_bt=resets_bt,
        )
        if self.norm_gain is not None:
            y_bthv = self._normed(y_bthv, gate_bti, projected_btc.dtype, x_btd)
        mixed_bti = self._mix(y_bthv, projected_btc).to(projected_btc.dtype)
        return self.dropout(linear(mixed_bti, self.out_proj)), carried

    def _plan_parameters(self) -> dict[str, Tensor]:
        parameters = {} if self.decay is None else self.decay.plan_parameters()
        if self.value_residual is not None:
            parameters["residual"] = self.value_residual
        return parameters

    def text_layer(self) -> TextLayer | None:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        if self.norm_gain is not None or self.mix not in ("concat", "per_head"):
            return None
        parameters = self._plan_parameters()
        return TextLayer(self.plan, self.in_proj, self.out_proj, parameters, self.conv)

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return each head's decay [B, T, heads]; None without one."""
        if self.decay is None:
            return None
        weight = self._split(self.in_proj, dim=0).get("decay", self.in_proj[:0])
        return self.decay.factors(linear(x_btd, weight))

    def _block(self, projected_btc: Tensor, name: str) -> Tensor:
        """Return one row block of the input projection's output."""
        start = row_blocks(self.rows)[name].start
        return projected_btc[..., start : start + self.rows[name]]

    def _without_gate(self, sources_btc: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return what the engine reads, and the gate, which is the last block of the last source.

        Split, not sliced: their gradients are joined in one pass.
        """
        *before, last_btc = sources_btc
        rest_btc, gate_bti = last_btc.split([last_btc.shape[-1] - self.width, self.width], -1)
        return [*before, rest_btc], gate_bti

    def _normed(
        self, y_bthv: Tensor, gate_bti: Tensor | None, narrow: torch.dtype, x_btd: Tensor
    ) -> Tensor:
        """Apply the output norm and then the gate; a sum over the heads reads it in fp32."""
        assert self.norm_gain is not None
        joined = self.mix in ("concat", "per_head")
        return head_norm(
            y_bthv,
            self.norm_gain,
            gate_bti,
            "none" if gate_bti is None else self.settings.word("gate_activation"),
            dtype=narrow if joined else wide_dtype(narrow),
            backend=self.kernels_beside(self.backend_for(x_btd), x_btd),
        )

    def _mix(self, y_bthv: Tensor, projected_btc: Tensor) -> Tensor:
        """Return the output projection's input: concatenated heads, or their weighted sum."""
        if self.mix in ("concat", "per_head"):
            return y_bthv.flatten(-2)
        if self.mix == "sum":
            return y_bthv.sum(-2)
        own = self.mix == "weighted_sum"
        logits = self.head_weights if own else self._block(projected_btc, "mix")
        weights = torch.softmax(logits.to(y_bthv.dtype), dim=-1)
        return (weights.unsqueeze(-1) * y_bthv).sum(-2)
