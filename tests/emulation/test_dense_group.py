"""The group kernels agree with the reference, in whatever order blocks run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from elman.base.errors import UserError
from elman.kernels import stalls
from elman.ops.dense.cuda import groups
from elman.ops.dense.cuda.forms import GROUP_STATES
from elman.ops.dense.cuda.group_config import Machine, choose
from elman.ops.dense.recurrences import CELLS
from tests.emulation import dense_cluster, dense_group, emulator
from tests.emulation.test_dense_cluster import compare as compare_passes

STEPS = [s for s, cell in CELLS.items() if cell.per_channel and cell.states <= GROUP_STATES]


compare = partial(compare_passes, results=dense_group.results)


@pytest.fixture
def emulate(monkeypatch):
    """Run every launch in the emulator, with the configs that are given, on NaN."""
    for owner, make in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        original = getattr(owner, make)
        poisoned = lambda *a, original=original, **k: original(*a, **k).fill_(torch.nan)  # noqa: E731
        monkeypatch.setattr(owner, make, poisoned)

    def use(
        configs: dict[bool, dense_group.GroupConfig],
        seed: int = 1,
        multiprocessors: int = 132,
        library: emulator.Library = emulator.loaded,
    ) -> None:
        monkeypatch.setattr(groups, "CHOOSE", lambda *_: configs[_[-2]])
        monkeypatch.setattr(groups, "_machine", lambda _: Machine(multiprocessors))
        monkeypatch.setattr(groups, "LAUNCH", dense_group.launcher(library, seed))

    return use


def both(make) -> dict[bool, dense_group.GroupConfig]:
    """Return the configs of both passes."""
    return {back: make(back=back) for back in (False, True)}


@pytest.mark.parametrize("step", STEPS)
def test_every_step_agrees_with_the_reference(emulate, step) -> None:
    emulate(both(partial(dense_group.config, step, 64, 2, 3, 2)))
    compare(dense_cluster.case(step, 4, 5, 64))


@pytest.mark.parametrize("step", ["tanh", "lstm"])
def test_fragments_in_shared_memory_and_channels_that_are_none(emulate, step) -> None:
    emulate(both(partial(dense_group.config, step, 64, 2, 3, 2, kept=2)))
    compare(dense_cluster.case(step, 7, 5, 56))


@pytest.mark.parametrize("step", ["mix", "lstm"])
def test_more_rows_than_a_product_takes_at_once(emulate, step) -> None:
    emulate(both(partial(dense_group.config, step, 64, 4, 16, 2, kept=1)))
    compare(dense_cluster.case(step, 13, 4, 62))


def test_fewer_groups_than_the_batch_has_rows_for(emulate) -> None:
    """Several launches walk the rows: two groups of two blocks at a time, of three rows each."""
    emulate(both(partial(dense_group.config, "mix", 64, 2, 3, 2)), multiprocessors=5)
    compare(dense_cluster.case("mix", 14, 3, 64))


@pytest.mark.parametrize(
    ("step", "channels", "batch", "steps"),
    [("tanh", 64, 1, 1), ("tanh", 8, 3, 2), ("lstm", 72, 7, 3)],
)
def test_as_the_engine_chooses(emulate, step, channels, batch, steps) -> None:
    emulate(both(partial(choose, CELLS[step], channels, batch, Machine())))
    compare(dense_cluster.case(step, batch, steps, channels))


@pytest.mark.parametrize("step", ["tanh", "lstm"])
def test_the_order_of_threads_changes_no_bit(emulate, step) -> None:
    one, found = dense_cluster.case(step, 7, 6, 64), []
    for seed in (1, 1, 2, 3):
        emulate(both(partial(dense_group.config, step, 64, 4, 4, 2)), seed)
        results, gradients = dense_group.results(one)
        found.append([results.y_bti, results.last_sbi, results.memo_btmi, *gradients.inputs])
        found[-1] += [*gradients.recurrent, gradients.first_sbi]
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_gradients_that_nobody_asks_for(emulate) -> None:
    emulate(both(partial(dense_group.config, "mix", 64, 2, 3, 2)))
    one = dense_cluster.case("mix", 3, 4, 64)
    saved = one.saved(groups.forward(one.call))
    pulls = (None, torch.zeros_like(one.dy_bti))
    found, same = (groups.backward(saved._replace(dy_bti=pull)) for pull in pulls)
    assert all(map(torch.equal, found.inputs, same.inputs))
    assert torch.equal(found.first_sbi, same.first_sbi)


@pytest.mark.parametrize("step", STEPS)
def test_rows_begin_anew_where_they_are_reset(emulate, step) -> None:
    emulate(both(partial(dense_group.config, step, 64, 2, 8, 2, resets=True)))
    resets_bt = torch.rand(13, 6) < 0.3
    resets_bt[0], resets_bt[1], resets_bt[2, 0], resets_bt[3, 5] = True, False, True, True
    one = replace(dense_cluster.case(step, 13, 6, 62), resets_bt=resets_bt)
    compare(one)
    dfirst_sbi = dense_group.results(one)[1].first_sbi
    assert not dfirst_sbi[:, resets_bt[:, 0]].any()


# Where a block stops, and the steps that are right until then.
STALLS = {"from the first state on": ("rank != 1", 0), "later": ("(rank != 1 || turn < 4)", 3)}
RAISING = "if (thread_index() == 0) flags.raise(rank, turn);"


@pytest.mark.parametrize("where", STALLS)
def test_a_block_that_never_comes_is_an_error_and_no_hang(emulate, tmp_path, where) -> None:
    condition, right = STALLS[where]
    stalled = partial(
        emulator.planted,
        tmp_path,
        "cuda/dense/group.cuh",
        lambda text: text.replace(RAISING, RAISING.replace("== 0", f"== 0 && {condition}")),
    )
    configs = both(partial(dense_group.config, "tanh", 64, 4, 2, 2))
    one = dense_cluster.case("tanh", 4, 6, 64)
    emulate(configs)
    whole = groups.forward(one.call)
    emulate(configs, library=stalled)
    found = groups.forward(one.call)
    own = torch.arange(64) // 16 != 1  # its own channels may be a step ahead
    assert torch.equal(found.y_bti[:, :right], whole.y_bti[:, :right])
    assert found.y_bti[:, right:, own].isnan().all()
    assert found.last_sbi[:, :, own].isnan().all()
    with pytest.raises(UserError, match=r"^kernels.backend=cuda: a kernel on GPU 0 waited 8 s"):
        groups.forward(one.call)
    gradients = groups.backward(one.saved(whole)._replace(dlast_sbi=None))
    assert gradients.inputs[0][:, : 6 - max(right, 1) - 1, own].isnan().all()
    assert gradients.first_sbi[:, :, own].isnan().all()
    with pytest.raises(UserError, match="its results are NaN"):
        stalls.check()
    stalls.check()  # said once
