"""M2RNN's Triton kernels, run by Triton's interpreter on a CPU.

Shape legend: b batch, t time, h heads, v state rows, n state columns.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.backends import choose_backend, slow_reason
from elman.models.cells import registry
from elman.ops.matrix_state.row_mix import custom_op, launch
from elman.ops.matrix_state.row_mix.op import row_mix_recurrence
from elman.ops.matrix_state.row_mix.spec import STEPS, mix_tile
from tests.ops.matrix_state.triton_cases import (
    BF16,
    FP32,
    TOLERANCE,
    Tensors,
    differentiated,
    plant,
    poisoned,
    quicken,
    wrong,
)

triton = pytest.importorskip("triton")
NAMES = launch.NAMES
MODULES = ("forward", "backward")
# b, t, h, v, n
Sizes = tuple[int, int, int, int, int]
SIZES: dict[str, Sizes] = {
    "odd": (1, 5, 3, 5, 7),
    "one step": (2, 1, 1, 16, 16),
    "whole segments": (2, 4, 1, 16, 3),
    "narrow": (1, 3, 1, 20, 12),
    "wide": (1, 3, 1, 3, 40),
}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checkpoints stand two steps apart, and let the forward kernel take two steps at once."""
    quicken(monkeypatch)
    use_segments(monkeypatch, 2)


def use_segments(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    def tile(spec: Any, *, backward: bool) -> Any:
        return replace(mix_tile(spec, backward=backward), steps=steps, group=2)

    monkeypatch.setattr(launch, "mix_tile", tile)
    monkeypatch.setattr(custom_op, "STEPS", steps)


def drawn(sizes: Sizes, dtype: torch.dtype = FP32) -> Tensors:
    """Return the tensors of a call by name. W is not symmetric."""
    b, t, h, v, n = sizes
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    found = {"q": normal(b, t, h, n), "k": normal(b, t, h, n), "v": normal(b, t, h, v)}
    found["gate"] = normal(b, t, h, v)
    found = {name: one.to(dtype) for name, one in found.items()}
    found["decay"] = torch.rand(b, t, h, generator=generator)
    found |= {"mix": normal(h, v, v) / v**0.5, "residual": normal(h, v)}
    return found | {"first": normal(b, h, v, n) / 2}


def everything(
    given: Tensors, backend: str, resets_bt: Tensor | None = None, reached: str = "both"
) -> Tensors:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    out_bthv, last_bhvn = row_mix_recurrence(
        {name: leaves[name] for name in NAMES},
        leaves["mix"],
        leaves["residual"],
        leaves["first"],
        backend=backend,
        resets_bt=resets_bt,
    )
    return differentiated({"out": out_bthv, "last": last_bhvn}, leaves, reached)


def right(given: Tensors, resets_bt: Tensor | None = None, reached: str = "both") -> Tensors:
    """Return what the fp64 reference finds for the same numbers."""
    wide = {name: tensor.double() for name, tensor in given.items()}
    return everything(wide, "reference", resets_bt, reached)


@pytest.mark.parametrize("name", SIZES)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name: str) -> None:
    given = drawn(SIZES[name])
    assert not wrong(everything(given, "triton"), right(given), TOLERANCE[FP32])


@pytest.mark.parametrize("name", ["odd", "one step"])
def test_narrow_sequences(name: str) -> None:
    given = drawn(SIZES[name], BF16)
    found, wanted = everything(given, "triton"), right(given)
    assert found["out"].dtype == found["d v"].dtype == BF16
    assert not wrong(found, wanted, TOLERANCE[BF16])
    # What is not stored in bf16 shows the error of products whose factors are split.
    exact = {"last", "d mix", "d first", "d decay"}
    assert not wrong({n: found[n] for n in exact}, {n: wanted[n] for n in exact}, 1e-3)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_the_segments_of_a_run(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "mix_tile", mix_tile)
    monkeypatch.setattr(custom_op, "STEPS", STEPS)
    given = drawn((1, 19, 1, 4, 4), dtype)
    assert not wrong(everything(given, "triton"), right(given), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("size", [(16, 16), (32, 32), (16, 64), (32, 64), (17, 33)], ids=str)
def test_every_tile_with_the_segments_of_a_run(
    size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "mix_tile", mix_tile)
    monkeypatch.setattr(custom_op, "STEPS", STEPS)
    given = drawn((2, 37, 3, *size), dtype)
    assert not wrong(everything(given, "triton"), right(given), TOLERANCE[dtype])


@pytest.mark.parametrize("reached", ["out", "last"])
def test_gradients_of_one_output_alone(reached: str) -> None:
    given = drawn((1, 3, 1, 4, 5))
    found = everything(given, "triton", reached=reached)
    assert not wrong(found, right(given, reached=reached), TOLERANCE[FP32])


def test_a_reset_lets_nothing_pass() -> None:
    given = drawn((2, 4, 1, 4, 5))
    resets_bt = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]]).bool()
    given["first"][1] = torch.nan
    found = everything(given, "triton", resets_bt)
    given["first"][1] = 0.0
    assert not wrong(found, right(given, resets_bt), TOLERANCE[FP32])


