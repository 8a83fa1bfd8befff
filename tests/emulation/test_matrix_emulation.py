"""The matrix-state CUDA kernels, run on a CPU from their own sources, against the fp64 reference.

The layers are those that the CPU engine is checked with: between them they have every cell, map,
epilogue and tie. Each runs with a tile config of its own.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.kernels.sources import included_sources
from elman.ops.matrix_state import op, reference
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import H200, choose
from elman.ops.matrix_state.custom_op import KERNELS, Kernels
from elman.ops.matrix_state.plan import Plan
from tests.emulation import emulator
from tests.ops.matrix_state.test_matrix_kernels import (
    LAYERS,
    assert_equal,
    build,
    draw,
    everything,
    right,
)

pytestmark = pytest.mark.compiler

# Lanes to a row, rows of a lane and warps of a block, where they are not those that the engine
# would choose; most have producer warps.
TILE_CONFIGS: dict[str, dict[str, Any]] = {
    "e14-rectangle": {"lanes": 1, "warps": 1, "producers": False},
    "e70-linear-n9": {"lanes": 2, "warps": 1, "scratch": True},
    "e71-n20": {"lanes": 4, "tall": 2, "warps": 2, "forward_steps": 5},
    "e72-n7": {"lanes": 8, "tall": 2, "warps": 1, "producers": False},
    "e73-row-n12": {"lanes": 8, "tall": 3, "warps": 1},
    "e73-full-n28": {"lanes": 8, "tall": 4, "warps": 2},
    "e74-state-n24": {"lanes": 4, "tall": 3, "warps": 1},
    "e74-ntm-n18": {"lanes": 16, "tall": 3, "warps": 2},
    "e74-ema-tied-n11": {"lanes": 2, "warps": 1},
    "e75-n32": {"lanes": 4, "tall": 2, "warps": 2, "forward_steps": 8},
    "e88-n16": {"lanes": 4, "tall": 2, "warps": 1, "forward_steps": 6, "producers": False},
    "e88-everything": {"lanes": 1, "tall": 2, "warps": 1},
}
TOLERANCE = {torch.bfloat16: 6e-3, torch.float32: 2e-5}


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what is not initialised with NaN: an output that is not written is then seen."""
    emulator.poison(monkeypatch.setattr)


# Their cells run in other layers, too.
REPEATED = ("e70-linear-n9", "e72-inverse-n1", "e74-lowrank-n13", "e75-post-n3", "e88-n16")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[SLOW] * (name in REPEATED)) for name in LAYERS]
)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name, monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(**TILE_CONFIGS.get(name, {})))
    layer = build(LAYERS[name], torch.float64)
    # Two whole segments and a rest.
    x, state = draw(layer, (2, 10), first=True)
    found = everything(layer, x, state)
    assert_equal(found, right(LAYERS[name], torch.float64, x, state, "both"), 1e-11)


@pytest.mark.parametrize("reached", ["output", "last"])
@pytest.mark.parametrize("steps", [1, 4], ids=["one-step", "one-segment"])
@pytest.mark.parametrize("name", ["e88-n16", "e75-n32"], ids=["alone", "producers"])
def test_short_sequences_without_a_first_state(name, steps, reached, monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(**TILE_CONFIGS[name]))
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, (1, steps), first=False)
    found = everything(layer, x, state, reached)
    assert_equal(found, right(LAYERS[name], torch.float64, x, state, reached), 1e-11)


# As the engine runs them for so many heads: with producer warps and without, and checkpoints
# within a segment of the forward pass.
CHOSEN = (
    ("e70-n16", 512),
    ("e73-full-n28", 512),
    ("e74-ema-tied-n11", 1024),
    ("e74-state-n24", 1024),
    ("e88-everything", 1024),
    ("e88-n16", 512),
    ("e74-state-n24", 1500),
    ("e88-n16", 1024),
)
WHOLE = ("e88-n16", 512)
LENGTHS = [(case, 71) for case in CHOSEN] + [(WHOLE, steps) for steps in (1, 17, 33)]


