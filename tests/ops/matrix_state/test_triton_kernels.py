"""The matrix-state engine's Triton kernels, run by Triton's interpreter on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.kernels import triton_version
from elman.models.cells import registry
from elman.ops.matrix_state import op
from elman.ops.matrix_state.stacked import E70, stacked_plan
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.tiles import Tile, tile_of
from tests.ops.matrix_state.triton_cases import (
    BF16,
    CASES,
    FP32,
    STEPS,
    TOLERANCE,
    drawn,
    everything,
    plan_of,
    plant,
    poisoned,
    quicken,
    right,
    tied,
    use_tiles,
    wrong,
)

triton = pytest.importorskip("triton")
MODULES = ("maths", "cells", "places", "inputs", "forward", "backward_steps", "backward")
MODULES += ("backward_overlapped", "around")
CELLS = ("e70", "e71", "e72", "e73", "e73cp", "e88", "m2rnn")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)
    monkeypatch.setattr(launch, "_SHARE_BLOCK", 16)  # several turns, and several programs
    monkeypatch.setattr(launch, "_SHARE_WIDTH", 8)
    use_tiles(monkeypatch)
    yield
    launch._tile.cache_clear()


def test_the_interpreter_runs_here() -> None:
    assert triton_version.interpreted()
    assert triton_version.triton_problem() is None


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name: str) -> None:
    plan = plan_of(name)
    # Two segments and a rest of one step; without a first state, where nothing else is special.
    given = drawn(plan, 1 if plan.heads > 1 else 2, 5, FP32, first=name != "e73-row-n16")
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("name", ["e72-n24", "e88-everything"])
def test_several_groups_of_a_segment_and_a_rest(
    name: str, overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiles(monkeypatch, steps=6, overlapped=overlapped)
    plan = plan_of(name)
    given = drawn(plan, 1, 11, FP32, first=True)
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


@pytest.mark.parametrize("name", ["e70-n16", "e88-everything"])
def test_narrow_sequences_and_one_step(name: str) -> None:
    plan = plan_of(name)
    given = drawn(plan, 1, 4, BF16, first=True)
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[BF16])
    given = drawn(plan, 1, 1, FP32, first=True)
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


@pytest.mark.parametrize("reached", ["out", "last"])
def test_gradients_of_one_output_alone(reached: str) -> None:
    plan = plan_of("e71-n16")
    given = drawn(plan, 1, 3, FP32, first=True)
    found = everything(plan, given, "triton", reached=reached)
    assert not wrong(found, right(plan, given, reached=reached), TOLERANCE[FP32])


def test_row_tiles_of_a_head_and_roles_on_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, rows=8)
    for plan in (plan_of("e72-n24"), tied(plan_of("e88-n16")), plan_of("e88-everything")):
        given = drawn(plan, 2 if plan.rows == 24 else 1, 3, FP32, first=True)
        assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


@pytest.mark.parametrize("name", ["e71-n16", "e73cp-column-n20", "e88-read"])
def test_fewer_rows_of_a_tile_than_steps_of_a_group(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiles(monkeypatch, rows=4, steps=8, group=8)
    plan = plan_of(name)
    given = drawn(plan, 1, 10, FP32, first=True)
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


FOLDED = ("e70-linear-n20", "e72-n24", "e73-column-n16", "e73cp-column-n20", "e88-everything")


@pytest.mark.parametrize("name", FOLDED)
def test_columns_folded_into_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, rows=8, folds=4)
    plan = plan_of(name)
    given = drawn(plan, 1, 5, FP32, first=True)
    assert not wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])


def test_reads_are_kept_with_few_heads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {}
    for name in ("e88-n16", "e88-many-heads", "e70-n16"):
        plan = plan_of(name)
        given = drawn(plan, 1, 3, FP32, first=False)
        *_, reads_bthv = torch.ops.elman.matrix_state(
            plan.text,
            "triton",
            True,
            [value for key, value in given.items() if key.startswith("source")],
            [given[key] for key in plan.parameter_names],
            None,
            None,
        )
        kept[name] = tuple(reads_bthv.shape)
    assert kept == {"e88-n16": (1, 3, 3, 16), "e88-many-heads": (0,), "e70-n16": (0,)}


def test_a_reset_lets_nothing_pass() -> None:
    plan = plan_of("e88-n16")
    given = drawn(plan, 2, 4, FP32, first=True)
    resets_bt = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]]).bool()
    given["first"][1] = torch.nan
    found = everything(plan, given, "triton", resets_bt)
    given["first"][1] = 0.0
    assert not wrong(found, right(plan, given, resets_bt), TOLERANCE[FP32])


def test_nothing_uninitialized_is_read_or_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("e73cp-column-n20")
    given = drawn(plan, 1, 3, FP32, first=True)
    wanted = everything(plan, given, "triton")
    poisoned(monkeypatch)
    assert not wrong(everything(plan, given, "triton"), wanted, 0.0)


def test_tanh_saturates_and_large_numbers_stay_finite() -> None:
    plan = stacked_plan("decayed", 1, 16, 16, **E70)
    given = drawn(plan, 1, 3, FP32, first=False)
    given["source 0"] *= 1e3
    out_bthv, last_bhvn = op.run(
        plan, [given["source 0"]], {"decay": given["decay"]}, None, backend="triton"
    )
    assert out_bthv.isfinite().all()
    assert (last_bhvn.abs() <= 1).all()
    given["source 0"][0, 0, 0] = torch.nan
    found, _ = op.run(plan, [given["source 0"]], {"decay": given["decay"]}, None, backend="triton")
    assert found.isnan().any()


def test_the_operators_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("e71-n16")
    given = drawn(plan, 1, 3, FP32, first=True)
    tensors = [tensor.requires_grad_() for tensor in given.values()]
    sources, parameters, first = tensors[:1], tensors[1:-1], tensors[-1]
    torch.library.opcheck(
        torch.ops.elman.matrix_state.default,
        (plan.text, "triton", True, sources, parameters, first, None),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("E70", {"n_state": 16, "projection_norm": "spectral"}),
        ("E71", {"n_state": 16}),
        ("E72", {"n_state": 16, "variant": "inverse"}),
        ("E73", {"n_state": 20, "variant": "full"}),
        ("E73cp", {"n_state": 16, "variant": "row"}),
        ("E88", {"n_state": 12, "n_heads": 3, "tie_kv": True, "use_conv": True, "use_gate": True}),
    ],
)
def test_a_layer_of_every_cell(name: str, options: dict[str, Any]) -> None:
    found = _layer_results(name, options, "triton", FP32)
    wanted = _layer_results(name, options, "reference", torch.float64)
    assert not wrong(found, wanted, TOLERANCE[FP32])


def _layer_results(
    name: str, options: dict[str, Any], backend: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    torch.manual_seed(3)
    layer = getattr(elman.layers, name)(8, **options, backend=backend).to(dtype)
    x_btd = torch.randn(1, 5, 8).to(dtype).requires_grad_()
    y_btd, state = layer(x_btd)
    loss = y_btd.square().sum() + state["S"].sum()
    trained = {n: p for n, p in layer.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, [x_btd, *trained.values()])
    named = zip(["x", *trained], gradients, strict=True)
    outputs = {"y": y_btd.detach(), "S": state["S"].detach()}
    return outputs | {f"d {key}": gradient for key, gradient in named}


def smoke_test_of_seed_001(name: str, device: str, backend: str) -> None:
    """Run what seed 001 asks for: a layer of dim 512 and n_state 64 in bf16, forward and back."""
    model = getattr(elman.layers, name)(dim=512, n_state=64, backend=backend)
    model = model.to(device).bfloat16()
    x = torch.randn(2, 32, 512, device=device, dtype=torch.bfloat16)
    out, _ = model(x)
    out.sum().backward()
    assert out.isfinite().all()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["E70", "E73", "E71", "E72"])
def test_the_smoke_test_of_seed_001(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, rows=64, steps=16)
    smoke_test_of_seed_001(name, "cpu", "triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, without the interpreter")
@pytest.mark.parametrize("name", ["E70", "E73", "E71", "E72"])
def test_the_smoke_test_of_seed_001_on_a_gpu(name: str) -> None:
    code = f"from {__name__} import smoke_test_of_seed_001 as t; t({name!r}, 'cuda', 'triton')"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=environment)


# ---- what is refused ----


def test_what_the_kernels_do_not_have_is_refused_in_one_line() -> None:
    assert launch.plan_problem(stacked_plan("row_gated_delta", 1, 8, 8)) == (
        "the recurrence row_gated_delta has no step in Triton"
    )
    plan = stacked_plan("decayed", 1, 8, 300)
    with pytest.raises(
        UserError, match=r"^kernels\.backend=triton: a state of 300 columns is wider"
    ):
        op.run(plan, [torch.zeros(1, 2, 700)], {}, None, backend="triton")
    plan = stacked_plan("decayed", 1, 8, 8)
    with pytest.raises(UserError, match=r"computes on bfloat16 and float32, not on torch\.float64"):
        op.run(plan, [torch.zeros(1, 2, 24).double()], {}, None, backend="triton")


def test_a_missing_or_old_triton_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_version, "triton_version", lambda: "3.5.1")
    assert triton_version.triton_problem() == (
        "triton 3.5.1 is older than 3.6.0; pip install --upgrade 'triton>=3.6.0'"
    )
    monkeypatch.setattr(triton_version, "find_spec", lambda name: None)
    assert triton_version.triton_problem() == (
        "triton is not installed; pip install 'triton>=3.6.0'"
    )


def test_every_cell_that_says_so_has_a_step_and_no_other_cell_does() -> None:
    cells = registry.cells().values()
    assert {c.name for c in cells if "triton" in c.backends and c.package is None} == set(CELLS)


def test_tiles_depend_on_the_state_alone() -> None:
    for n in (5, 16, 24, 48, 64, 72, 96, 100, 128, 200, 256):
        for backward in (False, True):
            for heads in (1, 8):
                _check_tile(n, tile_of(stacked_plan("delta", heads, n, n), backward=backward))


def _check_tile(n: int, tile: Tile) -> None:
    assert tile.columns >= n
    assert tile.rows * tile.row_tiles >= n > tile.rows * (tile.row_tiles - 1)
    assert tile.rows & (tile.rows - 1) == tile.columns & (tile.columns - 1) == 0
    assert tile.steps % tile.group == 0
    assert tile.group > 1


# ---- planted faults ----

# By mechanism.
FAULTS = {
    "wrong index": {
        "a checkpoint of the wrong step": (
            "e70-n16",
            "forward",
            "kept = wide(begin // tile.steps - 1, at)",
            "kept = wide(begin // tile.steps * 0, at)",
        ),
        "the wrong checkpoint ahead": (
            "e70-n16",
            "backward_overlapped",
            "wide(tl.maximum(segment - 1, 0), at) * states",
            "wide(segment * 0, at) * states",
        ),
        "the numbers of another group": (
            "e70-n16",
            "backward",
            "next_begin = tl.maximum(group_begin - tile.group, begin)",
            "next_begin = group_begin",
        ),
        "what another step has read": (
            "e71-n16",
            "forward",
            "store_output(reads_r + further, r_r, inside_r)",
            "store_output(reads_r, r_r, inside_r)",
        ),
    },
    "stale state": {
        "states of the segment that is computed": (
            "e88-n16",
            "backward_overlapped",
            "half = 1 - turn // groups % 2",
            "half = turn // groups % 2",
        ),
        "the state before another group": (
            "e88-n16",
            "backward",
            "kept = kept_group(room, next_begin - begin, True, tile)",
            "kept = kept_group(room, last_group - begin, True, tile)",
        ),
        "the state after another segment": (
            "e72-n24",
            "backward_overlapped",
            "after_rn = tl.where(is_first, state_rn, after_rn)",
            "after_rn = tl.where(turn < 0, state_rn, after_rn)",
        ),
    },
    "wrong end": {
        "the tail of a group is dropped forward": (
            "e70-n16",
            "forward",
            "for begin in range(0, steps, tile.group):",
            "for begin in range(0, steps - tile.group + 1, tile.group):",
        ),
        "the tail of a group is dropped backward": (
            "e70-n16",
            "backward",
            "(end - 1 - begin) // tile.group * tile.group",
            "((end - begin) // tile.group - 1) * tile.group",
        ),
        "a padded column is read and written": (
            "e73cp-column-n20",
            "places",
            "return Inside(True, inside_r, inside_n)",
            "return Inside(True, inside_r, on_columns(at.column_n < spec.columns + 1, tile))",
        ),
        "shares of the first turn alone": (
            "e73cp-column-n20",
            "around",
            "for begin in range(0, count, rows):",
            "for begin in range(0, rows, rows):",
        ),
    },
    "wrong sum": {
        "a sum over half of the rows": (
            "e70-n16",
            "maths",
            "(parts[0] + _swapped(parts[0], bit),)",
            "(parts[0],)",
        ),
        "one row tile's part for all": (
            "e88-everything",
            "places",
            "own = _begin(sequence, at, spec.columns) + at.tile * sequence.tile",
            "own = _begin(sequence, at, spec.columns)",
        ),
        "the first part of folded columns alone": (
            "e72-n24",
            "forward",
            "= at.row_r[None, :, None], at.column_n\n",
            "= at.row_r[None, :, None], at.column_n % at.column_n.shape[2]\n",
        ),
        "parts of the first gradient alone": (
            "e72-n24",
            "around",
            "        if tl.program_id(1) == which:\n            _sum_parts_of(",
            "        if (tl.program_id(1) == 0) & (which == 0):\n            _sum_parts_of(",
        ),
    },
    "wrong gradient": {
        "no gradient of the last state": (
            "e72-n24",
            "backward_steps",
            "load_state(dlast, at.batch * spec.heads + at.head, at, spec)",
            "load_state(dlast, at.batch * spec.heads + at.head, at, spec) * 0.0",
        ),
        "no gradient of the first state": (
            "e72-n24",
            "backward",
            "store_state(dfirst, number, at, dstate_rn, True, spec)",
            "store_state(dfirst, number, at, dstate_rn * 0.0, True, spec)",
        ),
        "the state after a step for the one before": (
            "e73-column-n16",
            "backward_steps",
            "dz_rn = link.dsum_rn * one.before_rn *",
            "dz_rn = link.dsum_rn * one.after_rn *",
        ),
        "a gate without its slope": (
            "e72-n24",
            "cells",
            "logit_by_w = (1.0 - c) * x.v * b * (1.0 - b)",
            "logit_by_w = (1.0 - c) * x.v * b",
        ),
        "a query prepared without its norm": (
            "e88-everything",
            "around",
            "        x_sn = unit(x_sn, fast)\n",
            "        x_sn = x_sn * 1.0\n",
        ),
    },
    "overflow": {
        "a quotient of exponentials for tanh": (
            "saturated",
            "maths",
            "        x = tl.where(x > 8.0, 8.0, tl.where(x < -8.0, -8.0, x))\n",
            "        x = (tl.exp(2.0 * x) - 1.0) / (tl.exp(2.0 * x) + 1.0)\n",
        ),
    },
}


@pytest.mark.parametrize(
    ("fault", "edit"),
    [
        pytest.param(what, edit, id=what)
        for edits in FAULTS.values()
        for what, edit in edits.items()
    ],
)
def test_a_planted_fault_is_found(
    fault: str, edit: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, module, old, new = edit
    plan = plan_of("e70-n16" if name == "saturated" else name)
    steps = 7 if "another group" in fault else 6 if "another segment" in fault else 5
    use_tiles(
        monkeypatch,
        rows=2 if "parts of" in fault or "shares" in fault else 16 if "row tile" in fault else None,
        steps=6 if steps == 7 else STEPS,
        overlapped=module != "backward",
        folds=4 if "folded" in fault else 1,
    )
    given = drawn(plan, 1, steps, FP32, first=True)
    if name == "saturated":
        given["source 0"] *= 30
    plant(tmp_path, monkeypatch, MODULES, module, old, new)
    monkeypatch.setattr(launch, "_parts_of", launch._parts_of.__wrapped__)
    assert wrong(everything(plan, given, "triton"), right(plan, given), TOLERANCE[FP32])
