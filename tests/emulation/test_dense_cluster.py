"""The cluster kernels agree with the reference, in whatever order blocks run and words arrive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from elman.ops.dense import reference
from elman.ops.dense.cuda import cluster
from elman.ops.dense.cuda.cluster_config import choose
from elman.ops.dense.passes import Gradients, Results
from elman.ops.dense.recurrences import CELLS
from tests.emulation import dense_cluster


def of_reference(one: dense_cluster.Case) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients in fp64."""
    tensors = [*one.inputs, one.matrix_pi, *one.parameters, one.first_sbi]
    leaves = [tensor.double().requires_grad_() for tensor in tensors]
    n = len(one.inputs)
    inputs, matrix, own, first = leaves[:n], leaves[n], leaves[n + 1 : -1], leaves[-1]
    given = (inputs, [matrix], first.unbind(0), own, one.resets_bt)
    y, last = reference.dense_recurrence(one.step, *given)
    if one.step == "slstm":
        # What c exp(m) and n exp(m) give. A gradient beyond that jumps between the two arguments of
        # a maximum, which differ by less than bf16 tells here and there.
        one.dlast_sbi[3] = (last[1] * one.dlast_sbi[1] + last[2] * one.dlast_sbi[2]).float()
    outputs = [y, torch.stack(tuple(last))]
    given = [one.dy_bti.double(), one.dlast_sbi.double()]
    return outputs, list(torch.autograd.grad(outputs, leaves, given))


