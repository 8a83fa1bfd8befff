"""Mamba3's recurrence as the layer calls it: checks and both implementations.

Shape legend: b batch, t time, h heads, p channels of a head, g groups of heads that share B and C,
n state columns, r pairs of columns that turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.kernels.packages import import_kernels
from elman.kernels.uncompiled import uncompiled
from elman.ops.common.backend import Backend
from elman.ops.common.checks import check_sequences, check_state, empty_results, is_empty
from elman.ops.common.packages import package_kernels, unpack_once
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.ssd import chunked

CHUNK = 64
"""Steps of a chunk in the package's own layer."""
PARTS = ("angle", "S", "k", "v")
"""Parts of the state, in the order of the package."""


@dataclass(frozen=True)
class Mamba3Inputs:
    """What one call reads.

    Attributes:
        x_bthp: Input of each head.
        z_bthp: Output gate.
        b_btgn: Columns written to, normed; head i belongs to group i // (heads / groups).
        c_btgn: Columns read, normed.
        log_decay_bth: Logarithm of the decay a, fp32 or wider.
        dt_bth: Time steps, fp32 or wider.
        trap_bth: Logits of l, the share of the new input in the trapezoid rule.
        angle_btr: Rates of turning, before tanh.
        b_bias_hn: Added to B.
        c_bias_hn: Added to C.
        skip_h: Weight D of the input in the output.
    """

    x_bthp: Tensor
    z_bthp: Tensor
    b_btgn: Tensor
    c_btgn: Tensor
    log_decay_bth: Tensor
    dt_bth: Tensor
    trap_bth: Tensor
    angle_btr: Tensor
    b_bias_hn: Tensor
    c_bias_hn: Tensor
    skip_h: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all of them, in order."""
        return [getattr(self, one.name) for one in fields(self)]

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state's parts."""
        batch, _, heads, rows = self.x_bthp.shape
        columns, pairs = self.b_btgn.shape[3], self.angle_btr.shape[2]
        lengths = {"angle": (pairs,), "S": (rows, columns), "k": (columns,), "v": (rows,)}
        return {name: (batch, heads, *lengths[name]) for name in PARTS}


