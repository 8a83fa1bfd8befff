"""Resets of the matrix-state engine: a row's state is zero before the steps that a mask names.

Resets stand at the first step, the second, the last, on the boundary of a segment of four steps and
on either side of it; one row has none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.ops.matrix_state import op
from elman.ops.matrix_state.plan import Plan
from tests.ops.matrix_state.test_matrix_kernels import LAYERS, assert_equal, build
from tests.ops.matrix_state.test_matrix_steps import cases
from tests.ops.matrix_state.test_matrix_steps import draw as draw_step
from tests.ops.matrix_state.test_matrix_steps import leaves as leaves_of_step

STEPS = 10
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
