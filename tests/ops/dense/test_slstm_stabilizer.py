"""sLSTM without its stabilizer: what m may and may not change (arXiv 2405.04517, appendix A.2)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.ops.dense.op import dense_recurrence
from tests.ops.dense.dense_cases import call, draw

BACKENDS = pytest.mark.parametrize("backend", ["reference", "cpu"])
ROWS, STEPS, WIDTH = 3, 6, 5
pytestmark = pytest.mark.compiler


def leaves() -> tuple[Tensor, Tensor]:
    """Return pre-activations and a matrix that is not symmetric."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(ROWS, STEPS, 4 * WIDTH, dtype=torch.float64, generator=generator)
    matrix = torch.randn(4 * WIDTH, WIDTH, dtype=torch.float64, generator=generator) / WIDTH**0.5
    return x.requires_grad_(), matrix.requires_grad_()


def naive(x: Tensor, matrix: Tensor, stabilize: bool) -> Tensor:
    """Return h by equations 8 to 14, or with m as a number that has no gradient."""
    h, c, n, m = (x.new_zeros(ROWS, WIDTH) for _ in range(4))
    states = []
    for t in range(STEPS):
        z, o, i, f = (x[:, t] + h @ matrix.T).chunk(4, dim=-1)
        log_f = torch.nn.functional.logsigmoid(f)
        new_m = torch.maximum(log_f + m, i).detach() if stabilize else m
        keep, write = torch.exp(log_f + m - new_m), torch.exp(i - new_m)
        c, n, m = keep * c + write * z.tanh(), keep * n + write, new_m
        h = o.sigmoid() * c / n
        states.append(h)
    return torch.stack(states, dim=1)


@BACKENDS
@pytest.mark.parametrize("stabilize", [False, True], ids=["no-m", "m-without-gradient"])
def test_h_and_its_gradients_do_not_know_the_stabilizer(backend: str, stabilize: bool) -> None:
    x, matrix = leaves()
    zeros = [x.new_zeros(ROWS, WIDTH) for _ in range(4)]
    found, _ = dense_recurrence("slstm", [x], [matrix], zeros, backend=backend)
    wanted = naive(x, matrix, stabilize)
    pull = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    gradients = [torch.autograd.grad(one, (x, matrix), pull) for one in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@BACKENDS
def test_c_and_n_count_in_units_of_exp_m(backend: str) -> None:
    drawn = draw("slstm", "one-thread")
    y, h, c, n, m = call("slstm", drawn, backend)
    moved = dict(drawn)
    for part in ("state 1", "state 2"):
        moved[part] = drawn[part] * math.exp(-0.7)
    moved["state 3"] = drawn["state 3"] + 0.7
    other = call("slstm", moved, backend)
    torch.testing.assert_close(other[0], y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other[1], h, rtol=1e-12, atol=1e-12)
    for one, part in ((c, 2), (n, 3)):
        wanted, found = one * m.exp(), other[part] * other[4].exp()
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


@BACKENDS
def test_of_an_empty_memory_nothing_is_read(backend: str) -> None:
    x, matrix = leaves()
    outputs = []
    for m in (0.0, 300.0, -300.0):
        state = [x.new_zeros(ROWS, WIDTH) for _ in range(3)]
        state.append(x.new_full((ROWS, WIDTH), m))
        y, last = dense_recurrence("slstm", [x], [matrix], state, backend=backend)
        outputs.append(torch.stack([y[:, -1], *last]))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gates_far_beyond_exp_stay_finite(backend: str, dtype: torch.dtype) -> None:
    """i and f of +-400, in turn and at once: exp of either is beyond fp32."""
    x = torch.zeros(4, 8, 4 * WIDTH, dtype=dtype)
    x[..., :WIDTH] = torch.linspace(-2, 2, WIDTH)
    x[0, ::2, 2 * WIDTH : 3 * WIDTH], x[0, 1::2, 2 * WIDTH : 3 * WIDTH] = 400, -400
    x[1, ::3, 3 * WIDTH :], x[1, 1::3, 3 * WIDTH :] = 400, -400
    x[2, :, 2 * WIDTH : 3 * WIDTH] = -400
    x[3, ::2, 2 * WIDTH :], x[3, 1::2, 2 * WIDTH :] = -400, 400
    matrix = torch.full((4 * WIDTH, WIDTH), 0.1, dtype=dtype, requires_grad=True)
    zeros = [x.new_zeros(4, WIDTH) for _ in range(4)]
    y, last = dense_recurrence("slstm", [x.requires_grad_()], [matrix], zeros, backend=backend)
    assert (y.abs() <= 1).all()
    assert (last[2] >= 1).all()
    for gradient in torch.autograd.grad(y.sum(), (x, matrix)):
        assert gradient.isfinite().all()
