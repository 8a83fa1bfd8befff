"""The tape engine's cluster kernels agree with the reference, in whatever order words arrive."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.ops.tape import passes, reference
from elman.ops.tape.cuda import cluster, cluster_config, stepwise
from elman.ops.tape.cuda.cluster_config import ClusterConfig, choose
from elman.ops.tape.recurrences import CELLS
from tests.emulation import emulator, tape_cluster, tape_emulator
from tests.emulation.tape_cluster import Case

pytestmark = pytest.mark.compiler

WRITES = pytest.mark.parametrize("write", CELLS)
LIMIT = 1e-2  # relative L2: bf16 rounds states, written values and their gradients to 2^-9
# 64 channels, two blocks, four warps of which three walk a row each.
USUAL = (64, 2, 3, 1, (4, 2))


@pytest.fixture
def emulate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run launches in the emulator, with NaN wherever nothing was written."""
    original = Tensor.new_empty
    poisoned = lambda *a, **k: original(*a, **k).fill_(torch.nan)  # noqa: E731
    monkeypatch.setattr(Tensor, "new_empty", poisoned)

    def use(make: Callable[..., ClusterConfig | None], seed: int = 1) -> None:
        configs = {back: make(back=back) for back in (False, True)}
        monkeypatch.setattr(cluster, "CHOOSE", lambda *call: configs[call[-1]])
        monkeypatch.setattr(cluster, "LAUNCH", tape_cluster.launcher(seed=seed))

    return use


