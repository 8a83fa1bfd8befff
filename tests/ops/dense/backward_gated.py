"""The gated dense recurrences and their gradients, derived by hand, in plain PyTorch.

Vector-state specification 2.8 (generic form), 3.12 (E60), 4.3 (E63), 4.6 (E66) and 4.7 (E67lr).
No autograd and nothing shared with the reference: this is what the backward of a kernel computes.

Shape legend: t time, b batch, i channels of the state, k = blocks * i channels of the
pre-activations, p = products * i of them that read the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
PRODUCTS = {
    "normalized_scalar": 1,
    "normalized": 1,
    "normalized_sum": 1,
    "mix": 1,
    "mix_all": 2,
    "two_gates": 1,
    "two_gates_all": 3,
    "residual": 1,
    "mix_gate": 1,
}
BLOCKS = {
    "normalized_scalar": 1,
    "normalized": 2,
    "normalized_sum": 1,
    "mix": 2,
    "mix_all": 2,
    "two_gates": 3,
    "two_gates_all": 3,
    "residual": 2,
    "mix_gate": 2,
}


@dataclass
class Saved:
    """What the forward pass keeps: states h_0 .. h_T and the pre-activations of every step."""

    h_tbi: list[Tensor]
    pre_tbk: list[Tensor]


@dataclass
class Gradients:
    """Gradients of the arguments of the op, in its order."""

    inputs_btk: Tensor
    recurrent: list[Tensor]
    parameters: list[Tensor]
    state_bi: Tensor


def forward(
    step: str,
    inputs_btk: Tensor,
    recurrent: list[Tensor],
    parameters: list[Tensor],
    state_bi: Tensor,
) -> Saved:
    """Run every step as the specification writes it."""
    saved = Saved([state_bi], [])
    width = state_bi.shape[1]
    for pre_bk in inputs_btk.unbind(1):
        h = saved.h_tbi[-1]
        read = h
        for matrix in reversed(recurrent):
            read = read @ matrix.T
        pre = torch.cat([pre_bk[:, : read.shape[1]] + read, pre_bk[:, read.shape[1] :]], dim=1)
        saved.pre_tbk.append(pre)
        saved.h_tbi.append(_step(step, h, list(pre.split(width, dim=1)), parameters))
    return saved


def _step(step: str, h: Tensor, pre: list[Tensor], parameters: list[Tensor]) -> Tensor:
    a = pre[0]
    if step.startswith("normalized"):
        return _normalized(step, h, pre, parameters)[0]
    if step in ("mix", "mix_all"):
        al = pre[1].sigmoid()
        return al * h + (1 - al) * a.tanh()
    if step in ("two_gates", "two_gates_all"):
        return pre[1].sigmoid() * h + pre[2].sigmoid() * a.tanh()
    if step == "residual":
        return h + pre[1].sigmoid() * a.tanh()
    assert step == "mix_gate"
    return a.sigmoid() * h + (1 - a.sigmoid()) * pre[1].tanh()


def _normalized(
    step: str, h: Tensor, pre: list[Tensor], parameters: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the normalized state and the root mean square that it was divided by."""
    if step == "normalized_sum":
        v = h + pre[0]
    else:
        gate = parameters[0] if step == "normalized_scalar" else pre[1].sigmoid()
        v = h + gate * pre[0].tanh()
    m = (v.square().mean(dim=1, keepdim=True) + EPS).sqrt()
    return v / m, m


def backward(
    step: str,
    saved: Saved,
    recurrent: list[Tensor],
    parameters: list[Tensor],
    dh_bti: Tensor,
    dfinal_bi: Tensor,
) -> Gradients:
    """Return all gradients, given those of all states and of the final one."""
    width = dfinal_bi.shape[1]
    reads = PRODUCTS[step] * width
    r, dpre_tbk, dparameters = dfinal_bi, [], [torch.zeros_like(one) for one in parameters]
    for s in reversed(range(dh_bti.shape[1])):
        e = dh_bti[:, s] + r
        h = saved.h_tbi[s]
        pre = list(saved.pre_tbk[s].split(width, dim=1))
        r, dpre, dalpha = _step_backward(step, h, pre, parameters, e)
        dpre_tbk.append(torch.cat(dpre, dim=1))
        if dalpha is not None:
            dparameters[0] += dalpha
        delta = dpre_tbk[-1][:, :reads]
        for matrix in recurrent:
            delta = delta @ matrix
        r = r + delta
    inputs_btk = torch.stack(dpre_tbk[::-1], dim=1)
    deltas = inputs_btk[..., :reads].transpose(0, 1).flatten(0, 1)
    h_rows = torch.cat(saved.h_tbi[:-1])
    if len(recurrent) == 1:
        drecurrent = [deltas.T @ h_rows]
    else:
        up, down = recurrent
        drecurrent = [deltas.T @ (h_rows @ down.T), (deltas @ up).T @ h_rows]
    return Gradients(inputs_btk, drecurrent, dparameters, r)


def _step_backward(
    step: str, h: Tensor, pre: list[Tensor], parameters: list[Tensor], e: Tensor
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return the direct part of r, the gradient of every block and that of alpha."""
    if step.startswith("normalized"):
        return _normalized_backward(step, h, pre, parameters, e)
    if step == "mix_gate":
        al, v = pre[0].sigmoid(), pre[1].tanh()
        return e * al, [e * (h - v) * al * (1 - al), e * (1 - al) * (1 - v**2)], None
    v, al = pre[0].tanh(), pre[1].sigmoid()
    if step in ("mix", "mix_all"):
        return e * al, [e * (1 - al) * (1 - v**2), e * (h - v) * al * (1 - al)], None
    if step == "residual":
        return e, [e * al * (1 - v**2), e * v * al * (1 - al)], None
    be = pre[2].sigmoid()
    dgates = [e * h * al * (1 - al), e * v * be * (1 - be)]
    return e * al, [e * be * (1 - v**2), *dgates], None


def _normalized_backward(
    step: str, h: Tensor, pre: list[Tensor], parameters: list[Tensor], e: Tensor
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    out, m = _normalized(step, h, pre, parameters)
    dv = (e - out * (e * out).mean(dim=1, keepdim=True)) / m
    if step == "normalized_sum":
        return dv, [dv], None
    q = pre[0].tanh()
    if step == "normalized_scalar":
        return dv, [parameters[0] * dv * (1 - q**2)], (dv * q).sum()
    gate = pre[1].sigmoid()
    return dv, [gate * dv * (1 - q**2), dv * q * gate * (1 - gate)], None
