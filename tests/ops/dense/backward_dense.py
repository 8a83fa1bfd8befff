"""The backward formulas of the dense cells as the specification writes them, without autograd.

Vector-state specification 2.4 (spectral norm), 2.7 (one matrix), 3.1 to 3.11 and 5.1, 5.2.

Shape legend: b batch, t time, i channels of the state, r rank. A stack of states has T + 1 steps,
the first one included.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-8


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def silu_slope(x: Tensor) -> Tensor:
    """Return silu'(x) = sigmoid(x) (1 + x (1 - sigmoid(x))) (0, 2.7)."""
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def self_gate_slope(h: Tensor) -> Tensor:
    """Return s'(h) = silu(h) (2 + h (1 - sigmoid(h))) (0)."""
    return silu(h) * (2 + h * (1 - sigmoid(h)))


def outer(left_bto: Tensor, right_bti: Tensor) -> Tensor:
    """Return the gradient of a matrix [o, i]: all steps and rows in one product."""
    return left_bto.flatten(0, 1).T @ right_bti.flatten(0, 1)


def one_matrix(
    h_bti: Tensor, weight_ii: Tensor, dh_bti: Tensor, dfinal_bi: Tensor, linear: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the pre-activations and of the first state (2.7).

    Args:
        h_bti: States, first one included.
        weight_ii: Recurrent matrix in force.
        dh_bti: Gradient that reaches each state from its own output.
        dfinal_bi: Gradient of the last state.
        linear: Whether there is no tanh.
    """
    delta_bti, r_bi = torch.zeros_like(dh_bti), dfinal_bi
    for t in reversed(range(dh_bti.shape[1])):
        e_bi = dh_bti[:, t] + r_bi
        delta_bti[:, t] = e_bi if linear else e_bi * (1 - h_bti[:, t + 1] ** 2)
        r_bi = delta_bti[:, t] @ weight_ii
    return delta_bti, r_bi


def low_rank(
    h_bti: Tensor, u_ir: Tensor, v_ri: Tensor, dh_bti: Tensor, dfinal_bi: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of pre-activations, first state and both factors in force (3.3)."""
    delta_bti, r_bi = torch.zeros_like(dh_bti), dfinal_bi
    for t in reversed(range(dh_bti.shape[1])):
        delta_bti[:, t] = (dh_bti[:, t] + r_bi) * (1 - h_bti[:, t + 1] ** 2)
        r_bi = (delta_bti[:, t] @ u_ir) @ v_ri
    before_bti = h_bti[:, :-1]
    return (
        delta_bti,
        r_bi,
        outer(delta_bti, before_bti @ v_ri.T),
        outer(delta_bti @ u_ir, before_bti),
    )


def spectral_norm(gradient: Tensor, weight: Tensor, u: Tensor, v: Tensor, radius: float) -> Tensor:
    """Pull the gradient of the normalized matrix back to the stored one (2.4)."""
    sigma = (u @ weight @ v).abs() + EPS
    return radius / sigma * (gradient - (gradient * weight).sum() / sigma * torch.outer(u, v))


def product_norm(
    du_ir: Tensor, dv_ri: Tensor, u_ir: Tensor, v_ri: Tensor, u: Tensor, v: Tensor, radius: float
) -> tuple[Tensor, Tensor]:
    """Pull the gradients of the scaled factors back to the stored ones (3.3)."""
    sigma = (u @ u_ir @ v_ri @ v).abs() + EPS
    c = radius / sigma
    dc = ((du_ir * u_ir).sum() + (dv_ri * v_ri).sum()) / (2 * c.sqrt())
    dproduct_ii = -dc * c / sigma * torch.outer(u, v)
    return c.sqrt() * du_ir + dproduct_ii @ v_ri.T, c.sqrt() * dv_ri + u_ir.T @ dproduct_ii


def gru(
    h_bti: Tensor,
    gates: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor, Tensor],
    dh_bti: Tensor,
    dfinal_bi: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the pre-activations of z, r, n and of the first state (5.1).

    Args:
        h_bti: States, first one included.
        gates: z, r, n of all steps.
        weights: U_z, U_r, U_n.
        dh_bti: Gradient that reaches each state from its own output.
        dfinal_bi: Gradient of the last state.
    """
    u_z, u_r, u_n = weights
    dz_bti, dr_bti, dn_bti = (torch.zeros_like(gate) for gate in gates)
    carried_bi = dfinal_bi
    for t in reversed(range(dh_bti.shape[1])):
        z, r, n = (gate[:, t] for gate in gates)
        before, e = h_bti[:, t], dh_bti[:, t] + carried_bi
        dz_bti[:, t] = e * (n - before) * z * (1 - z)
        dn_bti[:, t] = e * z * (1 - n**2)
        c = dn_bti[:, t] @ u_n
        dr_bti[:, t] = c * before * r * (1 - r)
        carried_bi = e * (1 - z) + c * r + dz_bti[:, t] @ u_z + dr_bti[:, t] @ u_r
    return dz_bti, dr_bti, dn_bti, carried_bi


def gru_reset_after(
    h_bti: Tensor,
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    weight: Tensor,
    dh_bti: Tensor,
    dfinal_bi: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of what U h is added to, of n's argument and of the first state.

    PyTorch's own GRU (5.1), by the chain rule: q = U_n h + c, n = tanh(p + r q).

    Args:
        h_bti: States, first one included.
        gates: r, z, q, n of all steps.
        weight: U [3 i, i], rows r, z, n.
        dh_bti: Gradient that reaches each state from its own output.
        dfinal_bi: Gradient of the last state.
    """
    stacked = dh_bti.new_zeros(*dh_bti.shape[:2], weight.shape[0])
    dn_bti, carried_bi = torch.zeros_like(dh_bti), dfinal_bi
    for t in reversed(range(dh_bti.shape[1])):
        r, z, q, n = (gate[:, t] for gate in gates)
        e = dh_bti[:, t] + carried_bi
        dn_bti[:, t] = e * (1 - z) * (1 - n**2)
        dr, dz = dn_bti[:, t] * q * r * (1 - r), e * (h_bti[:, t] - n) * z * (1 - z)
        stacked[:, t] = torch.cat([dr, dz, dn_bti[:, t] * r], dim=-1)
        carried_bi = e * z + stacked[:, t] @ weight
    return stacked, dn_bti, carried_bi


def lstm(
    c_bti: Tensor,
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    weight: Tensor,
    dh_bti: Tensor,
    dfinal: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the stacked pre-activations and of the first h and c (5.2).

    Args:
        c_bti: Cell states, first one included.
        gates: f, i, o, q of all steps.
        weight: U [4 i, i], rows f, i, o, q.
        dh_bti: Gradient that reaches each h from its own output.
        dfinal: Gradients of the last h and c.
    """
    r_h, r_c = dfinal
    stacked = dh_bti.new_zeros(*dh_bti.shape[:2], weight.shape[0])
    for t in reversed(range(dh_bti.shape[1])):
        f, i, o, q = (gate[:, t] for gate in gates)
        e, tc = dh_bti[:, t] + r_h, torch.tanh(c_bti[:, t + 1])
        dc = r_c + e * o * (1 - tc**2)
        do = e * tc * o * (1 - o)
        df = dc * c_bti[:, t] * f * (1 - f)
        di = dc * q * i * (1 - i)
        dq = dc * i * (1 - q**2)
        stacked[:, t] = torch.cat([df, di, do, dq], dim=-1)
        r_c, r_h = dc * f, stacked[:, t] @ weight
    return stacked, r_h, r_c


def slstm(
    parts: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    weight: Tensor,
    dh_bti: Tensor,
    dfinal: tuple[Tensor, Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the stacked pre-activations and of the first h, c, n and m.

    The chain rule on equations 8 to 17 of arXiv 2405.04517, through the stabilizer as well.

    Args:
        parts: c, n and m of all steps, first ones included.
        gates: Pre-activations of z, o, i and f, R h among them.
        weight: R [4 i, i], rows z, o, i, f.
        dh_bti: Gradient that reaches each h from its own output.
        dfinal: Gradients of the last h, c, n and m.
    """
    r_h, r_c, r_n, r_m = dfinal
    stacked = dh_bti.new_zeros(*dh_bti.shape[:2], weight.shape[0])
    for t in reversed(range(dh_bti.shape[1])):
        z, o, i, f = (
            torch.tanh(gates[0][:, t]),
            sigmoid(gates[1][:, t]),
            *(g[:, t] for g in gates[2:]),
        )
        (c, n, m), (c_new, n_new, m_new) = ([one[:, s] for one in parts] for s in (t, t + 1))
        past = torch.log(sigmoid(f)) + m
        write, keep = torch.exp(i - m_new), torch.exp(past - m_new)
        e = dh_bti[:, t] + r_h
        dc, dn = r_c + e * o / n_new, r_n - e * o * c_new / n_new**2
        di, dpast = (dc * z + dn) * write, (dc * c + dn * n) * keep
        dm = r_m - di - dpast
        di, dpast = di + dm * (i >= past), dpast + dm * (past > i)
        dz, do = dc * write * (1 - z**2), e * c_new / n_new * o * (1 - o)
        stacked[:, t] = torch.cat([dz, do, di, dpast * (1 - sigmoid(f))], dim=-1)
        r_h, r_c, r_n, r_m = stacked[:, t] @ weight, dc * keep, dn * keep, dpast
    return stacked, r_h, r_c, r_n, r_m
