"""The table of matrix-state steps against the specification's equations and hand-made gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.models.blocks.spectral_norm import SpectralNorm
from elman.ops.common import scan
from elman.ops.common.gates import self_gate, unit
from elman.ops.matrix_state.op import recurrence
from elman.ops.matrix_state.steps import NONLINEARITIES, STEPS


def load(name: str) -> ModuleType:
    """Import a module that stands beside this one."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


by_hand = load("backward_matrix")

# Sizes b, t, h, n, v: square and not, odd everywhere, one of each, more rows than steps.
SIZES = {
    "more-keys": (2, 4, 1, 5, 3),
    "more-values": (1, 7, 2, 3, 5),
    "one-step": (3, 1, 2, 2, 3),
    "rows-over-steps": (5, 2, 3, 3, 2),
    "scalar-state": (2, 3, 1, 1, 1),
}
# Step and the optional inputs that a call gives.
OPTIONAL: dict[str, list[tuple[str, ...]]] = {
    "decayed": [("row",), ("column",), ("row", "column"), ("decay",), ("row", "column", "decay")],
    "delta": [(), ("row",), ("read",), ("row", "read"), ("decay", "write"), ("decay", "read")],
}
CASES = {
    "-".join((step, *given)): (step, given)
    for step in STEPS
    for given in OPTIONAL.get(step, [(), ("read",)] if STEPS[step].reads else [()])
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
GATES = {"row", "column", "erase", "write", "decay"}


def draw(
    case: tuple[str, tuple[str, ...]], size: tuple[int, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return random fp64 sequences, parameters and a first state of a step."""
    (step, given), (b, t, h, n, v) = case, size
    declared = STEPS[step]
    generator = torch.Generator().manual_seed(3)

    def normal(name: str, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return (torch.sigmoid(drawn) if name in GATES else drawn).requires_grad_()

    names = sorted((declared.columns | declared.rows) - declared.optional)
    names += ["q", *(name for name in given if name not in declared.parameters)]
    on_columns = declared.columns | {"q", "read"}
    sequences = {name: normal(name, b, t, h, n if name in on_columns else v) for name in names}
    shapes = {"decay": (h, 1), "mix": (1, v, v), "mixes": (h, v, v)}
    parameters = {
        name: normal(name, *shapes.get(name, (h, v)))
        for name in sorted(declared.parameters)
        if name not in declared.optional or name in given
    }
    return sequences, parameters, normal("state", b, h, v, n)


def run(case: Any, drawn: Any, nonlinearity: str = "tanh") -> tuple[Tensor, Tensor]:
    sequences, parameters, start = drawn
    return recurrence(
        case[0], sequences, parameters, start, nonlinearity=nonlinearity, backend="reference"
    )


def leaves(drawn: Any) -> list[Tensor]:
    sequences, parameters, start = drawn
    return [*sequences.values(), *parameters.values(), start]


def test_every_step_has_a_backward_by_hand() -> None:
    assert set(by_hand.BACKWARD) == set(by_hand.FORWARD) == set(STEPS)


@cases
@pytest.mark.parametrize(
    ("size", "nonlinearity"),
    [(size, "tanh") for size in SIZES.values()]
    + [(SIZES["rows-over-steps"], name) for name in NONLINEARITIES if name != "tanh"],
    ids=[*SIZES, *(name for name in NONLINEARITIES if name != "tanh")],
)
def test_forward_and_gradients_are_the_specified_ones(case, size, nonlinearity) -> None:
    sequences, parameters, start = drawn = draw(case, size)
    y, final = run(case, drawn, nonlinearity)
    plain = [{n: x.detach() for n, x in group.items()} for group in (sequences, parameters)]
    states, _, wanted = by_hand.run(case[0], nonlinearity, *plain, start.detach())
    torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(final, states[-1], rtol=1e-10, atol=1e-12)
    dy, d_final = torch.randn_like(y), torch.randn_like(final)
    torch.autograd.backward([y, final], [dy, d_final])
    found = by_hand.gradients(case[0], nonlinearity, *plain, start.detach(), dy, d_final)
    named = sequences | parameters | {"start": start}
    assert set(found) == set(named)
    for name, tensor in named.items():
        torch.testing.assert_close(
            tensor.grad, found[name], rtol=1e-8, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


@cases
def test_gradcheck_through_reads_and_final_state(case) -> None:
    drawn = draw(case, (2, 3, 2, 3, 2))
    keys = [list(group) for group in drawn[:2]]

    def flat(*given: Tensor) -> tuple[Tensor, Tensor]:
        count = len(keys[0])
        sequences = dict(zip(keys[0], given[:count], strict=True))
        parameters = dict(zip(keys[1], given[count:-1], strict=True))
        return run(case, (sequences, parameters, given[-1]))

    assert torch.autograd.gradcheck(flat, leaves(drawn), fast_mode=True)


@cases
@pytest.mark.parametrize("steps", [1, 7, 16, 18])
def test_segments_equal_the_plain_loop(case, steps, monkeypatch) -> None:
    """The last segment may be partial: E73cp's kernel then wrote over a state it still needed."""
    drawn = draw(case, (2, steps, 2, 4, 3))
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        y, final = run(case, drawn)
        loss = (y.cos().sum() + final.sin().sum()).square()
        results.append([y, final, *torch.autograd.grad(loss, leaves(drawn))])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-10, atol=1e-12)


@cases
def test_autocast_and_narrow_inputs_leave_the_state_wide(case) -> None:
    sequences, parameters, start = draw(case, SIZES["more-keys"])
    narrow = [{n: x.bfloat16() for n, x in group.items()} for group in (sequences, parameters)]
    plain_y, plain_final = run(case, (*narrow, start.float()))
    with torch.autocast("cpu", torch.bfloat16):
        y, final = run(case, (*narrow, start.float()))
    assert y.dtype == final.dtype == torch.float32
    torch.testing.assert_close(y, plain_y, rtol=0, atol=0)
    torch.testing.assert_close(final, plain_final, rtol=0, atol=0)


@cases
def test_the_given_tensors_are_not_overwritten(case) -> None:
    drawn = draw(case, SIZES["one-step"])
    before = [tensor.detach().clone() for tensor in leaves(drawn)]
    with torch.no_grad():
        run(case, drawn)
    for tensor, kept in zip(leaves(drawn), before, strict=True):
        torch.testing.assert_close(tensor.detach(), kept, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 5, 20, 28, 40])
@pytest.mark.parametrize("step", STEPS)
def test_any_size_is_written_in_full(step, n, monkeypatch) -> None:
    """Sizes without a kernel template returned memory that nothing had written."""
    case = (step, ("row",) if step == "decayed" else ())
    drawn = draw(case, (2, 3, 1, n, n))
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *a, make=original, **k: make(*a, **k).fill_(torch.nan)
        )
    assert torch.empty(1).isnan().all()
    y, final = run(case, drawn)
    assert y.shape == (2, 3, 1, n)
    assert y.isfinite().all()
    assert final.isfinite().all()


