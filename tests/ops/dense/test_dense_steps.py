"""Every step of the dense engine: plain equations, hand-derived gradients, carried state."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.steps import STEPS
from tests.ops.dense import backward_dense as by_hand
from tests.ops.dense.backward_dense import sigmoid
from tests.ops.dense.backward_gated import PRODUCTS

WIDTH, RANK = 5, 3
PARTS = ("h", "c", "n", "m")
SIZES = {
    "plain": (3, 5),
    "one-step": (2, 1),
    "one-row": (1, 7),
    "rows-over-steps": (6, 2),
}
sizes = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


@dataclass(frozen=True)
class Kind:
    """Widths of a step's inputs, shapes of its weights, parts of its state."""

    inputs: tuple[int, ...]
    weights: tuple[tuple[int, int], ...]
    parts: int = 1


KINDS = {
    "tanh": Kind((WIDTH,), ((WIDTH, WIDTH),)),
    "linear": Kind((WIDTH,), ((WIDTH, WIDTH),)),
    "low_rank": Kind((WIDTH,), ((WIDTH, RANK), (RANK, WIDTH))),
    "gru": Kind((2 * WIDTH, WIDTH), ((2 * WIDTH, WIDTH), (WIDTH, WIDTH))),
    "gru_reset_after": Kind((3 * WIDTH, WIDTH), ((3 * WIDTH, WIDTH),)),
    "lstm": Kind((4 * WIDTH,), ((4 * WIDTH, WIDTH),), parts=2),
    "slstm": Kind((4 * WIDTH,), ((4 * WIDTH, WIDTH),), parts=4),
}
steps = pytest.mark.parametrize("step", KINDS)


def draw(step: str, size: tuple[int, int], seed: int = 1) -> list[list[Tensor]]:
    """Return random fp64 inputs, weights (not symmetric) and first state."""
    kind, generator = KINDS[step], torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        return (torch.randn(*shape, dtype=torch.float64, generator=generator) / 2).requires_grad_()

    drawn = [
        [tensor(*size, width) for width in kind.inputs],
        [tensor(*shape) for shape in kind.weights],
        [tensor(size[0], WIDTH) for _ in range(kind.parts)],
    ]
    if step == "slstm":  # n, a sum of weights, is positive
        drawn[2][2].data.abs_().add_(0.5)
    return drawn


def run(step: str, drawn: list[list[Tensor]]) -> list[Tensor]:
    """Return h of all steps and the parts of the last state."""
    inputs, weights, state = drawn
    # R is the first matrix alone in a GRU, one matrix or the product of two in the others.
    recurrent, parameters = (weights[:1], weights[1:]) if step == "gru" else (weights, [])
    name = "tanh" if step == "low_rank" else step
    h, final = dense_recurrence(
        name, inputs, recurrent, state, parameters=parameters, backend="reference"
    )
    return [h, *final]


def plain(step: str, drawn: list[list[Tensor]]) -> dict[str, Tensor]:
    """Run the step's equation row by row: states with the first one, and the gates."""
    inputs, weights, start = ([x.detach() for x in group] for group in drawn)
    rows, parts = [], PARTS[: len(start)]
    for b in range(inputs[0].shape[0]):
        state = [part[b] for part in start]
        kept: dict[str, list[Tensor]] = {}
        for t in range(inputs[0].shape[1]):
            a = [sequence[b, t] for sequence in inputs]
            named = one_step(step, a, weights, state)
            state = [named[name] for name in parts]
            for name, value in named.items():
                first = [start[parts.index(name)][b]] if name in parts else []
                kept.setdefault(name, first).append(value)
        rows.append({name: torch.stack(values) for name, values in kept.items()})
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def one_step(
    step: str, a: list[Tensor], weights: list[Tensor], state: list[Tensor]
) -> dict[str, Tensor]:
    """Return the next state and the gates, as vector-state 2.7, 3.3, 5.1 and 5.2 write them."""
    h = state[0]
    if step in ("tanh", "linear"):
        pre = a[0] + weights[0] @ h
        return {"h": torch.tanh(pre) if step == "tanh" else pre}
    if step == "low_rank":
        return {"h": torch.tanh(a[0] + weights[0] @ (weights[1] @ h))}
    if step == "gru":
        u_z, u_r = weights[0][:WIDTH], weights[0][WIDTH:]
        z = sigmoid(a[0][:WIDTH] + u_z @ h)
        r = sigmoid(a[0][WIDTH:] + u_r @ h)
        n = torch.tanh(a[1] + weights[1] @ (r * h))
        return {"z": z, "r": r, "n": n, "h": (1 - z) * h + z * n}
    if step == "gru_reset_after":
        r, z, q = (a[0] + weights[0] @ h).chunk(3)
        r, z = sigmoid(r), sigmoid(z)
        n = torch.tanh(a[1] + r * q)
        return {"r": r, "z": z, "q": q, "n": n, "h": (1 - z) * n + z * h}
    if step == "slstm":
        z, o, i, f = (a[0] + weights[0] @ h).chunk(4)
        past = torch.log(sigmoid(f)) + state[3]
        m = torch.maximum(past, i)
        c = torch.exp(past - m) * state[1] + torch.exp(i - m) * torch.tanh(z)
        n = torch.exp(past - m) * state[2] + torch.exp(i - m)
        return {"z": z, "o": o, "i": i, "f": f, "c": c, "n": n, "m": m, "h": sigmoid(o) * c / n}
    f, i, o, q = (
        a[0][k * WIDTH : (k + 1) * WIDTH] + weights[0][k * WIDTH : (k + 1) * WIDTH] @ h
        for k in range(4)
    )
    f, i, o, q = sigmoid(f), sigmoid(i), sigmoid(o), torch.tanh(q)
    c = f * state[1] + i * q
    return {"f": f, "i": i, "o": o, "q": q, "c": c, "h": o * torch.tanh(c)}