Run = Callable[[Mamba3Inputs, Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


@uncompiled
def mamba3_scan(
    inputs: Mamba3Inputs, state: Mapping[str, Tensor], *, backend: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run Mamba3's recurrence over time, from a given state to the final one.

    With S [p, n] per head, l = sigmoid(trap), x- and k- of the step before, k and q = B and C plus
    their biases, turned pair by pair by the running sum of pi tanh(angle) dt:
    ``S' = a S + a dt (1 - l) x- k-^T + l dt x k^T``, ``y = (S' q + D x) silu(z)`` (mamba-ssm 2.3.2,
    ``mamba3_siso_combined``). Gradients reach every tensor.

    Args:
        inputs: What is read.
        state: Parts by name, fp32 or wider: ``angle`` [b, h, r], ``S`` [b, h, p, n], ``k``
            [b, h, n] and ``v`` [b, h, p]; an empty mapping starts a sequence.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.

    Returns:
        Gated reads [b, t, h, p], and the state after the last step.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: the package would compute in less than the model's precision.
    """
    of, chosen = "mamba3_scan", BACKENDS[backend]
    check_sequences(of, inputs.tensors()[:8])
    x_bthp, shapes = inputs.x_bthp, inputs.state_shapes()
    for name, part in state.items():
        check_state(f"state {name}", of, part, shapes[name], x_bthp)
    if is_empty(x_bthp):
        given = list((state or _zeros(inputs)).values())
        io = chosen.io_dtype(x_bthp.dtype)
        y_bthp, last = empty_results(x_bthp.shape, io, given, inputs.tensors())
        return y_bthp, dict(zip(PARTS, last, strict=True))
    with no_autocast(x_bthp):
        return chosen.run(inputs, state)


def _zeros(inputs: Mamba3Inputs) -> dict[str, Tensor]:
    dtype = wide_dtype(inputs.x_bthp.dtype)
    shapes = inputs.state_shapes()
    return {name: inputs.x_bthp.new_zeros(shapes[name], dtype=dtype) for name in PARTS}


def _chunked(inputs: Mamba3Inputs, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Run two of Mamba2's recurrences with the same decays: writes of this step and of the last."""
    dtype = wide_dtype(inputs.x_bthp.dtype)
    x, z, b, c, log, dt, trap, angle, b_bias, c_bias, skip = (
        one.to(dtype) for one in inputs.tensors()
    )
    first = state or _zeros(inputs)
    turn_bthr = torch.tanh(angle).unsqueeze(2) * math.pi * dt.unsqueeze(-1)
    turned_bthr = first["angle"].unsqueeze(1) + turn_bthr.cumsum(1)
    each = x.shape[2] // b.shape[2]
    k_bthn, q_bthn = (
        _turned(one.repeat_interleave(each, dim=2) + bias, turned_bthr)
        for one, bias in ((b, b_bias), (c, c_bias))
    )
    new = torch.sigmoid(trap) * dt
    old = (dt - new) * log.exp()
    before_x, before_k = (
        torch.cat([first[part].unsqueeze(1), one[:, :-1]], dim=1)
        for part, one in (("v", x), ("k", k_bthn))
    )
    y, s = chunked.ssd(new.unsqueeze(-1) * x, log, k_bthn, q_bthn, first["S"], CHUNK)
    more_y, more_s = chunked.ssd(
        old.unsqueeze(-1) * before_x, log, before_k, q_bthn, torch.zeros_like(s), CHUNK
    )
    y = (y + more_y + skip.unsqueeze(-1) * x) * functional.silu(z)
    last = torch.remainder(turned_bthr[:, -1], 2 * math.pi)
    return y, {"angle": last, "S": s + more_s, "k": k_bthn[:, -1], "v": x[:, -1]}


def _turned(x_bthn: Tensor, angle_bthr: Tensor) -> Tensor:
    """Return columns whose first r pairs are turned by an angle each."""
    pairs, rest = x_bthn.split(
        [2 * angle_bthr.shape[-1], x_bthn.shape[-1] - 2 * angle_bthr.shape[-1]], dim=-1
    )
    left, right = pairs.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle_bthr.cos(), angle_bthr.sin()
    turned = torch.stack([left * cos - right * sin, left * sin + right * cos], dim=-1)
    return torch.cat([turned.flatten(-2), rest], dim=-1)


def _package(inputs: Mamba3Inputs, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Call the package as its own layer does; it computes in bf16 whatever it is given."""
    x_bthp = inputs.x_bthp
    if x_bthp.dtype in (torch.float32, torch.float64):
        raise UserError(
            "model.cell=mamba3 on a GPU: the package's kernels compute in bf16; "
            "use train.precision=bf16, or kernels.backend=reference with baseline.allow_slow=true"
        )
    angle_bthr = inputs.angle_btr.unsqueeze(2).expand(-1, -1, x_bthp.shape[2], -1)
    y_bthp, *last = _kernels().mamba3_siso_combined(
        Q=inputs.c_btgn,
        K=inputs.b_btgn,
        V=x_bthp,
        ADT=inputs.log_decay_bth.mT,
        DT=inputs.dt_bth.mT,
        Trap=inputs.trap_bth.mT,
        Q_bias=inputs.c_bias_hn,
        K_bias=inputs.b_bias_hn,
        Angles=angle_bthr.float(),
        D=inputs.skip_h,
        Z=inputs.z_bthp,
        chunk_size=CHUNK,
        Input_States=tuple(state[name] for name in PARTS) if state else None,
        return_final_states=True,
    )
    return y_bthp, {name: one.float() for name, one in zip(PARTS, last[:4], strict=True)}


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_chunked),
    "triton": Backend(_package, narrow=True),
}
"""By the name that ``kernels.backend`` has."""


@cache
def _kernels() -> Any:
    module = "ops.triton.mamba3.mamba3_siso_combined"
    # Its backward pass reads the saved tensors twice (2.3.2).
    if function := getattr(import_kernels("mamba-ssm", module), "_Mamba3Function", None):
        unpack_once(function)
    return package_kernels("mamba-ssm", module)