@pytest.mark.parametrize(
    "change", [{"v": None}, {"gate": "v"}, {"read": "k"}], ids=["missing", "unknown", "unread"]
)
def test_a_call_that_does_not_fit_its_step_is_refused(change) -> None:
    sequences, parameters, start = draw(("decayed", ("row",)), SIZES["one-step"])
    for name, source in change.items():
        sequences[name] = None if source is None else sequences[source]
    given = {name: tensor for name, tensor in sequences.items() if tensor is not None}
    with pytest.raises(AssertionError):
        run(("decayed", ()), (given, parameters, start))


def test_key_norm_and_self_gate_have_the_specified_gradients() -> None:
    torch.manual_seed(0)
    k, g = torch.randn(2, 4, 5, dtype=torch.float64).requires_grad_(), torch.randn(2, 4, 5).double()
    for function, wanted in [(unit, by_hand.key_norm_back), (self_gate, by_hand.self_gate_back)]:
        (found,) = torch.autograd.grad(function(k), k, g)
        torch.testing.assert_close(found, wanted(k.detach(), g), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (1, 4)], ids=str)
def test_the_norm_of_a_matrix_that_is_not_square(shape) -> None:
    torch.manual_seed(1)
    weight = torch.randn(*shape, dtype=torch.float64).requires_grad_()
    rows, columns = shape
    norm = SpectralNorm(rows, 0.5, columns=columns, dtype=torch.float64)
    norm.reset(weight)
    g = torch.randn(*shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(norm(weight), weight, g)
    wanted = by_hand.spectral_norm_back(weight.detach(), norm.u, norm.v, 0.5, g)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    for _ in range(200):
        norm.advance(weight)
    assert torch.linalg.matrix_norm(norm(weight), 2).item() == pytest.approx(0.5, rel=1e-5)
