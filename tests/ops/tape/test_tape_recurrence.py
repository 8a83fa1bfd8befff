"""The tape recurrence against hand-derived gradients, the faults of the original, and its facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.tape.op import dual_memory

from .backward_tape import Gradients, backward, forward

SIZES = {
    "plain": (3, 5, 4, 6),
    "one-step": (2, 1, 3, 4),
    "one-row": (1, 7, 2, 5),
    "rows-over-steps": (6, 2, 3, 5),
    "one-slot": (2, 4, 1, 3),
}
writes = pytest.mark.parametrize("write", ["full", "identity", "shared"])
backends = pytest.mark.parametrize(
    "backend", ["reference", pytest.param("cpu", marks=pytest.mark.compiler)]
)
NAMES = ["input_bti", "recurrent_ii", "write_ii", "tape_bni", "state_bi"]
Drawn = list[Tensor | None]


def draw(size: tuple[int, int, int, int], write: str) -> Drawn:
    """Return random fp64 arguments: matrices not symmetric, slots all different, state not zero."""
    b, t, n, i = size
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return (drawn / 2).requires_grad_()

    matrix = random(i, i)
    wider = random(i, i) if write == "full" else None
    return [random(b, t, i), matrix, wider, random(b, n, i), random(b, i)]


def detached(drawn: Drawn) -> Drawn:
    return [None if one is None else one.detach() for one in drawn]


def by_autograd(
    drawn: Drawn, write: str, backend: str = "reference"
) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
    """Return outputs, gradients by name, and the random output gradients behind them."""
    outputs = dual_memory(*drawn, write=write, backend=backend)
    generator = torch.Generator().manual_seed(2)
    seeds = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    named = {name: one for name, one in zip(NAMES, drawn, strict=True) if one is not None}
    found = torch.autograd.grad(outputs, list(named.values()), seeds)
    return [o.detach() for o in outputs], dict(zip(named, found, strict=True)), seeds


def by_hand(drawn: Drawn, write: str, seeds: list[Tensor]) -> Gradients:
    plain = detached(drawn)
    return backward(forward(*plain, write), plain[1], plain[2], *seeds, write)


@writes
@backends
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_states_and_gradients_are_the_hand_derived_ones(size, backend, write) -> None:
    drawn = draw(size, write)
    (h, tape, final), gradients, seeds = by_autograd(drawn, write, backend)
    saved = forward(*detached(drawn), write)
    torch.testing.assert_close(h, torch.stack(saved.h_tbi[1:], dim=1), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(tape, saved.tape_tbni[-1], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(final, h[:, -1], rtol=0, atol=0)
    wanted = by_hand(drawn, write, seeds)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, getattr(wanted, name), rtol=1e-9, atol=1e-10)


@writes
@backends
def test_gradcheck(backend, write) -> None:
    drawn = draw((2, 3, 3, 3), write)
    given = [one for one in drawn if one is not None]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        whole = list(given) if write == "full" else [*given[:2], None, *given[2:]]
        return dual_memory(*whole, write=write, backend=backend)

    assert torch.autograd.gradcheck(run, given)


@writes
@pytest.mark.parametrize("steps", [1, 5, 11])
def test_segments_equal_the_plain_loop(steps, write, monkeypatch) -> None:
    drawn = draw((2, steps, 3, 4), write)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        outputs, gradients, _ = by_autograd(drawn, write)
        results.append([*outputs, *gradients.values()])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-11, atol=1e-12)


def test_autocast_changes_nothing() -> None:
    drawn = [one.detach().float() for one in draw(SIZES["plain"], "full")]
    plain = dual_memory(*drawn, write="full", backend="reference")
    with torch.autocast("cpu", torch.bfloat16):
        outputs = dual_memory(*drawn, write="full", backend="reference")
    for one, other in zip(outputs, plain, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def original(fault: str, drawn: Drawn, seeds: list[Tensor]) -> Gradients:
    """Return the gradients with one of the faults of the original's CUDA backward."""
    plain = detached(drawn)
    saved = forward(*plain, "full")
    recurrent, write = plain[1], plain[2]
    if fault == "recurrent-transposed":
        return backward(saved, recurrent.T, write, *seeds, "full")
    if fault == "write-transposed":
        return backward(saved, recurrent, write.T, *seeds, "full")
    if fault == "no-write-softmax":
        return backward(saved, recurrent, write, *seeds, "full", write_scores=False)
    right = backward(saved, recurrent, write, *seeds, "full")
    if fault == "weight-gradients-transposed":
        return replace(right, recurrent_ii=right.recurrent_ii.T, write_ii=right.write_ii.T)
    assert fault == "no-first-step"
    first_delta, first_state = right.input_bti[:, 0], saved.h_tbi[0]
    return replace(right, recurrent_ii=right.recurrent_ii - first_delta.T @ first_state)


# Fault of the original -> gradients that it spoils.
FAULTS = {
    "recurrent-transposed": {"input_bti", "recurrent_ii", "write_ii", "tape_bni", "state_bi"},
    "write-transposed": {"input_bti", "recurrent_ii", "write_ii", "tape_bni", "state_bi"},
    "weight-gradients-transposed": {"recurrent_ii", "write_ii"},
    "no-first-step": {"recurrent_ii"},
    "no-write-softmax": {"input_bti", "recurrent_ii", "write_ii", "tape_bni", "state_bi"},
}


