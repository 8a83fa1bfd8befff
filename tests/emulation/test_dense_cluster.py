"""The cluster kernels agree with the reference, in whatever order blocks run and words arrive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from elman.ops.dense import reference
from elman.ops.dense.cuda import cluster
from elman.ops.dense.cuda.cluster_config import choose
from elman.ops.dense.recurrences import CELLS
from elman.ops.dense.results import Gradients, Results
from tests.emulation import dense_cluster

STEPS = [name for name, cell in CELLS.items() if not (cell.norm or cell.extra or cell.scale)]


@dataclass
class Case:
    """A call: bf16 sequences and matrix, fp32 state, and gradients of what it returns."""

    step: str
    inputs: list[Tensor]
    matrix_pi: Tensor
    first_sbi: Tensor
    dy_bti: Tensor
    dlast_sbi: Tensor


def case(step: str, batch: int, steps: int, channels: int) -> Case:
    """Return random tensors."""
    cell = CELLS[step]
    widths = [cell.blocks * channels, *[channels] * cell.others]
    state = (cell.states, batch, channels)
    return Case(
        step,
        [torch.randn(batch, steps, width).bfloat16() for width in widths],
        (torch.randn(cell.blocks * channels, channels) / channels**0.5).bfloat16(),
        torch.randn(state),
        torch.randn(batch, steps, channels).bfloat16(),
        torch.randn(state),
    )


def of_reference(one: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients in fp64."""
    tensors = [*one.inputs, one.matrix_pi, one.first_sbi]
    *inputs, matrix, first = (tensor.double().requires_grad_() for tensor in tensors)
    y, last = reference.dense_recurrence(one.step, inputs, [matrix], first.unbind(0), [])
    outputs = [y, torch.stack(tuple(last))]
    given = [one.dy_bti.double(), one.dlast_sbi.double()]
    return outputs, list(torch.autograd.grad(outputs, [*inputs, matrix, first], given))


def of_kernel(one: Case) -> tuple[Results, Gradients]:
    """Return what both passes leave."""
    call = (one.step, one.inputs, [one.matrix_pi], [], one.first_sbi)
    results = cluster.forward(*call, True)
    back = (one.step, one.dy_bti, one.dlast_sbi, [one.matrix_pi], [], one.first_sbi, results)
    return results, cluster.backward(*back)


def error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error, by norms."""
    return ((found.double() - expected).norm() / expected.norm()).item()


def compare(one: Case) -> None:
    """Compare both passes with the reference."""
    (y, last), gradients = of_reference(one)
    results, found = of_kernel(one)
    assert error(results.y_bti, y) < 6e-3
    assert error(results.last_sbi, last) < 6e-3
    for mine, its in zip(
        [*found.inputs, *found.recurrent, found.first_sbi], gradients, strict=True
    ):
        assert error(mine, its) < 1.5e-2


@pytest.fixture
def emulate(monkeypatch):
    """Run every launch in the emulator, with the configs that are given."""

    def use(configs: dict[bool, dense_cluster.ClusterConfig], seed: int = 1) -> None:
        monkeypatch.setattr(cluster, "CHOOSE", lambda *_: configs[_[-1]])
        monkeypatch.setattr(cluster, "LAUNCH", dense_cluster.launcher(seed=seed))

    return use


@pytest.mark.parametrize("step", STEPS)
def test_every_step_agrees_with_the_reference(emulate, step) -> None:
    make = partial(dense_cluster.config, step, 64, 2, 3, (2, 1))
    emulate({back: make(back=back) for back in (False, True)})
    compare(case(step, 4, 5, 64))


@pytest.mark.parametrize("step", ["tanh", "lstm"])
def test_fragments_in_shared_memory_and_channels_that_are_none(emulate, step) -> None:
    make = partial(dense_cluster.config, step, 64, 2, 3, (2, 1), kept=2)
    emulate({back: make(back=back) for back in (False, True)})
    compare(case(step, 7, 5, 56))


@pytest.mark.parametrize(
    ("step", "channels", "batch", "steps"),
    [("tanh", 64, 1, 1), ("tanh", 8, 3, 2), ("lstm", 72, 7, 3)],
)
def test_as_the_engine_chooses(emulate, step, channels, batch, steps) -> None:
    emulate({back: choose(CELLS[step], channels, batch, back=back) for back in (False, True)})
    compare(case(step, batch, steps, channels))
