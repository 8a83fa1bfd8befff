"""Resets of the channel engine: steps whose state before them is zero, row by row.

Shape legend: b batch, t time, c channels.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from elman.ops.channel import custom_op
from elman.ops.channel.cpu import SEGMENT
from elman.ops.channel.log_space import BLOCK
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common import scan
from elman.ops.common.slices import row_blocks
from tests.ops.channel.test_channel_kernels import (
    PLANS,
    TOLERANCE,
    Leaves,
    call,
    check,
    draw,
    everything,
    identical,
)
from tests.ops.whole import compile_channel

FP32 = torch.float32
STEPS = 2 * SEGMENT + 5
SIZE = (3, STEPS, 5)
RESETS = {
    "rows-differ": [(0, 0), (1, 1), (2, 11), (0, 20), (1, STEPS - 1)],
    "kept-states": [(0, SEGMENT), (1, SEGMENT - 1), (2, SEGMENT + 1)],
    "one-after-another": [(b, SEGMENT + t) for b in range(2) for t in (-1, 0, 1)],
}
CASES = pytest.mark.parametrize("where", RESETS.values(), ids=RESETS)
EVERY = pytest.mark.parametrize("name", PLANS)
SOME_PLANS = ("e34", "e59b", "e65", "minlstm_parallel", "e74-tied-kvq")
SOME = pytest.mark.parametrize("name", SOME_PLANS)
# Every kernel in fp64; in fp32 it is the same text.
KERNELS = [*((name, torch.float64) for name in PLANS), *((name, FP32) for name in SOME_PLANS)]
FORMS = pytest.mark.parametrize("step", ["mingru_parallel", "minlstm_parallel"])


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        compile_channel(dtype, resets=True)


def mask(where: list[tuple[int, int]], steps: int = STEPS) -> Tensor:
    """Return resets at (b, t)."""
    resets_bt = torch.zeros(SIZE[0], steps, dtype=torch.bool)
    for b, t in where:
        resets_bt[b, t] = True
    return resets_bt


def by_hand(name: str, leaves: Leaves, resets_bt: Tensor) -> Leaves:
    """Return what the reference computes without resets, every row cut into documents.

    Outputs and gradients of one sum are those of :func:`everything`.
    """
    plan = PLANS[name](leaves["state"].shape[1])
    outputs, lasts = [], []
    for b, row in enumerate(resets_bt):
        state = leaves["state"][b : b + 1]
        starts = [0, *(t for t in range(1, len(row)) if row[t]), len(row)]
        parts = []
        for begin, end in pairwise(starts):
            part = leaves | {
                "source": leaves["source"][b : b + 1, begin:end],
                "state": torch.zeros_like(state) if row[begin] else state,
            }
            y, state = call(plan, part, "reference")
            parts.append(y)
        outputs.append(torch.cat(parts, dim=1))
        lasts.append(state)
    y, last = torch.cat(outputs), torch.cat(lasts)
    generator = torch.Generator().manual_seed(2)
    pulls = [torch.randn(o.shape, dtype=torch.float64, generator=generator) for o in (y, last)]
    gradients = torch.autograd.grad([y, last], list(leaves.values()), pulls, materialize_grads=True)
    named = {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"y": y.detach(), "last": last.detach()} | named


@EVERY
@CASES
def test_the_reference_runs_every_document_by_itself(name, where) -> None:
    leaves, resets_bt = draw(PLANS[name](SIZE[2]), SIZE), mask(where)
    found = everything(PLANS[name](SIZE[2]), leaves, "reference", resets_bt=resets_bt)
    check(found, by_hand(name, leaves, resets_bt), 1e-11)
    assert (found["d state"][resets_bt[:, 0]] == 0).all()


@CASES
@pytest.mark.parametrize(("name", "dtype"), KERNELS, ids=lambda one: str(one).rpartition(".")[2])
def test_a_kernel_gives_the_numbers_of_the_reference(name, where, dtype) -> None:
    plan, resets_bt = PLANS[name](SIZE[2]), mask(where)
    exact = everything(plan, draw(plan, SIZE), "reference", resets_bt=resets_bt)
    found = everything(plan, draw(plan, SIZE, dtype), "cpu", resets_bt=resets_bt)
    check(found, exact, TOLERANCE[dtype])
    assert (found["d state"][resets_bt[:, 0]] == 0).all()


@pytest.mark.parametrize("step", [*dict.fromkeys(make(4).step for make in PLANS.values())])
def test_gradcheck_of_the_reference(step) -> None:
    """At the first step, the second, in the middle and at the last one; rows differ."""
    cell, size = CELLS[step], (2, 4, 3)
    plan = Plan(step, tuple(row_blocks(dict.fromkeys(cell.inputs, 3)).items()))
    leaves = draw(plan, size)
    resets_bt = torch.tensor([[True, False, True, False], [False, True, False, True]])

    def of_leaves(*given: Tensor) -> tuple[Tensor, Tensor]:
        return call(plan, dict(zip(leaves, given, strict=True)), "reference", resets_bt)

    assert torch.autograd.gradcheck(of_leaves, tuple(leaves.values()), atol=1e-6)


@SOME
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nothing_crosses_a_reset(name, backend) -> None:
    """Neither a number that is not finite nor a gradient; after it, the state does not matter."""
    plan, resets_bt = PLANS[name](5), mask([(0, 0), (1, 9)])
    leaves = draw(plan, SIZE, torch.float32)
    clean = call(plan, leaves, backend, resets_bt)[0].detach()
    poisoned = {n: leaf.detach().clone() for n, leaf in leaves.items()}
    poisoned["state"][:2] = torch.nan
    given = {n: leaf.requires_grad_() for n, leaf in poisoned.items()}
    y, _ = call(plan, given, backend, resets_bt)
    torch.testing.assert_close(y[0], clean[0], rtol=0, atol=0)
    torch.testing.assert_close(y[1, 9:], clean[1, 9:], rtol=0, atol=0)
    y = call(plan, leaves, backend, resets_bt)[0]
    dsource, dstate = torch.autograd.grad(
        y[0].sum() + y[1, 9:].sum(), [leaves["source"], leaves["state"]]
    )
    assert (dstate == 0).all()
    assert (dsource[1, :9] == 0).all()


@SOME
def test_resets_that_are_nowhere_change_nothing(name) -> None:
    """But for last bits: a compiler may join other products and sums."""
    plan = PLANS[name](21)
    leaves = draw(plan, (3, STEPS, 21))
    found = everything(plan, leaves, "cpu", resets_bt=mask([]))
    check(found, everything(plan, leaves, "cpu"), 1e-12)


@EVERY
def test_nothing_uninitialized_is_read_or_returned(name, monkeypatch) -> None:
    """With NaN in every fresh buffer, the workspace too, not a bit changes."""
    plan, resets_bt = PLANS[name](21), mask(RESETS["rows-differ"])
    leaves = draw(plan, (3, STEPS, 21), torch.float32)
    before = everything(plan, leaves, "cpu", resets_bt=resets_bt)
    for owner, word in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        make = getattr(owner, word)
        monkeypatch.setattr(owner, word, lambda *a, make=make, **k: make(*a, **k).fill_(torch.nan))
    identical(everything(plan, leaves, "cpu", resets_bt=resets_bt), before)


@SOME
def test_resets_are_read_where_they_lie(name) -> None:
    plan, resets_bt = PLANS[name](5), mask(RESETS["rows-differ"])
    leaves = draw(plan, SIZE)
    laid = resets_bt.t().contiguous().t()
    assert not laid.is_contiguous()
    identical(
        everything(plan, leaves, "cpu", resets_bt=laid),
        everything(plan, leaves, "cpu", resets_bt=resets_bt),
    )


@pytest.mark.parametrize("name", ["e34", "e59", "mingru"])
def test_segments_of_the_reference_equal_the_plain_loop(name, monkeypatch) -> None:
    plan, resets_bt = PLANS[name](5), mask([(0, 0), (0, 7), (1, 6), (2, 8)])
    leaves = draw(plan, SIZE)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        results.append(everything(plan, leaves, "reference", resets_bt=resets_bt))
    check(results[1], results[0], 1e-12)


@FORMS
@pytest.mark.parametrize("steps", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 130])
def test_parallel_and_sequential_forms_agree(step, steps) -> None:
    """With resets at the borders of the blocks and beside them."""
    generator = torch.Generator().manual_seed(5)
    resets_bt = torch.rand(3, steps, generator=generator) < 0.1
    resets_bt[0, :: BLOCK - 1] = True
    resets_bt[1, ::BLOCK] = True
    resets_bt[2] = False
    results = []
    for form in (step, step.removesuffix("_parallel")):
        plan = Plan(form, tuple(row_blocks(dict.fromkeys(CELLS[form].inputs, 5)).items()))
        leaves = draw(plan, (3, steps, 5))
        results.append(everything(plan, leaves, "reference", resets_bt=resets_bt))
    check(*results, 1e-9)


# ---- operators, and what is refused ----


@pytest.mark.parametrize("name", ["e59b", "e65", "mingru", "e74-tied-kq", "e74_ema_frobnorm"])
def test_opcheck(name) -> None:
    plan = PLANS[name](5)
    leaves, resets_bt = draw(plan, (3, 18, 5), torch.float32), mask([(0, 0), (1, 16)], 18)
    parameters = [leaves[p].expand(5) for p in CELLS[plan.step].parameters]
    arguments = (plan.text, "cpu", [leaves["source"]], parameters, leaves["state"], resets_bt)
    torch.library.opcheck(custom_op.CHANNEL.operator, arguments)
    y, last, kept = (tensor.detach() for tensor in custom_op.CHANNEL.operator(*arguments))
    sources, detached = [leaves["source"].detach()], [leaf.detach() for leaf in parameters]
    for dy, dlast in ((y, last), (None, last), (y, None)):
        given = (plan.text, "cpu", dy, dlast, sources, detached, kept, resets_bt)
        torch.library.opcheck(custom_op.CHANNEL.backward_operator, given)


@pytest.mark.parametrize("name", ["e59b", "e65"])
def test_an_operator_and_a_plain_call_give_the_same_bits(name) -> None:
    plan, resets_bt = PLANS[name](5), mask(RESETS["rows-differ"])
    leaves = draw(plan, SIZE, torch.float32)
    plain = everything(plan, leaves, "cpu", resets_bt=resets_bt)
    with torch.autocast("cpu", torch.bfloat16):  # a plain call would not be autocast
        identical(everything(plan, leaves, "cpu", resets_bt=resets_bt), plain)


WRONG = {
    "shape": (torch.zeros(3, 4, dtype=torch.bool), "shape [3, 4], expected [3, 5]"),
    "dtype": (torch.zeros(3, 5), "dtype float32, expected bool"),
    "device": (
        torch.zeros(3, 5, dtype=torch.bool, device="meta"),
        "on meta, expected on cpu (device of the input)",
    ),
    "kind": ([True], "list, expected a tensor [3, 5]"),
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("resets_bt", "words"), WRONG.values(), ids=WRONG)
def test_wrong_resets_are_refused(resets_bt, words, backend) -> None:
    plan = PLANS["e65"](4)
    with pytest.raises(ValueError, match=re.escape(f"resets of channel e65: {words}") + "$"):
        call(plan, draw(plan, (3, 5, 4)), backend, resets_bt)


@pytest.mark.parametrize("size", [(3, 0, 5), (0, 5, 5)], ids=["no-steps", "no-rows"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_without_a_step_there_is_nothing_to_reset(size, backend) -> None:
    plan = PLANS["e65"](5)
    leaves = draw(plan, size)
    _, last = call(plan, leaves, backend, torch.ones(size[:2], dtype=torch.bool))
    torch.testing.assert_close(last, leaves["state"], rtol=0, atol=0)