@backends
@pytest.mark.parametrize("fault", FAULTS)
def test_each_wrong_gradient_of_the_original_is_told_apart(fault, backend) -> None:
    """With these draws each fault shows, alone, in every gradient that it spoils."""
    drawn = draw(SIZES["plain"], "full")
    _, gradients, seeds = by_autograd(drawn, "full", backend)
    wrong = original(fault, drawn, seeds)
    for name, gradient in gradients.items():
        error = (getattr(wrong, name) - gradient).norm() / gradient.norm()
        assert error > 0.01 if name in FAULTS[fault] else error < 1e-12, name


def test_simpler_settings_would_hide_two_of_the_faults() -> None:
    """From zero states the first step adds nothing, and equal slots have no softmax gradient."""
    drawn = draw(SIZES["plain"], "full")
    drawn[3], drawn[4] = (torch.zeros_like(one).requires_grad_() for one in drawn[3:])
    _, gradients, (dh, dtape, dfinal) = by_autograd(drawn, "full")
    right = by_hand(drawn, "full", [dh, dtape, dfinal])
    wrong = original("no-first-step", drawn, [dh, dtape, dfinal])
    torch.testing.assert_close(wrong.recurrent_ii, right.recurrent_ii, rtol=0, atol=0)
    torch.testing.assert_close(gradients["recurrent_ii"], right.recurrent_ii)
    seeds = [dh, torch.zeros_like(dtape), dfinal]
    right, wrong = by_hand(drawn, "full", seeds), original("no-write-softmax", drawn, seeds)
    for name in NAMES:
        torch.testing.assert_close(getattr(wrong, name), getattr(right, name))


def one_vector(
    input_bti: Tensor, recurrent_ii: Tensor, write_ii: Tensor | None, slots: int, write: str
) -> tuple[Tensor, Tensor]:
    """Run the reduced form: h = tanh(W_h h + x + m), m = (1 - 1/n) m + q / n, from zeros."""
    h = m = torch.zeros_like(input_bti[:, 0])
    states = []
    for x in input_bti.unbind(1):
        h = torch.tanh(h @ recurrent_ii.T + x + m)
        q = {"full": write_ii, "identity": None, "shared": recurrent_ii}[write]
        m = (1 - 1 / slots) * m + (h if q is None else h @ q.T) / slots
        states.append(h)
    return torch.stack(states, dim=1), m


def two_steps(drawn: list[Tensor], write: str, order: str) -> tuple[Tensor, Tensor]:
    """Return the second state and the tape after it, with the reads and writes in an order."""
    x, matrix, wider, tape, h = drawn
    before = tape
    for t in range(2):
        seen = before if order == "the read misses the write before it" else tape
        h = torch.tanh(h @ matrix.T + x[:, t] + (_weights(seen, h) * seen).sum(dim=1))
        q = (h if write == "identity" else h @ (matrix if wider is None else wider).T)[:, None]
        before, weights = tape, _weights(tape, h)
        if order == "the write is weighted by the written tape":
            weights = _weights(tape + weights * (q - tape), h)
        tape = tape + weights * (q - tape)
    return h, tape


def _weights(tape: Tensor, h: Tensor) -> Tensor:
    scores = (tape * h[:, None]).sum(dim=2, keepdim=True) / h.shape[1] ** 0.5
    return torch.softmax(scores, dim=1)


@writes
@backends
def test_a_step_reads_before_it_writes(backend, write) -> None:
    """Specification 3.4: both attentions of a step see the tape as it was before the step."""
    drawn = detached(draw((3, 2, 4, 5), write))
    _, tape, h = dual_memory(*drawn, write=write, backend=backend)
    for found, wanted in zip((h, tape), two_steps(drawn, write, "right"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    late = two_steps(drawn, write, "the write is weighted by the written tape")
    assert (late[1] - tape).norm() > 0.01 * tape.norm()
    stale = two_steps(drawn, write, "the read misses the write before it")
    assert (stale[0] - h).norm() > 0.01 * h.norm()


@writes
@backends
@pytest.mark.parametrize("slots", [1, 4, 7])
def test_from_a_zero_tape_all_slots_are_one_decaying_vector(slots, backend, write) -> None:
    drawn = draw((3, 6, slots, 5), write)
    tape, state = (torch.zeros_like(one) for one in drawn[3:])
    h, tape, _ = dual_memory(*drawn[:3], tape, state, write=write, backend=backend)
    wanted_h, m = one_vector(*drawn[:3], slots, write)
    spread = tape.amax(dim=1) - tape.amin(dim=1)
    assert spread.max() <= 1e-15
    assert m.abs().max() > 0.1
    torch.testing.assert_close(tape, m.unsqueeze(1).expand_as(tape), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(h, wanted_h, rtol=1e-12, atol=1e-13)
    leaves = [one for one in drawn[:3] if one is not None]
    found, wanted = (
        torch.autograd.grad(states.cos().sum() + last.sin().sum(), leaves)
        for states, last in ((h, tape.mean(dim=1)), (wanted_h, m))
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_different_slots_stay_different() -> None:
    drawn = detached(draw((2, 6, 4, 5), "full"))
    _, tape, _ = dual_memory(*drawn, write="full", backend="reference")
    assert (tape[:, 1:] - tape[:, :1]).abs().amax(dim=(1, 2)).min() > 0.05
