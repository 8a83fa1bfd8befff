"""Resets of the matrix-state engine: a row's state is zero before the steps that a mask names.

Resets stand at the first step, the second, the last, on the boundary of a segment of four steps and
on either side of it; one row has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.ops.matrix_state import cpu, op
from elman.ops.matrix_state.custom_op import KERNELS
from elman.ops.matrix_state.plan import Plan
from tests.ops.matrix_state.test_matrix_kernels import (
    LAYERS,
    SPLIT,
    TOLERANCE,
    assert_equal,
    build,
)
from tests.ops.matrix_state.test_matrix_steps import cases
from tests.ops.matrix_state.test_matrix_steps import draw as draw_step
from tests.ops.matrix_state.test_matrix_steps import leaves as leaves_of_step
from tests.ops.whole import compile_matrix

STEPS = 10
# Cells with and without a read, an energy, a column gate, a hook and a key of the read's own; heads
# that share a row tile, and heads with several. The rest is slow.
CHECKED = (
    *("e14-rectangle", "e72-n7", "e73-column-n33", "e73-full-n28", "e73-delta-n6"),
    *("e74-state-n24", "e74-residual-n10", "e74-ntm-n18", "e75-n32", "e88-n16", "e88-everything"),
)
SINGLE = ("e74-ntm-n18", "e88-n16")
PLACES = ((0, 1, 4, 9), (3, 5, 8), ())
Tensors = dict[str, Tensor]


def mask(places: tuple[tuple[int, ...], ...] = PLACES, steps: int = STEPS) -> Tensor:
    """Return the mask [rows, steps] that is True at these steps of each row."""
    resets_bt = torch.zeros(len(places), steps, dtype=torch.bool)
    for row, at in enumerate(places):
        resets_bt[row, list(at)] = True
    return resets_bt


def plan_of(name: str) -> Plan:
    """Return the plan of a layer."""
    plan: Plan = build(LAYERS[name], torch.float64).plan
    return plan


def draw(plan: Plan, shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensors:
    """Return sources, parameters and a first state for a plan, by name."""
    generator = torch.Generator().manual_seed(3)

    def normal(*sizes: int) -> Tensor:
        drawn = 0.5 * torch.randn(*sizes, dtype=torch.float64, generator=generator)
        return drawn.to(dtype).requires_grad_()

    leaves = {f"source {n}": normal(*shape, width) for n, width in enumerate(plan.channels)}
    leaves |= {name: normal(*plan.parameter_shape(name)) for name in plan.parameter_names}
    return leaves | {"first": normal(shape[0], plan.heads, plan.rows, plan.columns)}


def run(
    plan: Plan, leaves: Tensors, backend: str, resets_bt: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run a plan through the engine's door."""
    sources = [leaf for name, leaf in leaves.items() if name.startswith("source")]
    parameters = {name: leaves[name] for name in plan.parameter_names}
    first = leaves.get("first")
    return op.run(plan, sources, parameters, first, backend=backend, resets_bt=resets_bt)


def apart(plan: Plan, leaves: Tensors, backend: str, resets_bt: Tensor) -> tuple[Tensor, Tensor]:
    """Run every row's documents by themselves; the first one alone has the first state."""
    outs, lasts = [], []
    for row, resets in enumerate(resets_bt.tolist()):
        begins = [t for t, reset in enumerate(resets) if reset or not t]
        parts = []
        for begin, end in zip(begins, [*begins[1:], len(resets)], strict=True):
            own = {
                n: leaf[[row], begin:end] if "source" in n else leaf for n, leaf in leaves.items()
            }
            first = own.pop("first", None)
            if not resets[begin] and first is not None:
                own["first"] = first[[row]]
            out_bthv, last_bhvn = run(plan, own, backend, None)
            parts.append(out_bthv)
        outs.append(torch.cat(parts, dim=1))
        lasts.append(last_bhvn)
    return torch.cat(outs), torch.cat(lasts)


def gradients(outputs: tuple[Tensor, Tensor], leaves: Tensors, reached: str = "both") -> Tensors:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    generator = torch.Generator().manual_seed(7)
    pulls = [torch.randn(o.shape, dtype=torch.float64, generator=generator) for o in outputs]
    chosen = {"both": (0, 1), "output": (0,), "last": (1,)}[reached]
    found = torch.autograd.grad(
        [outputs[i] for i in chosen],
        list(leaves.values()),
        [pulls[i].to(outputs[i].dtype) for i in chosen],
        allow_unused=True,
        materialize_grads=True,
    )
    named = {f"d {name}": one for name, one in zip(leaves, found, strict=True)}
    return {"out": outputs[0].detach(), "last": outputs[1].detach()} | named