def of_reference(one: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients in fp64."""
    call = one.call
    read = (call.input_bti, call.matrix_pi, call.tape_bni, call.state_bi)
    leaves = [tensor.double().requires_grad_() for tensor in read]
    input_bti, matrix, tape, state = leaves
    width = state.shape[1]
    write_ii = matrix[width:] if len(matrix) > width else None
    given = (input_bti, matrix[:width], write_ii, tape, state)
    outputs = list(reference.dual_memory(*given, call.write))
    pulls = (one.dy_bti, one.dtape_bni, one.dstate_bi)
    given_pulls = [pull if pull is None else pull.double() for pull in pulls]
    reached = [n for n, pull in enumerate(given_pulls) if pull is not None]
    pulled = torch.autograd.grad(
        [outputs[n] for n in reached], leaves, [given_pulls[n] for n in reached]
    )
    return [out.detach() for out in outputs], list(pulled)


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    """Compare tensors by their norms."""
    for mine, its in zip(found, expected, strict=True):
        assert ((mine.double() - its).norm() / its.norm()).item() < LIMIT


def compare(one: Case) -> None:
    """Compare both passes with the reference."""
    outputs, gradients = of_reference(one)
    found, pulled = tape_cluster.results(one)
    check(list(found[:3]), outputs)
    check(list(pulled), gradients)


@WRITES
def test_every_write_agrees_with_the_reference(emulate, write: str) -> None:
    """Four rows in clusters of three; segments of three steps and of two."""
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    compare(tape_cluster.case(write, 4, 5, 3, 64))


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_any_number_of_steps(emulate, write: str, steps: int) -> None:
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    compare(tape_cluster.case(write, 1, steps, 3, 64))


@pytest.mark.parametrize(
    ("write", "slots"),
    [
        ("identity", 1),
        ("shared", 9),
        ("full", 64),
        *(pytest.param("full", slots, marks=pytest.mark.slow) for slots in (8, 17)),
    ],
)
def test_any_number_of_slots(emulate, write: str, slots: int) -> None:
    """Eight go at a time; a warp has 32 lanes."""
    emulate(partial(tape_cluster.config, write, slots, *USUAL))
    compare(tape_cluster.case(write, 2, 4, slots, 64))


@pytest.mark.parametrize("write", ["full", pytest.param("shared", marks=pytest.mark.slow)])
def test_two_warps_walk_a_row_and_fragments_lie_in_shared_memory(emulate, write: str) -> None:
    """Channels that are none, too."""
    emulate(partial(tape_cluster.config, write, 5, 64, 2, 1, 2, (4, 2), kept=2))
    compare(tape_cluster.case(write, 3, 6, 5, 56))


def test_more_channels_of_a_row_than_a_warp_has_pairs_of_lanes(emulate) -> None:
    emulate(partial(tape_cluster.config, "full", 3, 192, 2, 1, 1, (4, 2)))
    compare(tape_cluster.case("full", 1, 3, 3, 188))


@pytest.mark.parametrize(
    ("write", "channels", "slots", "batch"),
    [("full", 8, 2, 3), ("identity", 64, 8, 1), ("shared", 72, 3, 9)],
)
def test_as_the_engine_chooses(emulate, write: str, channels: int, slots: int, batch: int) -> None:
    emulate(partial(choose, CELLS[write], channels, slots, batch))
    compare(tape_cluster.case(write, batch, 4, slots, channels))


@WRITES
@pytest.mark.parametrize("reached", ["dy_bti", "dtape_bni", "dstate_bi"])
def test_a_gradient_may_reach_one_output_alone(emulate, write: str, reached: str) -> None:
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    nothing: dict[str, None] = dict.fromkeys({"dy_bti", "dtape_bni", "dstate_bi"} - {reached})
    compare(replace(tape_cluster.case(write, 4, 5, 3, 64), **nothing))


@WRITES
def test_whatever_the_order_the_bits_are_the_same(emulate, write: str) -> None:
    """Of threads, and of words that arrive."""
    one = tape_cluster.case(write, 4, 5, 3, 64)
    found: list[list[Tensor]] = []
    for seed in (1, 2, 3):
        emulate(partial(tape_cluster.config, write, 3, *USUAL), seed)
        both = tape_cluster.results(one)
        found.append([*both[0], *both[1]])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("write", "steps"),
    [("full", 7), ("identity", 3), pytest.param("shared", 10, marks=pytest.mark.slow)],
)
def test_a_round_that_reads_for_itself_gives_the_same_bits(emulate, write: str, steps: int) -> None:
    """Where a block has no room for one more tape."""
    one, found = tape_cluster.case(write, 4, steps, 3, 64), []
    for ahead in (True, False):
        emulate(partial(tape_cluster.config, write, 3, *USUAL, ahead=ahead))
        found.append(tape_cluster.results(one)[1])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_pass_reads_ahead_where_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where a tool compares both."""
    choices = [partial(choose, CELLS["full"], 512, n, 32, back=True) for n in (8, 64)]
    assert [make().ahead for make in choices] == [True, False]
    assert not choose(CELLS["full"], 512, 8, 32, back=False).ahead
    choose.cache_clear()
    monkeypatch.setattr(cluster_config, "AHEAD", False)
    assert not choices[0]().ahead
    choose.cache_clear()


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_any_distance_of_checkpoints_gives_the_same_bits(
    emulate, write: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tapes of a segment are those of the forward pass."""
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    one = tape_cluster.case(write, 2, 7, 3, 64)
    _, plain = tape_cluster.results(one)
    monkeypatch.setattr(passes, "interval", lambda of: steps)
    _, found = tape_cluster.results(one)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@WRITES
def test_without_gradients_the_numbers_are_the_same(emulate, write: str) -> None:
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    one = tape_cluster.case(write, 4, 5, 3, 64)
    kept, free = (cluster.forward(one.call._replace(keep=keep)) for keep in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(kept[:3], free[:3], strict=True))


@WRITES
def test_the_stepwise_form_goes_back_from_where_clusters_went(
    emulate, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms leave the same things for the backward pass."""
    emulate(partial(tape_cluster.config, write, 3, *USUAL))
    monkeypatch.setattr(stepwise, "STARTER", tape_emulator.starter)
    one = tape_cluster.case(write, 4, 5, 3, 64)
    saved = one.saved(cluster.forward(one.call))
    check(list(cluster.backward(saved)), [each.double() for each in stepwise.backward(saved)])


def test_a_tape_that_all_rows_share_may_be_expanded(emulate) -> None:
    """Layer E23 expands its initial tape over the batch."""
    emulate(partial(tape_cluster.config, "full", 3, *USUAL))
    one = tape_cluster.case("full", 4, 3, 3, 64)
    shared = one.call.tape_bni[:1].expand(4, 3, 64)
    compare(replace(one, call=one.call._replace(tape_bni=shared)))


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    """Same text, same sources: but for the headers that say what the machine answers."""
    config = tape_cluster.config("full", 3, *USUAL, back=False)
    compiled, emulated = (cluster.unit_text(config, h) for h in ((), (emulator.CLUSTER_HEADER,)))
    assert compiled.splitlines()[2:] == emulated.splitlines()[1:]
    engine = [path for path in included_sources(emulated) if path.match("cuda/tape/*.cuh")]
    assert len(engine) == 2
    assert not any("#if" in path.read_text() for path in engine)


@pytest.mark.parametrize(
    ("write", "channels", "back"),
    [
        ("full", 768, True),
        pytest.param("full", 768, False, marks=pytest.mark.slow),
        pytest.param("identity", 512, True, marks=pytest.mark.slow),
        pytest.param("shared", 768, True, marks=pytest.mark.slow),
    ],
)
def test_no_branch_parts_the_lanes_that_shuffle(
    tmp_path: Path, write: str, channels: int, back: bool
) -> None:
    """A shuffle in one arm of such a branch waits for the lanes of the other arm."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        pytest.skip("Triton brings the disassembler")
    tool = Path(found.origin).parent / "backends/nvidia/bin/nvdisasm"
    config = choose(CELLS[write], channels, 8, 32, back=back)
    assert config is not None
    unit = Unit(cluster.unit_text(config), f"tape {write}", "sm_90", fast=True)
    (code := tmp_path / "kernel.cubin").write_bytes(unit.cubin())
    said = subprocess.run([tool, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "SHFL" in said
    assert "WARPSYNC.COLLECTIVE" not in said
    assert {kernel.spilled for kernel in unit.resources().values()} == {0}