def gradients(
    step: str, drawn: list[list[Tensor]], dh: Tensor, dfinal: list[Tensor]
) -> list[Tensor]:
    """Return the hand-derived gradients of inputs, weights and first state, in that order."""
    weights, kept = [weight.detach() for weight in drawn[1]], plain(step, drawn)
    h = kept["h"]
    before = h[:, :-1]
    if step in ("tanh", "linear"):
        delta, dstart = by_hand.one_matrix(h, weights[0], dh, dfinal[0], step == "linear")
        return [delta, by_hand.outer(delta, before), dstart]
    if step == "low_rank":
        delta, dstart, du, dv = by_hand.low_rank(h, *weights, dh, dfinal[0])
        return [delta, du, dv, dstart]
    if step == "gru":
        gates = (kept["z"], kept["r"], kept["n"])
        u_z, u_r = weights[0].chunk(2)
        dz, dr, dn, dstart = by_hand.gru(h, gates, (u_z, u_r, weights[1]), dh, dfinal[0])
        dzr = torch.cat([dz, dr], dim=-1)
        return [dzr, dn, by_hand.outer(dzr, before), by_hand.outer(dn, kept["r"] * before), dstart]
    if step == "gru_reset_after":
        gates = (kept["r"], kept["z"], kept["q"], kept["n"])
        stacked, dn, dstart = by_hand.gru_reset_after(h, gates, weights[0], dh, dfinal[0])
        return [stacked, dn, by_hand.outer(stacked, before), dstart]
    if step == "slstm":
        parts, gates = ([kept[name] for name in names] for names in ("cnm", "zoif"))
        stacked, *dstart = by_hand.slstm(parts, gates, weights[0], dh, dfinal)
        return [stacked, by_hand.outer(stacked, before), *dstart]
    gates = (kept["f"], kept["i"], kept["o"], kept["q"])
    stacked, dh0, dc0 = by_hand.lstm(kept["c"], gates, weights[0], dh, (dfinal[0], dfinal[1]))
    return [stacked, by_hand.outer(stacked, before), dh0, dc0]


def test_every_step_is_here_or_among_the_gated_ones() -> None:
    assert (set(KINDS) - {"low_rank"}) | set(PRODUCTS) == set(STEPS)


@steps
@sizes
def test_states_and_gradients_are_the_hand_derived_ones(step, size) -> None:
    drawn = draw(step, size)
    found = run(step, drawn)
    upstream = [torch.randn_like(one) for one in found]
    torch.autograd.backward(found, upstream)
    kept = plain(step, drawn)
    finals = [kept[name][:, -1] for name in PARTS[: len(drawn[2])]]
    wanted = [kept["h"][:, 1:], *finals]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-12, atol=1e-12)
    leaves = [leaf for group in drawn for leaf in group]
    for leaf, gradient in zip(
        leaves, gradients(step, drawn, upstream[0], upstream[1:]), strict=True
    ):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-10, atol=1e-11)


