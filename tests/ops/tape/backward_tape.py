"""The tape recurrence and its gradients, derived by hand, in plain PyTorch.

Vector-state specification 3.4. No autograd and nothing shared with the reference: this is what
the backward of a kernel computes.

Shape legend: t time, b batch, n slots of the tape, i channels of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Saved:
    """What the forward pass keeps; h and the tape from step 0 to T, the rest of every step."""

    h_tbi: list[Tensor]
    tape_tbni: list[Tensor]
    read_tbn: list[Tensor] = field(default_factory=list)
    write_tbn: list[Tensor] = field(default_factory=list)
    value_tbi: list[Tensor] = field(default_factory=list)


@dataclass
class Gradients:
    """Gradients of the arguments of the op; that of W_r is None where there is no W_r."""

    input_bti: Tensor
    recurrent_ii: Tensor
    write_ii: Tensor | None
    tape_bni: Tensor
    state_bi: Tensor


def forward(
    input_bti: Tensor,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    state_bi: Tensor,
    write: str,
) -> Saved:
    """Run every step as the specification writes it, slot by slot."""
    saved = Saved([state_bi], [tape_bni])
    for pre in input_bti.unbind(1):
        h, tape = saved.h_tbi[-1], saved.tape_tbni[-1]
        read = _attention(tape, h)
        for n in range(tape.shape[1]):
            pre = pre + read[:, n, None] * tape[:, n]
        h = torch.tanh(h @ recurrent_ii.T + pre)
        weight = _attention(tape, h)
        value = h
        if write != "identity":
            value = h @ (recurrent_ii if write_ii is None else write_ii).T
        slots = [
            (1 - weight[:, n, None]) * tape[:, n] + weight[:, n, None] * value
            for n in range(tape.shape[1])
        ]
        saved.h_tbi.append(h)
        saved.tape_tbni.append(torch.stack(slots, dim=1))
        saved.read_tbn.append(read)
        saved.write_tbn.append(weight)
        saved.value_tbi.append(value)
    return saved


def _attention(tape: Tensor, h: Tensor) -> Tensor:
    """Return softmax_n(<M_n, h> / sqrt(i))."""
    scores = torch.stack([(slot * h).sum(dim=1) for slot in tape.unbind(1)], dim=1)
    powers = torch.exp(scores / h.shape[1] ** 0.5)
    return powers / powers.sum(dim=1, keepdim=True)


def backward(
    saved: Saved,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    dh_bti: Tensor,
    dtape_bni: Tensor,
    dfinal_bi: Tensor,
    write: str,
    write_scores: bool = True,
) -> Gradients:
    """Return all gradients, given those of all states, of the last tape and of the last state.

    ``write_scores=False`` leaves out the gradient through the softmax of the write attention.
    """
    scale = dfinal_bi.shape[1] ** -0.5
    matrix = {"full": write_ii, "identity": None, "shared": recurrent_ii}[write]
    r, dtape = dfinal_bi, dtape_bni
    deltas, dvalues = [], []
    for s in reversed(range(dh_bti.shape[1])):
        tape, h_old, h = saved.tape_tbni[s], saved.h_tbi[s], saved.h_tbi[s + 1]
        read, weight, value = saved.read_tbn[s], saved.write_tbn[s], saved.value_tbi[s]
        dvalue = (weight[..., None] * dtape).sum(dim=1)
        dweight = (dtape * (value[:, None] - tape)).sum(dim=2)
        dtape = (1 - weight[..., None]) * dtape
        dscore = scale * weight * (dweight - (dweight * weight).sum(dim=1, keepdim=True))
        if not write_scores:
            dscore = torch.zeros_like(dscore)
        dtape = dtape + dscore[..., None] * h[:, None]
        e = dh_bti[:, s] + r + (dvalue if matrix is None else dvalue @ matrix)
        e = e + (dscore[..., None] * tape).sum(dim=1)
        delta = e * (1 - h**2)
        dread = (delta[:, None] * tape).sum(dim=2)
        dtape = dtape + read[..., None] * delta[:, None]
        dscore = scale * read * (dread - (dread * read).sum(dim=1, keepdim=True))
        dtape = dtape + dscore[..., None] * h_old[:, None]
        r = delta @ recurrent_ii + (dscore[..., None] * tape).sum(dim=1)
        deltas.append(delta)
        dvalues.append(dvalue)
    old, new = torch.cat(saved.h_tbi[:-1]), torch.cat(saved.h_tbi[1:])
    drecurrent = torch.cat(deltas[::-1]).T @ old
    dwrite = torch.cat(dvalues[::-1]).T @ new
    if write == "shared":
        drecurrent = drecurrent + dwrite
    return Gradients(
        torch.stack(deltas[::-1], dim=1),
        drecurrent,
        dwrite if write == "full" else None,
        dtape,
        r,
    )
