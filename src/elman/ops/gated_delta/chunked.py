"""The gated delta rule in chunks of time, as matrix products; plain PyTorch, any device.

Within a chunk, the writes of all steps solve one triangular system (the WY or UT form: Yang et al.
2024, Parallelizing linear transformers with the delta rule; Yang, Kautz and Hatamizadeh 2025, Gated
Delta Networks, section 3.3). The loop runs over chunks, not over steps.

Shape legend: b batch, t time, c chunks, l (and m) step within a chunk, h heads, k key width of a
head, v value width of a head, n = b h.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.ops.common.chunk_decays import chunk_decays
from elman.ops.common.chunking import run_in_chunks
from elman.ops.gated_delta.inverse import unit_lower_inverse

CHUNK = 64
"""Steps of a chunk: the fastest of 16 to 256 on a CPU for heads of 128 keys, as published."""


def gated_delta_rule(
    q_bthk: Tensor,
    k_bthk: Tensor,
    v_bthv: Tensor,
    log_decay_bth: Tensor,
    beta_bth: Tensor,
    state_bhvk: Tensor,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Compute what :func:`elman.ops.gated_delta.reference.gated_delta_rule` defines, in chunks.

    Args:
        q_bthk: Queries, already normalized and scaled; this and all else in fp32 or wider.
        k_bthk: Keys, already normalized.
        v_bthv: Values.
        log_decay_bth: Logarithm of each head's decay, at most 0.
        beta_bth: Strength of each write.
        state_bhvk: State before the first step.
        chunk: Steps of a chunk; T need not be a multiple of it.

    Returns:
        Reads y_bthv and the state after the last step.
    """
    inputs = (q_bthk, k_bthk, v_bthv, log_decay_bth, beta_bth)
    return run_in_chunks(_equal_chunks, inputs, state_bhvk, chunk)


def _equal_chunks(
    inputs: Sequence[Tensor], state_bhvk: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Run over the whole sequence, cut into chunks of ``length`` steps."""
    q_bthk, k_bthk, v_bthv, log_decay_bth, beta_bth = inputs
    batch, _, heads, _ = q_bthk.shape
    q_cnlk, k_cnlk, v_cnlv = (_by_chunk(one, length) for one in (q_bthk, k_bthk, v_bthv))
    log_cnl, beta_cnl = (
        _by_chunk(one.unsqueeze(-1), length).squeeze(-1) for one in (log_decay_bth, beta_bth)
    )
    decays = chunk_decays(log_cnl)
    strengths_cnlm = (k_cnlk @ k_cnlk.mT) * (decays.between * beta_cnl.unsqueeze(-1))
    # Columns of the inverse, not rows of keys and values, take the factors: they are fewer.
    solve_cnlm = unit_lower_inverse(strengths_cnlm) * beta_cnl.unsqueeze(-2)
    wanted_cnlv = solve_cnlm @ v_cnlv
    known_cnlk = (solve_cnlm * decays.since_start.unsqueeze(-2)) @ k_cnlk
    scores_cnlm = (q_cnlk @ k_cnlk.mT) * decays.between
    y_cnlv, state_nvk = _pass_states(
        wanted_cnlv,
        known_cnlk,
        scores_cnlm,
        q_cnlk * decays.since_start.unsqueeze(-1),
        k_cnlk * decays.until_end.unsqueeze(-1),
        decays.whole,
        state_bhvk.flatten(0, 1),
    )
    y_cbhlv = y_cnlv.unflatten(1, (batch, heads))
    return y_cbhlv.permute(1, 0, 3, 2, 4).flatten(1, 2), state_nvk.unflatten(0, (batch, heads))


def _by_chunk(one_btha: Tensor, length: int) -> Tensor:
    """Return a sequence as contiguous blocks [c, n, l, a] for batched products."""
    one_bclha: Tensor = one_btha.unflatten(1, (-1, length))
    return one_bclha.permute(1, 0, 3, 2, 4).contiguous().flatten(1, 2)


def _pass_states(
    wanted_cnlv: Tensor,
    known_cnlk: Tensor,
    scores_cnlm: Tensor,
    q_cnlk: Tensor,
    k_cnlk: Tensor,
    whole_cn: Tensor,
    state_nvk: Tensor,
) -> tuple[Tensor, Tensor]:
    """Carry the state from chunk to chunk; return all reads and the last state."""
    reads = []
    # unbind, not indexing: the gradient of all chunks is then one stack.
    parts = (wanted_cnlv, known_cnlk, scores_cnlm, q_cnlk, k_cnlk, whole_cn)
    for wanted_nlv, known_nlk, scores_nlm, q_nlk, k_nlk, whole_n in zip(
        *(one.unbind(0) for one in parts), strict=True
    ):
        error_nlv = torch.baddbmm(wanted_nlv, known_nlk, state_nvk.mT, alpha=-1)
        reads.append(torch.baddbmm(q_nlk @ state_nvk.mT, scores_nlm, error_nlv))
        kept_nvk = state_nvk * whole_n[:, None, None]
        state_nvk = torch.baddbmm(kept_nvk, error_nlv.mT, k_nlk)
    return torch.stack(reads), state_nvk
