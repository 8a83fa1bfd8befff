"""The delta rule with channel decays in chunks of time; plain PyTorch, any device.

Within a chunk, the reads S a of all steps solve one triangular system (Yang et al. 2024,
Parallelizing linear transformers with the delta rule). A decay belongs to a key channel, so each
pair of steps has its own products of decays, and a chunk is short. No decay is divided by.

Shape legend: b batch, t time, c chunks, l (and m) step within a chunk, h heads, k key width of a
head, v value width of a head, n = b h.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.channel_delta.rules import Steps
from elman.ops.common.chunk_decays import chunk_decays
from elman.ops.common.chunking import run_in_chunks
from elman.ops.gated_delta.inverse import unit_lower_inverse

CHUNK = 16
"""Steps of a chunk: memory and work for a step grow with it."""


def channel_delta(steps: Steps, state_bhvk: Tensor, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Compute what :func:`elman.ops.channel_delta.reference.channel_delta` defines, in chunks.

    Args:
        steps: The sequences.
        state_bhvk: State before the first step.
        chunk: Steps of a chunk; T need not be a multiple of it.

    Returns:
        Reads y_bthv and the state after the last step.
    """
    return run_in_chunks(_equal_chunks, steps, state_bhvk, chunk)


def _equal_chunks(
    inputs: Sequence[Tensor], state_bhvk: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Run over the whole sequence, cut into chunks of ``length`` steps."""
    batch, _, heads, _ = inputs[0].shape
    q_cnlk, k_cnlk, v_cnlv, a_cnlk, b_cnlk, log_cnlk = (
        one.unflatten(1, (-1, length)).permute(1, 0, 3, 2, 4).flatten(1, 2) for one in inputs
    )
    decays = chunk_decays(log_cnlk.mT)
    # The read of a step comes before its decay: its sums of decays are those of the step before.
    earlier_cnklm = functional.pad(decays.between[..., :-1, :], (0, 0, 1, 0))
    before_cnlk = functional.pad(decays.since_start[..., :-1], (1, 0), value=1.0).mT
    solve_cnlm = unit_lower_inverse(-_pairs(a_cnlk, earlier_cnklm, b_cnlk))
    y_cnlv, state_nvk = _pass_states(
        solve_cnlm @ (_pairs(a_cnlk, earlier_cnklm, k_cnlk) @ v_cnlv),
        solve_cnlm @ (a_cnlk * before_cnlk),
        _pairs(q_cnlk, decays.between, b_cnlk),
        _pairs(q_cnlk, decays.between, k_cnlk) @ v_cnlv,
        q_cnlk * decays.since_start.mT,
        b_cnlk * decays.until_end.mT,
        v_cnlv.mT @ (k_cnlk * decays.until_end.mT),
        decays.whole,
        state_nvk=state_bhvk.flatten(0, 1),
    )
    y_cbhlv = y_cnlv.unflatten(1, (batch, heads))
    return y_cbhlv.permute(1, 0, 3, 2, 4).flatten(1, 2), state_nvk.unflatten(0, (batch, heads))


def _pairs(left_cnlk: Tensor, decay_cnklm: Tensor, right_cnmk: Tensor) -> Tensor:
    """Return the decayed products of each step l with each step m, [c, n, l, m]."""
    weighted_cnklm = left_cnlk.mT.unsqueeze(-1) * decay_cnklm
    return (weighted_cnklm * right_cnmk.mT.unsqueeze(-2)).sum(-3)


def _pass_states(*chunks: Tensor, state_nvk: Tensor) -> tuple[Tensor, Tensor]:
    """Carry the state from chunk to chunk; return all reads and the last state.

    Args:
        chunks: By chunk: the reads S a without a first state, [l, v]; what the first state adds to
            them, [l, k]; weights of those reads in the outputs, [l, m]; outputs of the values,
            [l, v]; what the first state adds to the outputs, [l, k]; where the reads are written,
            [l, k]; writes of the values, [v, k]; the whole decay, [k].
        state_nvk: State before the first chunk.
    """
    reads = []
    for own_nlv, from_nlk, score_nlm, of_v_nlv, q_nlk, b_nlk, write_nvk, whole_nk in zip(
        *(one.unbind(0) for one in chunks), strict=True
    ):
        u_nlv = torch.baddbmm(own_nlv, from_nlk, state_nvk.mT)
        y_nlv = torch.baddbmm(of_v_nlv, score_nlm, u_nlv)
        reads.append(torch.baddbmm(y_nlv, q_nlk, state_nvk.mT))
        kept_nvk = torch.addcmul(write_nvk, state_nvk, whole_nk.unsqueeze(-2))
        state_nvk = torch.baddbmm(kept_nvk, u_nlv.mT, b_nlk)
    return torch.stack(reads), state_nvk
