"""Mamba3's recurrence against its equation, step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.ssd.mamba3 import PARTS, Mamba3Inputs, mamba3_scan

HEADS, GROUPS, ROWS, COLUMNS, PAIRS = 4, 2, 3, 6, 2


def inputs(steps: int) -> tuple[Mamba3Inputs, dict[str, Tensor]]:
    """Return what a call reads, and a state before it."""
    torch.manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(2, *shape, dtype=torch.float64)

    x, z = drawn(steps, HEADS, ROWS), drawn(steps, HEADS, ROWS)
    b, c = drawn(steps, GROUPS, COLUMNS), drawn(steps, GROUPS, COLUMNS)
    log, dt = -drawn(steps, HEADS).abs(), drawn(steps, HEADS).abs()
    trap, angle = drawn(steps, HEADS), drawn(steps, PAIRS)
    own = [torch.randn(HEADS, n, dtype=torch.float64) for n in (COLUMNS, COLUMNS, 1)]
    found = Mamba3Inputs(x, z, b, c, log, dt, trap, angle, own[0], own[1], own[2].squeeze(-1))
    return found, {name: drawn(*shape[1:]) for name, shape in found.state_shapes().items()}


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Return a vector whose first pairs are turned."""
    x = x.clone()
    for pair, by in enumerate(angle.tolist()):
        one = complex(x[2 * pair], x[2 * pair + 1]) * complex(math.cos(by), math.sin(by))
        x[2 * pair], x[2 * pair + 1] = one.real, one.imag
    return x


@pytest.mark.parametrize("head", [0, 3])
def test_it_is_its_equation(head) -> None:
    given, first = inputs(4)
    y, last = mamba3_scan(given, first, backend="reference")
    group = head // (HEADS // GROUPS)
    angle, state, key, value = (first[name][1, head] for name in PARTS)
    for t in range(4):
        dt, new = given.dt_bth[1, t, head], given.trap_bth[1, t, head].sigmoid()
        angle = angle + torch.tanh(given.angle_btr[1, t]) * math.pi * dt
        k = turned(given.b_btgn[1, t, group] + given.b_bias_hn[head], angle)
        q = turned(given.c_btgn[1, t, group] + given.c_bias_hn[head], angle)
        x, decay = given.x_bthp[1, t, head], given.log_decay_bth[1, t, head].exp()
        state = decay * state + decay * dt * (1 - new) * torch.outer(value, key)
        state = state + new * dt * torch.outer(x, k)
        read = (state @ q + given.skip_h[head] * x) * functional.silu(given.z_bthp[1, t, head])
        torch.testing.assert_close(y[1, t, head], read)
        key, value = k, x
    wanted = (angle.remainder(2 * math.pi), state, key, value)
    for name, one in zip(PARTS, wanted, strict=True):
        torch.testing.assert_close(last[name][1, head], one)


def test_gradcheck() -> None:
    given, first = inputs(3)
    leaves = [one.requires_grad_() for one in (*given.tensors(), *first.values())]

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(PARTS, args[11:], strict=True))
        y, last = mamba3_scan(Mamba3Inputs(*args[:11]), state, backend="reference")
        return (y, *last.values())

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
