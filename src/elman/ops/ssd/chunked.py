"""Mamba2's recurrence in chunks of time, as matrix products; plain PyTorch, any device.

Within a chunk the reads are a masked attention; between chunks only states are passed (Dao and Gu
2024, section 6). The loop runs over chunks, not over steps.

Shape legend: b batch, t time, c chunks, l (and m) step within a chunk, h heads, p channels of a
head, g groups of heads that share B and C, r heads of a group, n state columns, k = r p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.ops.common.chunk_decays import chunk_decays
from elman.ops.common.chunking import run_in_chunks

CHUNK = 64
"""Steps of a chunk where nothing else is asked for: the fastest of 16 to 256 on a CPU."""


def ssd(
    x_bthp: Tensor,
    log_decay_bth: Tensor,
    b_btgn: Tensor,
    c_btgn: Tensor,
    state_bhpn: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Compute what :func:`elman.ops.ssd.reference.ssd` defines, ``chunk`` steps at a time.

    Args:
        x_bthp: What is written; this and all else in fp32 or wider.
        log_decay_bth: Logarithm of each head's decay, at most 0.
        b_btgn: Columns written to.
        c_btgn: Columns read.
        state_bhpn: State before the first step.
        chunk: Steps of a chunk; T need not be a multiple of it.

    Returns:
        Reads y_bthp and the state after the last step.
    """
    inputs = (x_bthp, log_decay_bth, b_btgn, c_btgn)
    return run_in_chunks(_equal_chunks, inputs, state_bhpn, chunk)


def _equal_chunks(
    inputs: Sequence[Tensor], state_bhpn: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Run over the whole sequence, cut into chunks of ``length`` steps."""
    x_bclhp, log_bclh, b_bclgn, c_bclgn = (one.unflatten(1, (-1, length)) for one in inputs)
    groups = b_bclgn.shape[3]
    decays = chunk_decays(log_bclh.transpose(2, 3))
    b_bcgln, c_bcgln = b_bclgn.transpose(2, 3), c_bclgn.transpose(2, 3)
    scores_bcglm = c_bcgln @ b_bcgln.mT
    weights_bchlm = _per_head(scores_bcglm, decays.between)
    inside_bchlp = weights_bchlm @ x_bclhp.transpose(2, 3)
    left_bclhp = x_bclhp * decays.until_end.transpose(2, 3).unsqueeze(-1)
    left_bcgkl = left_bclhp.unflatten(3, (groups, -1)).flatten(4).permute(0, 1, 3, 4, 2)
    added_bchpn = (left_bcgkl @ b_bcgln).view(*x_bclhp.shape[:2], *state_bhpn.shape[1:])
    starts_bchpn, state_bhpn = _pass_states(added_bchpn, decays.whole, state_bhpn)
    starts_bcgkn = starts_bchpn.unflatten(2, (groups, -1)).flatten(3, 4)
    carried_bcglk = c_bcgln @ starts_bcgkn.mT
    carried_bclhp = carried_bcglk.transpose(2, 3).reshape(x_bclhp.shape)
    y_bclhp = carried_bclhp * decays.since_start.transpose(2, 3).unsqueeze(-1)
    y_bclhp.add_(inside_bchlp.transpose(2, 3))
    return y_bclhp.flatten(1, 2), state_bhpn


def _per_head(scores_bcglm: Tensor, between_bchlm: Tensor) -> Tensor:
    """Return the scores of each head's group times the head's own decays."""
    between_bcgrlm = between_bchlm.unflatten(2, (scores_bcglm.shape[2], -1))
    weights_bcgrlm: Tensor = scores_bcglm.unsqueeze(3) * between_bcgrlm
    return weights_bcgrlm.flatten(2, 3)


def _pass_states(
    added_bchpn: Tensor, whole_bch: Tensor, state_bhpn: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk and the one after the last."""
    starts = []
    # unbind, not indexing: the gradient of all chunks is then one stack.
    for added_bhpn, decay_bh in zip(added_bchpn.unbind(1), whole_bch.unbind(1), strict=True):
        starts.append(state_bhpn)
        state_bhpn = torch.addcmul(added_bhpn, state_bhpn, decay_bh[..., None, None])
    return torch.stack(starts, dim=1), state_bhpn