@steps
def test_gradcheck(step) -> None:
    drawn = draw(step, (2, 3))
    counts = [len(group) for group in drawn]

    def function(*flat: Tensor) -> tuple[Tensor, ...]:
        first, second = counts[0], counts[0] + counts[1]
        groups = [list(flat[:first]), list(flat[first:second]), list(flat[second:])]
        return tuple(run(step, groups))

    assert torch.autograd.gradcheck(function, [leaf for group in drawn for leaf in group])


@steps
@pytest.mark.parametrize("length", [1, 5, 9])
def test_segments_equal_the_plain_loop(step, length, monkeypatch) -> None:
    drawn = draw(step, (2, length))
    leaves = [leaf for group in drawn for leaf in group]
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        found = run(step, drawn)
        loss = torch.stack([one.cos().sum() for one in found]).sum()
        results.append([*found, *torch.autograd.grad(loss, leaves)])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-12, atol=1e-12)


@steps
def test_one_step_at_a_time_equals_the_sequence(step) -> None:
    drawn = draw(step, (3, 6))
    whole = run(step, drawn)
    state, parts = drawn[2], []
    for t in range(6):
        h, *state = run(step, [[x[:, t : t + 1] for x in drawn[0]], drawn[1], list(state)])
        parts.append(h)
    torch.testing.assert_close(torch.cat(parts, 1), whole[0], rtol=1e-12, atol=1e-12)
    for one, other in zip(state, whole[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@steps
def test_the_gradient_of_a_batch_is_the_sum_over_its_rows(step) -> None:
    """The original's GRU read the reset gates of other rows in its backward pass for B > 1."""
    drawn = draw(step, (4, 5))
    weights = drawn[1]
    batch = torch.autograd.grad(run(step, drawn)[0].cos().sum(), weights)
    rows = [
        torch.autograd.grad(
            run(
                step, [[x[b : b + 1] for x in drawn[0]], weights, [s[b : b + 1] for s in drawn[2]]]
            )[0]
            .cos()
            .sum(),
            weights,
        )
        for b in range(4)
    ]
    for found, parts in zip(batch, zip(*rows, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(parts).sum(0), rtol=1e-10, atol=1e-11)


@steps
def test_autocast_changes_nothing_and_half_inputs_are_widened(step) -> None:
    drawn = [[x.detach().float() for x in group] for group in draw(step, (3, 5))]
    wanted = run(step, drawn)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(step, drawn)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    half = [[x.bfloat16() for x in group] for group in drawn[:2]]
    assert all(one.dtype == torch.float32 for one in run(step, [*half, drawn[2]]))


def test_gru_resets_before_the_matrix() -> None:
    """A closed reset gate hides its channel from every candidate, not from its own alone."""
    inputs, weights, start = ([x.detach() for x in group] for group in draw("gru", (2, 1), seed=3))
    inputs[0].fill_(60)
    inputs[0][..., WIDTH] = -60
    changed = start[0].clone()
    changed[:, 0] += 1
    wanted = run("gru", [inputs, weights, start])[1]
    torch.testing.assert_close(run("gru", [inputs, weights, [changed]])[1], wanted)
    changed[:, 1] += 1
    assert not torch.allclose(run("gru", [inputs, weights, [changed]])[1], wanted)


@steps
def test_gradients_of_half_precision_weights_are_rounded_once(step) -> None:
    """The originals of E4, E37, E56, GRU and LSTM summed them over time in bf16."""
    drawn = draw(step, (2, 512))
    with torch.no_grad():
        for weight in drawn[1]:
            weight.copy_((weight / 2).bfloat16())
    exact = torch.autograd.grad(run(step, drawn)[0].sum(), drawn[1])
    half = [weight.detach().bfloat16().requires_grad_() for weight in drawn[1]]
    single = [[x.detach().float() for x in drawn[k]] for k in (0, 2)]
    found = torch.autograd.grad(run(step, [single[0], half, single[1]])[0].sum(), half)
    for one, other in zip(found, exact, strict=True):
        assert (one.double() - other).norm() < 0.003 * other.norm()


def test_a_sum_over_time_in_half_precision_is_worse_than_that() -> None:
    drawn = draw("tanh", (2, 512))
    h, weight = plain("tanh", drawn)["h"], drawn[1][0].detach() / 2
    delta, _ = by_hand.one_matrix(
        h, weight, torch.ones_like(h[:, 1:]), torch.zeros_like(h[:, 0]), False
    )
    terms = torch.einsum("bto,bti->toi", delta, h[:, :-1])
    total = torch.zeros_like(weight, dtype=torch.bfloat16)
    for term in terms:
        total += term.bfloat16()
    exact = terms.sum(0)
    assert (total.double() - exact).norm() > 0.006 * exact.norm()
