"""The matrix-state recurrence against the specification's equations and hand-derived gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.matrix_state.op import recurrence

# Sizes b, t, h, n, v: square and not, odd everywhere, one of each, more rows than steps.
SIZES = {
    "square": (2, 5, 3, 4, 4),
    "more-keys": (2, 4, 1, 5, 3),
    "more-values": (1, 7, 2, 3, 5),
    "one-step": (3, 1, 2, 2, 3),
    "rows-over-steps": (5, 2, 1, 3, 2),
    "scalar-state": (2, 3, 1, 1, 1),
}
GATES = ["none", "head", "row", "head+write", "row+write"]


def draw(size: tuple[int, ...], gates: str, seed: int = 0) -> dict[str, Tensor | None]:
    """Return random fp64 arguments of the recurrence."""
    b, t, h, n, v = size
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return drawn.requires_grad_()

    decay = normal(b, t, h, v if "row" in gates else 1).detach().sigmoid().requires_grad_()
    write = normal(b, t, h).detach().sigmoid().requires_grad_()
    return {
        "q_bthn": normal(b, t, h, n),
        "k_bthn": normal(b, t, h, n),
        "v_bthv": normal(b, t, h, v),
        "decay_bthr": None if gates == "none" else decay,
        "write_bth": write if "write" in gates else None,
        "state_bhvn": normal(b, h, v, n),
    }


def delta_rule(
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    decay_bthr: Tensor | None,
    write_bth: Tensor | None,
    state_bhvn: Tensor,
    linear_state: bool,
) -> tuple[Tensor, Tensor]:
    """Run the step ``delta`` with the gates that are there."""
    gates = {"decay": decay_bthr, "write": None if write_bth is None else write_bth.unsqueeze(-1)}
    given = {name: gate for name, gate in gates.items() if gate is not None}
    return recurrence(
        "delta",
        {"q": q_bthn, "k": k_bthn, "v": v_bthv, **given},
        {},
        state_bhvn,
        nonlinearity="linear" if linear_state else "tanh",
        backend="reference",
    )


def tensors(arguments: dict[str, Tensor | None]) -> list[Tensor]:
    """Return the arguments that are there."""
    return [tensor for tensor in arguments.values() if tensor is not None]


def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, c: Tensor, w: Tensor, linear: bool):
    """Return read and state after one step of one head, written from the specification."""
    new = c[:, None] * state + w * torch.outer(v - state @ k, k)
    new = new if linear else torch.tanh(new)
    return new @ q, new


def plain(arguments: dict[str, Tensor | None], linear: bool) -> tuple[Tensor, Tensor]:
    """Run the recurrence sequence by sequence and head by head."""
    q, k, v = (arguments[name] for name in ("q_bthn", "k_bthn", "v_bthv"))
    decay, write = arguments["decay_bthr"], arguments["write_bth"]
    b, t, h, _ = q.shape
    one = q.new_ones(1)
    reads, finals = [], []
    for i in range(b):
        for j in range(h):
            state = arguments["state_bhvn"][i, j]
            for s in range(t):
                c = one if decay is None else decay[i, s, j]
                w = one if write is None else write[i, s, j]
                read, state = step(state, q[i, s, j], k[i, s, j], v[i, s, j], c, w, linear)
                reads.append(read)
            finals.append(state)
    y = torch.stack(reads).reshape(b, h, t, -1).transpose(1, 2)
    return y, torch.stack(finals).reshape(b, h, *finals[0].shape)


def by_hand(
    arguments: dict[str, Tensor | None], linear: bool, dy: Tensor, dfinal: Tensor
) -> dict[str, Tensor]:
    """Return the gradients by the formulas of matrix-state specification 10 and 12.3."""
    q, k, v = (arguments[name].detach() for name in ("q_bthn", "k_bthn", "v_bthv"))
    b, t, h, _ = q.shape
    decay, write = arguments["decay_bthr"], arguments["write_bth"]
    c = q.new_ones(b, t, h, 1) if decay is None else decay.detach()
    w = q.new_ones(b, t, h) if write is None else write.detach()
    states = [arguments["state_bhvn"].detach()]
    for s in range(t):
        delta = w[:, s, :, None] * (v[:, s] - torch.einsum("bhvn,bhn->bhv", states[-1], k[:, s]))
        new = c[:, s, :, :, None] * states[-1] + torch.einsum("bhv,bhn->bhvn", delta, k[:, s])
        states.append(new if linear else torch.tanh(new))
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    dc, dw = torch.zeros_like(c), torch.zeros_like(w)
    ds = dfinal
    for s in reversed(range(t)):
        old, new = states[s], states[s + 1]
        grad = ds + torch.einsum("bhv,bhn->bhvn", dy[:, s], q[:, s])
        dq[:, s] = torch.einsum("bhvn,bhv->bhn", new, dy[:, s])
        inner = grad if linear else grad * (1 - new**2)
        delta = v[:, s] - torch.einsum("bhvn,bhn->bhv", old, k[:, s])
        rows = (inner * old).sum(-1)
        dc[:, s] = rows if c.shape[-1] == rows.shape[-1] else rows.sum(-1, keepdim=True)
        dw[:, s] = torch.einsum("bhvn,bhv,bhn->bh", inner, delta, k[:, s])
        ddelta = w[:, s, :, None] * torch.einsum("bhvn,bhn->bhv", inner, k[:, s])
        dv[:, s] = ddelta
        dk[:, s] = w[:, s, :, None] * torch.einsum("bhvn,bhv->bhn", inner, delta)
        dk[:, s] -= torch.einsum("bhvn,bhv->bhn", old, ddelta)
        ds = c[:, s, :, :, None] * inner - torch.einsum("bhv,bhn->bhvn", ddelta, k[:, s])
    found = {"q_bthn": dq, "k_bthn": dk, "v_bthv": dv, "state_bhvn": ds}
    found |= {} if decay is None else {"decay_bthr": dc}
    return found | ({} if write is None else {"write_bth": dw})


@pytest.mark.parametrize("linear", [False, True], ids=["tanh", "linear"])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_forward_is_the_specified_step(size, gates, linear) -> None:
    arguments = draw(size, gates)
    y, final = delta_rule(**arguments, linear_state=linear)
    wanted_y, wanted_final = plain(arguments, linear)
    torch.testing.assert_close(y, wanted_y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final, wanted_final, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("linear", [False, True], ids=["tanh", "linear"])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_gradients_are_the_hand_derived_ones(size, gates, linear) -> None:
    arguments = draw(size, gates)
    y, final = delta_rule(**arguments, linear_state=linear)
    dy, dfinal = torch.randn_like(y), torch.randn_like(final)
    torch.autograd.backward([y, final], [dy, dfinal])
    for name, wanted in by_hand(arguments, linear, dy, dfinal).items():
        torch.testing.assert_close(
            arguments[name].grad, wanted, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("gates", ["head", "row+write"])
def test_gradcheck_through_reads_and_final_state(gates) -> None:
    arguments = draw((2, 3, 2, 3, 2), gates)
    names = [name for name, tensor in arguments.items() if tensor is not None]

    def run(*given: Tensor) -> tuple[Tensor, Tensor]:
        named = arguments | dict(zip(names, given, strict=True))
        return delta_rule(**named, linear_state=False)

    assert torch.autograd.gradcheck(run, tensors(arguments))


@pytest.mark.parametrize("steps", [1, 2, 7, 16, 17])
@pytest.mark.parametrize("gates", ["none", "row+write"])
def test_segments_equal_the_plain_loop(steps, gates, monkeypatch) -> None:
    arguments = draw((2, steps, 3, 4, 3), gates)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        y, final = delta_rule(**arguments, linear_state=False)
        loss = (y.cos().sum() + final.sin().sum()).square()
        results.append([y, final, *torch.autograd.grad(loss, tensors(arguments))])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing_and_the_state_stays_wide(dtype) -> None:
    arguments = draw(SIZES["square"], "head+write")
    narrow = {name: tensor.to(dtype) for name, tensor in arguments.items()}
    narrow["state_bhvn"] = arguments["state_bhvn"].float()
    plain_y, plain_final = delta_rule(**narrow, linear_state=False)
    with torch.autocast("cpu", torch.bfloat16):
        y, final = delta_rule(**narrow, linear_state=False)
    assert y.dtype == final.dtype == torch.float32
    torch.testing.assert_close(y, plain_y, rtol=0, atol=0)
    torch.testing.assert_close(final, plain_final, rtol=0, atol=0)


def test_arguments_may_be_views() -> None:
    arguments = draw(SIZES["more-keys"], "row+write")
    views = {
        name: tensor.transpose(0, -1).contiguous().transpose(0, -1)
        for name, tensor in arguments.items()
    }
    assert not views["q_bthn"].is_contiguous()
    given = delta_rule(**arguments, linear_state=False)
    viewed = delta_rule(**views, linear_state=False)
    for one, other in zip(given, viewed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_given_state_is_not_overwritten() -> None:
    arguments = draw(SIZES["square"], "none")
    before = arguments["state_bhvn"].detach().clone()
    delta_rule(**arguments, linear_state=False)
    torch.testing.assert_close(arguments["state_bhvn"].detach(), before, rtol=0, atol=0)
