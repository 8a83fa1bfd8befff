"""Runs calls of M2RNN on its Triton kernels.

Shape legend: b batch, t time, h heads, n state columns, v and u state rows, k checkpoints, x any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.kernels.triton_version import interpreted
from elman.ops.matrix_state.row_mix.spec import MixSpec, mix_tile, register_limit
from elman.ops.matrix_state.triton.launch import (
    Launch,
    check_tensors,
    device_of,
    has_fast_tanh,
    launched,
)
from elman.ops.matrix_state.triton.tiles import Tile

NAMES = ("q", "k", "v", "decay", "gate")
"""The sequences of a call."""


@dataclass(frozen=True)
class MixCall:
    """The tensors of a call; the numbers of a head at a time are adjacent.

    Args:
        sequences: By the names of :data:`NAMES`: q and k [b, t, h, n], v and gate [b, t, h, v],
            decay [b, t, h].
        mix_huv: W.
        residual_hv: D.
        first_bhvn: State before the first step.
        checkpoints_kbhvn: The states before every segment but the first; None keeps none.
        resets_bt: True where the state before a step is zero; None is nowhere.
    """

    sequences: dict[str, Tensor]
    mix_huv: Tensor
    residual_hv: Tensor
    first_bhvn: Tensor
    checkpoints_kbhvn: Tensor | None
    resets_bt: Tensor | None

    @property
    def like(self) -> Tensor:
        """The sequence whose dtype the output has."""
        return self.sequences["gate"]


def forward(call: MixCall, out_bthv: Tensor, last_bhvn: Tensor) -> None:
    """Fill the output, the last state and the checkpoints.

    Raises:
        UserError: triton is missing, or has no kernel for this device or dtype.
    """
    _checked(call, lambda fast: launched(forward_launch(call, out_bthv, last_bhvn, fast=fast)))


def backward(
    call: MixCall,
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    gradients: dict[str, Tensor],
    dfirst_bhvn: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fill the gradients of the sequences and of the first state; return those of W and D.

    Every program leaves its own share of the last two. They are summed over the batch in one order,
    so that the same call has the same bits.

    Raises:
        UserError: as :func:`forward`.
    """
    batch, like = call.like.shape[0], call.mix_huv
    dmix_bhuv, dresidual_bhv = (
        torch.empty(batch, *one.shape, dtype=torch.float32, device=like.device)
        for one in (call.mix_huv, call.residual_hv)
    )
    shares = (dmix_bhuv, dresidual_bhv)
    given = (dout_bthv, dlast_bhvn, gradients, dfirst_bhvn)
    _checked(call, lambda fast: launched(backward_launch(call, *given, shares, fast=fast)))
    return dmix_bhuv.sum(0), dresidual_bhv.sum(0)


def _checked(call: MixCall, run: Callable[[bool], None]) -> None:
    for one in (*call.sequences.values(), call.mix_huv):
        check_tensors(one)
    with device_of(call.like):
        run(has_fast_tanh(call.like))


def forward_launch(call: MixCall, out_bthv: Tensor, last_bhvn: Tensor, *, fast: bool) -> Launch:
    """Return the launch of a forward pass."""
    from elman.ops.matrix_state.row_mix.forward import row_mix_forward

    spec, tile, programs = _sizes(call, fast, backward=False)
    arguments = (
        _places(call.sequences),
        call.mix_huv,
        call.residual_hv,
        call.first_bhvn,
        last_bhvn,
        out_bthv,
        call.checkpoints_kbhvn,
        call.resets_bt,
        call.like.shape[1],
        programs,
        spec,
        tile,
    )
    return Launch(row_mix_forward, (programs,), arguments, tile.warps)


def backward_launch(
    call: MixCall,
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    gradients: dict[str, Tensor],
    dfirst_bhvn: Tensor,
    shares: tuple[Tensor, Tensor],
    *,
    fast: bool,
) -> Launch:
    """Return the launch of a backward pass."""
    from elman.ops.matrix_state.row_mix.backward import row_mix_backward

    spec, tile, programs = _sizes(call, fast, backward=True)
    room = (programs, tile.steps, tile.rows, tile.columns)
    arguments = (
        _places(call.sequences),
        call.mix_huv,
        call.residual_hv,
        _places(gradients),
        *shares,
        call.first_bhvn,
        dfirst_bhvn,
        dlast_bhvn,
        None if dout_bthv is None else _place(dout_bthv),
        call.checkpoints_kbhvn,
        call.resets_bt,
        torch.empty(room, dtype=torch.float32, device=call.like.device),
        call.like.shape[1],
        programs,
        spec,
        tile,
    )
    registers = register_limit(spec, tile, backward=True)
    return Launch(row_mix_backward, (programs,), arguments, tile.warps, registers)


def _sizes(call: MixCall, fast: bool, *, backward: bool) -> tuple[MixSpec, Tile, int]:
    """Return what a pass is compiled for, and how many programs run."""
    (heads, rows, _), columns = call.mix_huv.shape, call.sequences["q"].shape[-1]
    narrow = call.like.dtype == torch.bfloat16
    spec = MixSpec(heads, rows, columns, fast, split=narrow, widened=narrow and interpreted())
    return spec, mix_tile(spec, backward=backward), call.like.shape[0] * heads


def _places(sequences: dict[str, Tensor]) -> Any:
    from elman.ops.matrix_state.row_mix.forward import Sequences

    return Sequences(**{name: _place(sequences[name]) for name in NAMES})


def _place(sequence_bthx: Tensor) -> Any:
    """Return where a sequence lies; its distance in time is compiled into a kernel."""
    import triton.language as tl

    from elman.ops.matrix_state.row_mix.forward import HeadSequence

    batch, time, head = sequence_bthx.stride()[:3]
    return HeadSequence(sequence_bthx, batch, tl.constexpr(time), head)