def error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error, by norms."""
    return ((found.double() - expected).norm() / expected.norm()).item()


def compare(
    one: dense_cluster.Case,
    results: Callable[[dense_cluster.Case], tuple[Results, Gradients]] = dense_cluster.results,
) -> None:
    """Compare both passes with the reference."""
    (y, last), gradients = of_reference(one)
    left, found = results(one)
    assert error(left.y_bti, y) < 6e-3
    assert error(left.last_sbi, last) < 6e-3
    mine = [*found.inputs, *found.recurrent, *found.parameters, found.first_sbi]
    for number, (one_of_mine, its) in enumerate(zip(mine, gradients, strict=True)):
        size = its.norm()
        if its.numel() == 1:  # a sum of terms that may cancel; they are as large as dpre
            size = torch.maximum(size, gradients[0].norm())
        assert (one_of_mine.double() - its).norm() < 1.5e-2 * size, number


@pytest.fixture
def emulate(monkeypatch):
    """Run every launch in the emulator, with the configs given; fill new tensors with NaN."""
    for owner, name in ((Tensor, "new_empty"), (torch, "empty_like")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, make=make, **k: make(*a, **k).fill_(torch.nan))

    def use(configs: dict[bool, dense_cluster.ClusterConfig], seed: int = 1) -> None:
        monkeypatch.setattr(cluster, "CHOOSE", lambda *_: configs[_[-1]])
        monkeypatch.setattr(cluster, "LAUNCH", dense_cluster.launcher(seed=seed))

    return use


@pytest.mark.parametrize("step", CELLS)
def test_every_step_agrees_with_the_reference(emulate, step) -> None:
    make = partial(dense_cluster.config, step, 64, 2, 3, (2, 1))
    emulate({back: make(back=back) for back in (False, True)})
    compare(dense_cluster.case(step, 4, 5, 64))


@pytest.mark.parametrize("step", ["tanh", "lstm", "gru"])
def test_fragments_in_shared_memory_and_channels_that_are_none(emulate, step) -> None:
    make = partial(dense_cluster.config, step, 64, 2, 3, (2, 1), kept=2)
    emulate({back: make(back=back) for back in (False, True)})
    compare(dense_cluster.case(step, 7, 5, 56))


@pytest.mark.parametrize(
    ("step", "channels", "batch", "steps"),
    [
        ("tanh", 64, 1, 1),
        ("tanh", 8, 3, 2),
        ("lstm", 72, 7, 3),
        ("gru", 24, 3, 2),
        ("gru", 72, 1, 1),
        ("gru_reset_after", 72, 5, 1),
        ("normalized_scalar", 8, 3, 1),
        ("normalized", 72, 5, 2),
    ],
)
def test_as_the_engine_chooses(emulate, step, channels, batch, steps) -> None:
    emulate({back: choose(CELLS[step], channels, batch, back=back) for back in (False, True)})
    compare(dense_cluster.case(step, batch, steps, channels))


# Three heads, an odd number of clusters for each, rows that are none, channels that are none.
@pytest.mark.parametrize("step", ["tanh", "lstm", "slstm", "two_gates"])
@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
def test_every_head_has_clusters_of_its_own(emulate, step, resets) -> None:
    more = {"kept": 2, "resets": resets, "heads": 3}
    make = partial(dense_cluster.config, step, 64, 2, 3, (2, 1), **more)
    emulate({back: make(back=back) for back in (False, True)})
    compare(dense_cluster.case(step, 7, 5, 3 * 56, resets=resets, heads=3))


@pytest.mark.parametrize(("own", "batch", "steps"), [(8, 1, 1), (72, 5, 2)])
def test_heads_as_the_engine_chooses(emulate, own, batch, steps) -> None:
    cell = CELLS["slstm"]
    emulate({back: choose(cell, own, batch, back=back, heads=4) for back in (False, True)})
    compare(dense_cluster.case("slstm", batch, steps, 4 * own, heads=4))


def test_an_empty_memory_is_left_and_entered_as_the_reference_does(emulate) -> None:
    make = partial(dense_cluster.config, "slstm", 64, 2, 3, (2, 1), heads=2)
    emulate({back: make(back=back) for back in (False, True)})
    one = dense_cluster.case("slstm", 4, 5, 128, heads=2)
    one.first_sbi.zero_()
    compare(one)


def test_where_little_is_kept_gradients_do_not_cancel_to_the_error_of_bf16(emulate) -> None:
    make = partial(dense_cluster.config, "slstm", 64, 2, 3, (2, 1), heads=2)
    emulate({back: make(back=back) for back in (False, True)})
    one = dense_cluster.case("slstm", 4, 1, 128, heads=2)
    one.first_sbi[3] -= 5  # the step forgets nearly all, so z is nearly c' / n'
    one.dlast_sbi.zero_()
    _, (dpre_bti, *_) = of_reference(one)
    found = dense_cluster.results(one)[1].inputs[0]
    wanted = dpre_bti[:, 0].unflatten(-1, (2, 4, -1))  # z o i f of each head
    mine = found[:, 0].unflatten(-1, (2, 4, -1))
    for block in (2, 3):
        assert error(mine[..., block, :], wanted[..., block, :]) < 1.5e-2


# Several rows of a thread, four blocks, channels that are none, and a cluster that is not full.
@pytest.mark.parametrize(
    "step", ["tanh", "lstm", "mix", "gru", "gru_reset_after", "normalized_scalar"]
)
def test_rows_begin_anew(emulate, step) -> None:
    make = partial(dense_cluster.config, step, 128, 4, 5, (2, 1), kept=2, resets=True)
    configs = {back: make(back=back) for back in (False, True)}
    emulate(configs)
    one = dense_cluster.case(step, 7, 6, 120, resets=True)
    compare(one)
    # What stands before a reset may be anything.
    one.first_sbi[:, -1] = torch.nan
    found, gradients = dense_cluster.results(one)
    assert found.y_bti.isfinite().all()
    assert (gradients.first_sbi[:, -1] == 0).all()
    emulate(configs, seed=2)
    again, again_back = dense_cluster.results(one)
    assert torch.equal(again.y_bti, found.y_bti)
    for mine, its in zip(again_back.inputs, gradients.inputs, strict=True):
        assert torch.equal(mine, its)
