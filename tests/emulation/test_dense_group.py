"""The group kernels agree with the reference, in whatever order blocks run."""

from __future__ import annotations

from functools import partial

import pytest

from elman.ops.dense.cuda import groups
from elman.ops.dense.cuda.group_config import Machine, choose
from elman.ops.dense.recurrences import CELLS
from tests.emulation import dense_cluster, dense_group
from tests.emulation.test_dense_cluster import STEPS, error, of_reference


def compare(one: dense_cluster.Case) -> None:
    """Compare both passes with the reference."""
    (y, last), gradients = of_reference(one)
    results, found = dense_group.results(one)
    assert error(results.y_bti, y) < 6e-3
    assert error(results.last_sbi, last) < 6e-3
    for mine, its in zip(
        [*found.inputs, *found.recurrent, found.first_sbi], gradients, strict=True
    ):
        assert error(mine, its) < 1.5e-2


@pytest.fixture
def emulate(monkeypatch):
    """Run every launch in the emulator, with the configs that are given."""

    def use(configs: dict[bool, dense_group.GroupConfig], seed: int = 1) -> None:
        monkeypatch.setattr(groups, "CHOOSE", lambda *_: configs[_[-1]])
        monkeypatch.setattr(groups, "LAUNCH", dense_group.launcher(seed=seed))

    return use


@pytest.mark.parametrize("step", STEPS)
def test_every_step_agrees_with_the_reference(emulate, step) -> None:
    make = partial(dense_group.config, step, 64, 2, 3, 2)
    emulate({back: make(back=back) for back in (False, True)})
    compare(dense_cluster.case(step, 4, 5, 64))