def double(leaves: Tensors) -> Tensors:
    """Return the same numbers in fp64."""
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU engine keep every fourth state."""
    monkeypatch.setitem(KERNELS, "cpu", replace(KERNELS["cpu"], segment=lambda *_: 4))


@pytest.fixture(scope="module")
def compiled() -> None:
    """Compile all kernels of this module, in as many pieces as can be compiled at once."""
    plans = [(plan_of(name), torch.float64) for name in CHECKED]
    plans += [(plan_of(name), torch.float32) for name in SINGLE]
    compile_matrix(plans, "matrix resets", resets=True)


@cases
def test_gradcheck_of_every_step(case) -> None:
    drawn = draw_step(case, (2, 4, 2, 3, 2))
    keys = [list(group) for group in drawn[:2]]
    resets_bt = mask(((0, 2), (1, 3)), 4)

    def flat(*given: Tensor) -> tuple[Tensor, Tensor]:
        count = len(keys[0])
        return op.recurrence(
            case[0],
            dict(zip(keys[0], given[:count], strict=True)),
            dict(zip(keys[1], given[count:-1], strict=True)),
            given[-1],
            nonlinearity="tanh",
            backend="reference",
            resets_bt=resets_bt,
        )

    leaves: Any = leaves_of_step(drawn)
    assert torch.autograd.gradcheck(flat, leaves, fast_mode=True)
    out, last = flat(*leaves)
    # Row 0 is reset before its first step: nothing reaches its first state.
    (dfirst,) = torch.autograd.grad(out.sum() + last.sum(), leaves[-1:])
    assert not dfirst[0].any()
    assert dfirst[1].any()


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_is_that_of_documents_run_apart(name) -> None:
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    found = gradients(run(plan, leaves, "reference", mask()), leaves)
    wanted = gradients(apart(plan, leaves, "reference", mask()), leaves)
    assert_equal(found, wanted, 1e-12)
    assert not found["d first"][0].any()


def test_nothing_passes_a_reset_on_the_reference() -> None:
    plan = plan_of("e88-n16")
    nothing_passes(plan, draw(plan, (3, STEPS)), "reference")


def nothing_passes(plan: Plan, leaves: Tensors, backend: str) -> None:
    """Assert that NaN and infinity before a reset reach no step behind it, nor the way back."""
    wanted = gradients(run(plan, leaves, backend, mask()), leaves)
    with torch.no_grad():
        leaves["source 0"][1, 6] = torch.nan
        leaves["first"][0] = torch.inf
    found = gradients(run(plan, leaves, backend, mask()), leaves)
    for name in ("out", "d source 0"):
        clean = torch.ones(3, STEPS, dtype=torch.bool)
        clean[1, 5:8] = False  # the document with the NaN
        assert_equal({"": found[name][clean]}, {"": wanted[name][clean]}, 0.0)
        assert found[name][1, 6].isnan().any()
    assert_equal({"": found["last"]}, {"": wanted["last"]}, 0.0)
    assert not found["d first"][0].any()


# ---- the CPU engine


@pytest.mark.usefixtures("compiled", "short_segments")
@pytest.mark.parametrize("reached", ["both", "output", "last"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in CHECKED)) for n in LAYERS]
)
def test_outputs_and_gradients_are_those_of_the_reference(name, reached) -> None:
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    if reached == "output":
        leaves.pop("first")
    found = gradients(run(plan, leaves, "cpu", mask()), leaves, reached)
    wanted = gradients(run(plan, leaves, "reference", mask()), leaves, reached)
    assert_equal(found, wanted, 1e-9)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", SINGLE)
def test_fp32(name) -> None:
    plan, steps = plan_of(name), 71
    leaves = draw(plan, (2, steps), torch.float32)
    resets_bt = mask(((0, 31, 32, 33, 64), (63, 65, 70)), steps)
    found = gradients(run(plan, leaves, "cpu", resets_bt), leaves)
    wide = double(leaves)
    wanted = gradients(run(plan, wide, "reference", resets_bt), wide)
    assert_equal(found, wanted, TOLERANCE[torch.float32])


@pytest.mark.usefixtures("compiled", "short_segments")
@pytest.mark.parametrize("name", ["e88-everything", "e74-ntm-n18", "e75-n32"])
def test_documents_apart_give_the_same(name) -> None:
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    found = gradients(run(plan, leaves, "cpu", mask()), leaves)
    wanted = gradients(apart(plan, leaves, "cpu", mask()), leaves)
    assert_equal(found, wanted, 1e-12)


@pytest.mark.usefixtures("compiled", "short_segments")
@pytest.mark.parametrize("name", ["e88-everything", "e74-ntm-n18", "e73-full-n28"])
def test_a_mask_without_resets_changes_nothing(name) -> None:
    """These are two kernels, in which a compiler may fuse other multiplications and additions."""
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    found = gradients(run(plan, leaves, "cpu", mask(((), (), ()))), leaves)
    assert_equal(found, gradients(run(plan, leaves, "cpu", None), leaves), 1e-14)


@pytest.mark.usefixtures("compiled", "short_segments")
def test_nothing_passes_a_reset() -> None:
    plan = plan_of("e88-n16")
    nothing_passes(plan, draw(plan, (3, STEPS)), "cpu")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["e73-column-n33", "e74-ntm-n18", "e74-state-n24"])
def test_rows_of_a_head_shared_by_threads(name, monkeypatch) -> None:
    plan, steps = plan_of(name), SPLIT[name]
    leaves = draw(plan, (1, steps))
    resets_bt = mask(((3, 32, 34),), steps)
    alone = gradients(run(plan, leaves, "cpu", resets_bt), leaves)
    monkeypatch.setattr(cpu, "kernel_threads", lambda torch_threads: 3)
    assert_equal(gradients(run(plan, leaves, "cpu", resets_bt), leaves), alone, 1e-13)


@pytest.mark.usefixtures("compiled", "short_segments")
@pytest.mark.parametrize("name", ["e88-everything", "e74-state-n24", "e72-n7"])
def test_nothing_uninitialized_is_read_or_returned(name, monkeypatch) -> None:
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    wanted = gradients(run(plan, leaves, "cpu", mask()), leaves)
    for make in ("empty", "empty_like"):
        original = getattr(torch, make)
        monkeypatch.setattr(torch, make, lambda *a, o=original, **k: o(*a, **k).fill_(torch.nan))
    assert_equal(gradients(run(plan, leaves, "cpu", mask()), leaves), wanted, 0.0)


@pytest.mark.usefixtures("compiled")
def test_opcheck() -> None:
    plan = plan_of("e88-everything")
    leaves = draw(plan, (3, STEPS))
    sources = [leaf for name, leaf in leaves.items() if name.startswith("source")]
    parameters = [leaves[name] for name in plan.parameter_names]
    given = (plan.text, "cpu", True, sources, parameters, leaves["first"], mask())
    torch.library.opcheck(torch.ops.elman.matrix_state.default, given)
    with torch.no_grad():
        out, last, *kept = torch.ops.elman.matrix_state(*given)
        given = (plan.text, "cpu", out, last, *given[3:6], *kept, mask())
        torch.library.opcheck(torch.ops.elman.matrix_state_backward.default, given)


def test_a_mask_may_be_a_view() -> None:
    plan = plan_of("e75-n32")
    leaves = draw(plan, (3, STEPS))
    wanted = gradients(run(plan, leaves, "cpu", mask()), leaves)
    strided = mask().mT.contiguous().mT
    assert not strided.is_contiguous()
    assert_equal(gradients(run(plan, leaves, "cpu", strided), leaves), wanted, 0.0)


@pytest.mark.parametrize(
    ("resets", "said"),
    [
        (mask()[:2], r"resets of matrix_state .*: shape \[2, 10\], expected \[3, 10\]"),
        (mask().float(), r"resets of matrix_state .*: dtype float32, expected bool"),
        (mask().to("meta"), r"resets of matrix_state .*: on meta, expected on cpu"),
    ],
    ids=["shape", "dtype", "device"],
)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_mask_that_does_not_fit_is_refused(resets, said, backend) -> None:
    plan = plan_of("e75-n32")
    with pytest.raises(ValueError, match=said):
        run(plan, draw(plan, (3, STEPS), torch.float32), backend, resets)