@pytest.mark.parametrize(
    ("case", "steps"),
    [pytest.param(case, steps, id=f"{case[0]}-{case[1]}-{steps}") for case, steps in LENGTHS],
)
def test_the_tile_configs_that_the_engine_chooses(case, steps, monkeypatch) -> None:
    name, heads = case
    monkeypatch.setitem(KERNELS, "cpu", emulator.engine(heads))
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, (1, steps), first=True)
    found = everything(layer, x, state)
    assert_equal(found, right(LAYERS[name], torch.float64, x, state, "both"), 1e-11)


def test_those_tile_configs_have_every_kind_of_segment() -> None:
    kinds = set()
    for name, heads in CHOSEN:
        plan = build(LAYERS[name], torch.float32).plan
        forward, backward = (
            emulator.chosen_by_engine(plan, heads, backward=backward) for backward in (False, True)
        )
        kinds.add((forward.producers, forward.steps % backward.steps == 0))
    assert kinds == set(itertools.product([False, True], repeat=2))


def test_what_the_engine_chooses_with_narrow_numbers(monkeypatch) -> None:
    name, heads = WHOLE
    monkeypatch.setitem(KERNELS, "cuda", emulator.engine(heads))
    plan = build(LAYERS[name], torch.float32).plan
    leaves = leaves_of(plan, torch.bfloat16, offset=1, steps=71)
    wanted = results(plan, leaves, True)
    assert_equal(results(plan, leaves, False), wanted, TOLERANCE[torch.bfloat16])


def leaves_of(
    plan: Plan, dtype: torch.dtype, offset: int = 0, steps: int = 10
) -> dict[str, Tensor]:
    """Return random arguments for a plan: sources (cut from wider ones), parameters, a state."""
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    ends: dict[int, int] = {}
    for role, place in plan.roles:
        end = place.start + plan.heads * plan.width(role)
        ends[place.source] = max(end, ends.get(place.source, 0))
    leaves = {
        f"source {n}": normal(2, steps, offset + end + -end % 8).to(dtype)[..., offset:][..., :end]
        for n, end in sorted(ends.items())
    }
    leaves |= {n: 0.5 * normal(*plan.parameter_shape(n)) for n in plan.parameter_names}
    leaves["first"] = 0.5 * normal(2, plan.heads, plan.rows, plan.columns)
    return {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}


def results(plan: Plan, leaves: dict[str, Tensor], wide: bool) -> dict[str, Tensor]:
    """Return outputs and gradients: of the kernels, or of the fp64 reference."""
    narrow = leaves["source 0"].dtype
    if wide:
        leaves = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    sources = [leaf for name, leaf in leaves.items() if name.startswith("source")]
    parameters = {name: leaves[name] for name in plan.parameter_names}
    if wide:
        out, last = reference.run(plan, sources, parameters, leaves["first"])
    else:
        out, last = op.run(plan, sources, parameters, leaves["first"], backend="cuda")
    generator = torch.Generator().manual_seed(12)
    pulls = [torch.randn(t.shape, generator=generator).to(narrow).to(t.dtype) for t in (out, last)]
    gradients = torch.autograd.grad([out, last], list(leaves.values()), pulls)
    found = {"out": out.detach(), "last": last.detach()}
    return found | dict(zip(leaves, gradients, strict=True))


# Each of the choices at least once; the rest of the product is slow.
NARROW = {
    ("e75-n32", torch.bfloat16, 0),
    ("e88-n16", torch.bfloat16, 1),
    ("e88-everything", torch.bfloat16, 0),
    ("e88-n16", torch.float32, 0),
    ("e75-n32", torch.float32, 1),
}
PRODUCT = itertools.product(["e75-n32", "e88-n16", "e88-everything"], TOLERANCE, [0, 1])