def test_sequences_with_gaps_and_heads_that_share_one() -> None:
    given = drawn((2, 3, 3, 4, 5))
    # Slices of a projection, values with gaps between them, and one key for all heads.
    whole_btc = torch.randn(2, 3, 3 * 4 + 3 * 5)
    given["q"] = whole_btc[..., 12:].unflatten(-1, (3, 5))
    given["v"] = torch.randn(2, 3, 3, 8)[..., ::2]
    given["k"] = given["k"][:, :, :1].expand(-1, -1, 3, -1)
    tensors = [given[name] for name in (*NAMES, "mix", "residual", "first")]
    found = custom_op.ROW_MIX.operator(True, *tensors, None)
    named = {"out": found[0], "last": found[1]}
    wanted = right(given)
    assert not wrong(named, {name: wanted[name] for name in named}, TOLERANCE[FP32])
    dout, dlast = torch.randn(2, 4, 3, 3)[..., :].transpose(1, 3), torch.randn_like(found[1])
    pulled = (dout.contiguous(), dout)
    one, other = (
        custom_op.ROW_MIX.backward_operator(d, dlast, *tensors, None, found[2]) for d in pulled
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_nothing_uninitialized_is_read_or_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(SIZES["odd"])
    wanted = everything(given, "triton")
    poisoned(monkeypatch)
    assert not wrong(everything(given, "triton"), wanted, 0.0)  # and every bit is the same again


def test_a_nan_stays_and_large_numbers_do_not_make_one() -> None:
    given = drawn((2, 3, 1, 4, 5), BF16)
    given["v"] = given["v"] * 1e3
    assert all(one.isfinite().all() for one in everything(given, "triton").values())
    given["v"][0, 1] = torch.nan
    found = everything(given, "triton")
    assert found["out"][0, 1:].isnan().all()
    assert found["out"][1].isfinite().all()


@pytest.mark.parametrize("with_resets", [False, True], ids=["whole", "resets"])
def test_the_operators_of_pytorch(with_resets: bool) -> None:
    given = drawn((1, 3, 2, 3, 4))
    resets_bt = torch.tensor([[False, True, False]]) if with_resets else None
    tensors = [given[name].requires_grad_() for name in (*NAMES, "mix", "residual", "first")]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.elman.row_mix.default, (True, *tensors, resets_bt), test_utils=checks
    )
    plain = [one.detach() for one in tensors]
    out, last, kept = custom_op.ROW_MIX.operator(True, *plain, resets_bt)
    for dout, dlast in ((out, last), (None, last), (out, None)):
        torch.library.opcheck(
            torch.ops.elman.row_mix_backward.default,
            (dout, dlast, *plain, resets_bt, kept),
            test_utils=("test_schema", "test_faketensor"),
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "tied": {"n_heads": 3, "n_state": 5},
    "paper": {"n_heads": 2, "n_state": 3, "key_width": 6, "shared_keys": True, "use_conv": True},
    "normed": {"n_heads": 2, "n_state": 4, "use_l2_norm": True, "use_output_norm": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer(name: str) -> None:
    found = _layer_results(OPTIONS[name], "triton", FP32)
    wanted = _layer_results(OPTIONS[name], "reference", torch.float64)
    assert not wrong(found, wanted, TOLERANCE[FP32])


def _layer_results(options: dict[str, Any], backend: str, dtype: torch.dtype) -> Tensors:
    torch.manual_seed(3)
    layer = elman.layers.M2RNN(8, **options, backend=backend)
    torch.nn.init.normal_(layer.mix, std=0.4)
    layer = layer.to(dtype)
    x_btd = (3 * torch.randn(1, 3, 8)).to(dtype).requires_grad_()
    first_btd, state = layer(x_btd[:, :1])
    y_btd, state = layer(x_btd[:, 1:], state)
    loss = y_btd.square().sum() + first_btd.sum() + state["S"].sum()
    named = {"x": x_btd, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()))
    outputs = {"y": y_btd.detach(), "S": state["S"].detach()}
    return outputs | {f"d {key}": one for key, one in zip(named, gradients, strict=True)}


def test_auto_takes_the_kernels_on_a_gpu_and_says_why_not() -> None:
    cell = registry.cell("m2rnn")
    options = {name: option.default for name, option in cell.options.items()}
    assert choose_backend(cell.under(options), "auto", "cuda") == "triton"
    assert choose_backend(cell.under(options), "auto", "cpu") == "reference"
    for sizes, found in (({"n_state": 33}, "33 and 33"), ({"key_width": 65}, "16 and 65")):
        large = cell.under(options | sizes)
        reason = slow_reason(large, "auto", "cuda")
        assert reason is not None
        assert reason.endswith(f"32 value rows and 64 key columns, this one has {found}")
        with pytest.raises(UserError, match=r"^kernels\.backend=triton: cell m2rnn has only refer"):
            choose_backend(large, "triton", "cuda")


def test_what_the_kernels_do_not_read_is_refused_in_one_line() -> None:
    given = drawn((1, 2, 2, 3, 4))
    for change, text in (
        (
            {"k": given["k"][..., 1:]},
            r"^k of matrix_state m2rnn: shape .*, expected \[1, 2, 2, 4\]",
        ),
        ({"mix": given["mix"][:1]}, r"^mix of matrix_state m2rnn: shape .*, expected \[2, 3, 3\]"),
        ({"first": given["first"][:, :1]}, r"^state of matrix_state m2rnn: shape"),
        ({"decay": given["decay"].bfloat16()}, r"^decay of .*: dtype bfloat16, expected float32"),
    ):
        with pytest.raises(ValueError, match=text):
            everything(given | change, "triton")
    with pytest.raises(UserError, match=r"computes on bfloat16 and float32, not on torch\.float16"):
        everything(given | {"v": given["v"].half()}, "triton")
    with pytest.raises(UserError, match=r"computes on bfloat16 and float32, not on torch\.float64"):
        everything({name: one.double() for name, one in given.items()}, "triton")


def test_nothing_to_do() -> None:
    given = drawn((1, 0, 2, 3, 4))
    found = everything(given, "triton")
    assert torch.equal(found["last"], given["first"])
    assert not found["d mix"].any()


# ---- planted faults ----

# By mechanism.
FAULTS = {
    "wrong index": {
        "heads share a decay": (
            "forward",
            "at.head * sequence.head",
            "at.head * 0 * sequence.head",
        ),
        "the wrong checkpoint": ("backward", "wide(segment - 1, at)", "wide(segment * 0, at)"),
        "the state of another step": (
            "backward",
            "_room(scratch, earlier - begin, tile)",
            "_room(scratch, (earlier - begin) * 0, tile)",
        ),
        "every program's W in one place": (
            "backward",
            "dmix + number * (spec.rows * spec.rows)",
            "dmix + number * 0",
        ),
    },
    "wrong end": {
        "padded columns are read": (
            "forward",
            "inside_n = (at.column_n < spec.columns) & (t < steps)",
            "inside_n = (at.column_n < spec.columns + 1) & (t < steps)",
        ),
        "the tail of a group is dropped": (
            "forward",
            "for begin in range(0, steps, tile.group):",
            "for begin in range(0, steps - tile.group + 1, tile.group):",
        ),
    },
    "wrong sum": {
        "small halves are left out": (
            "forward",
            "        added = _narrow_product(low_one, high_other, added, spec)\n",
            "",
        ),
        "the gradient of W transposed": (
            "backward",
            "product(before_rn, tl.trans(dinner_rn), sums.mix_ur, spec)",
            "product(dinner_rn, tl.trans(before_rn), sums.mix_ur, spec)",
        ),
        "one step's gradient of W": (
            "backward",
            "tl.trans(dinner_rn), sums.mix_ur",
            "tl.trans(dinner_rn), sums.mix_ur * 0.0",
        ),
    },
    "wrong gradient": {
        "no derivative of tanh": ("backward", "(1.0 - new_rn * new_rn)", "(1.0 - new_rn * 0.0)"),
        "no gradient of the last state": (
            "backward",
            "dstate_rn = load_state(dlast, number, at, spec)",
            "dstate_rn = load_state(dlast, number, at, spec) * 0.0",
        ),
        "the state after a step for the one before": (
            "backward",
            "product(before_rn, tl.trans",
            "product(after_rn, tl.trans",
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
    part, old, new = edit
    narrow = "halves" in fault
    if "another step" in fault:
        use_segments(monkeypatch, 4)
    given = drawn((1, 5, 2, 3, 4), BF16 if narrow else FP32)
    plant(tmp_path, monkeypatch, MODULES, part, old, new, launch)
    found, wanted = everything(given, "triton"), right(given)
    if narrow:
        found, wanted = ({"last": one["last"]} for one in (found, wanted))
    assert wrong(found, wanted, 1e-3 if narrow else TOLERANCE[FP32])