@pytest.mark.parametrize(
    ("name", "dtype", "offset"),
    [pytest.param(*case, marks=[SLOW] * (case not in NARROW)) for case in PRODUCT],
)
def test_narrow_numbers(name, dtype, offset, monkeypatch) -> None:
    """bf16 in and out with states kept in fp16, and fp32; also from slices at odd places."""
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(**TILE_CONFIGS[name]))
    plan = build(LAYERS[name], torch.float32).plan
    leaves = leaves_of(plan, dtype, offset)
    assert_equal(results(plan, leaves, False), results(plan, leaves, True), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_warp_whose_rows_are_no_whole_vectors(dtype, monkeypatch) -> None:
    """Six rows, where four numbers are read at once; the second row tile of twelve has four."""
    tile_config = {"lanes": 16, "tall": 3, "warps": 2, "forward_steps": 5}
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(**tile_config))
    plan = build(LAYERS["e88-n16"], torch.float32).plan
    leaves = leaves_of(plan, dtype)
    assert_equal(results(plan, leaves, False), results(plan, leaves, True), TOLERANCE[dtype])


def test_the_order_of_threads_changes_nothing(monkeypatch) -> None:
    plan = build(LAYERS["e75-n32"], torch.float32).plan
    leaves = leaves_of(plan, torch.bfloat16)
    found = []
    for seed in (1, 2, 3):
        monkeypatch.setitem(KERNELS, "cuda", emulator.backend(4, 4, seed=seed))
        found.append(results(plan, leaves, False))
    assert_equal(found[1], found[0], 0.0)
    assert_equal(found[2], found[0], 0.0)


def test_row_tiles_of_a_head_give_what_one_block_gives(monkeypatch) -> None:
    plan = build(LAYERS["e75-n32"], torch.float32).plan
    leaves = leaves_of(plan, torch.float32)
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(4, 4))
    whole = results(plan, leaves, False)
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(4, 1, producers=False))
    assert_equal(results(plan, leaves, False), whole, 1e-6)


def test_emulation_and_cpu_engine_agree(monkeypatch) -> None:
    layer = build(LAYERS["e88-n16"], torch.float64)
    x, state = draw(layer, (2, 10), first=True)
    engine = everything(layer, x, state)
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(**TILE_CONFIGS["e88-n16"]))
    assert_equal(everything(layer, x, state), engine, 1e-12)


def test_a_nan_reaches_output_state_and_gradients(monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(**TILE_CONFIGS["e88-n16"]))
    plan = build(LAYERS["e88-n16"], torch.float32).plan
    leaves = leaves_of(plan, torch.bfloat16)
    with torch.no_grad():
        leaves["source 0"][0, 5, 3] = torch.nan
    found = results(plan, leaves, False)
    assert found["out"][0, 5:, 0].isnan().any()
    assert found["source 0"][0].isnan().any()
    for name in ("out", "last", "source 0"):
        assert found[name][1].isfinite().all()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_what_is_emulated_is_what_nvrtc_compiles(backward) -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    plan = build(LAYERS["e88-n16"], torch.float32).plan
    chosen = choose(plan, kernels.types(plan, torch.bfloat16), 3, H200)
    compiled = kernels.unit_text(chosen, backward)
    emulated = kernels.unit_text(chosen, backward, emulator.HEADER)
    assert emulated == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    sources = [
        {path for path in included_sources(text) if path.parent.name != "emulation"}
        for text in (compiled, emulated)
    ]
    assert {path.name for path in sources[0] - sources[1]} == {"device.cuh"}
    assert sources[1] <= sources[0]
    # Nothing in them asks which machine it is.
    for path in sources[1]:
        if path.parent.name == "cuda":
            assert "#if" not in path.read_text().replace("#pragma", ""), path


def test_the_backend_is_found_by_name() -> None:
    assert isinstance(KERNELS["cuda"], Kernels)
