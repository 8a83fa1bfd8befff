"""The causal convolution's kernels of the CPU, against fp64.

Shape legend: b batch, t time, c channels, k taps, e channels of a projection.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.models.blocks.conv import CausalConv
from elman.ops.causal_conv import cpu, op
from elman.ops.causal_conv.op import Layout
from elman.parity.experiment import poisoned

pytestmark = pytest.mark.compiler

FP32, FP64 = torch.float32, torch.float64
LIMITS = {FP32: 3e-6, FP64: 1e-14}
ALONE, INSIDE = Layout((), (8,), ()), Layout((5, 7), (11,), (4, 6))
Inputs = list[Tensor | None]


def draw(
    steps: int,
    layout: Layout = INSIDE,
    taps: int = 4,
    dtype: torch.dtype = FP32,
    *,
    batch: int = 2,
    bias: bool = True,
    history: bool = True,
) -> Inputs:
    """Return projection, taps, bias and history."""
    generator = torch.Generator().manual_seed(3)
    channels = sum(layout.parts)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    return [
        normal(batch, steps, sum(sum(layout, ()))),
        normal(channels, taps),
        normal(channels) if bias else None,
        normal(batch, taps - 1, channels) if history else None,
    ]


def some_resets(batch: int, steps: int) -> Tensor:
    """Return resets of which some lie beside each other, and one before the first step."""
    generator = torch.Generator().manual_seed(5)
    resets_bt = torch.rand(batch, steps, generator=generator) < 0.3
    resets_bt[0, 0] = True
    return resets_bt


def everything(
    inputs: Inputs, layout: Layout, backend: str, resets_bt: Tensor | None = None
) -> list[Tensor]:
    """Return outputs and gradients; each output has a gradient of its own."""
    with poisoned():
        outputs, history = op.split_conv(*inputs, layout, resets_bt, backend=backend)
        outputs.append(history)
        # Quarters are exact in every dtype.
        pulls = [
            torch.arange(o.numel()).mul(7 + n).remainder(23).sub(11).div(4).view(o.shape)
            for n, o in enumerate(outputs)
        ]
        gradients = torch.autograd.grad(
            outputs,
            [one for one in inputs if one is not None],
            [pull.to(o.dtype) for pull, o in zip(pulls, outputs, strict=True)],
        )
    return [one.detach() for one in (*outputs, *gradients)]


def check(inputs: Inputs, layout: Layout = INSIDE, resets_bt: Tensor | None = None) -> None:
    """Compare the kernels with the reference in fp64."""
    assert inputs[0] is not None
    found = everything(inputs, layout, "cpu", resets_bt)
    wide = [None if one is None else one.detach().double().requires_grad_() for one in inputs]
    exact = everything(wide, layout, "reference", resets_bt)
    for n, (one, right) in enumerate(zip(found, exact, strict=True)):
        assert one.dtype == inputs[0].dtype
        error = (one.double() - right).norm()
        assert error <= LIMITS[one.dtype] * right.norm() + 1e-12, (n, float(error))


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the passes that ran in a kernel."""
    ran: list[str] = []
    for name in ("forward", "backward"):
        run = getattr(cpu, name)
        monkeypatch.setattr(cpu, name, lambda *a, n=name, run=run: ran.append(n) or run(*a))
    return ran


@pytest.mark.parametrize("dtype", [FP32, FP64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 63, 64, 65, 131])
def test_outputs_and_gradients_are_those_of_fp64(steps, dtype, calls) -> None:
    check(draw(steps, dtype=dtype))
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("taps", [2, 3, 5, 8])
@pytest.mark.parametrize("steps", [1, 9])
def test_every_number_of_taps(taps, steps, calls) -> None:
    check(draw(steps, taps=taps))
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("steps", [1, 7])
def test_without_bias_or_history(bias, history, steps) -> None:
    check(draw(steps, bias=bias, history=history))


@pytest.mark.parametrize(
    "layout", [ALONE, Layout((), (1,), ()), Layout((3,), (37,), ()), Layout((), (384,), (136,))]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_layout(layout, batch) -> None:
    check(draw(6, layout, batch=batch), layout)


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5, 70])
def test_nothing_crosses_a_reset(steps, history) -> None:
    check(draw(steps, history=history), resets_bt=some_resets(2, steps))


def test_a_nan_stays_behind_a_reset() -> None:
    inputs = draw(6, ALONE, batch=1)
    resets_bt = torch.tensor([[False, False, True, False, False, False]])
    with torch.no_grad():
        inputs[0][0, 1] = torch.nan
        inputs[3].fill_(torch.nan)
    y_btc, _, dx_bte, *_ = everything(inputs, ALONE, "cpu", resets_bt)
    assert y_btc.isnan().all(-1).tolist() == [[True, True, False, False, False, False]]
    assert not dx_bte.isnan().any()


def test_several_stretches_share_a_sum() -> None:
    check(draw(70, ALONE, batch=75), ALONE)


def test_rows_that_lie_apart() -> None:
    inputs = draw(5, ALONE, batch=4)
    inputs[0] = inputs[0].detach().transpose(0, 1)[:3].requires_grad_()
    inputs[3] = draw(5, ALONE, batch=3)[3]
    check(inputs, ALONE)


@pytest.mark.parametrize(("batch", "steps"), [(16, 128), (3, 131)])
def test_every_bit_is_the_same_for_any_number_of_threads(batch, steps, monkeypatch) -> None:
    layout, results = Layout((), (260,), (7,)), []
    inputs = draw(steps, layout, batch=batch)
    for threads in (1, 1, 2, 3):
        monkeypatch.setattr("elman.ops.causal_conv.cpu.kernel_threads", lambda _, n=threads: n)
        results.append(everything(inputs, layout, "cpu"))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("part", [1, 2, 5])
def test_parts_have_the_bits_of_the_whole(part) -> None:
    conv = CausalConv(40, 4, bias=True)
    x_btc = torch.randn(2, 9, 40)
    whole_btc, last = conv(x_btc, None, backend="cpu")
    history, pieces = None, []
    for piece_btc in x_btc.split(part, dim=1):
        y_btc, history = conv(piece_btc, history, backend="cpu")
        pieces.append(y_btc)
    assert torch.equal(torch.cat(pieces, 1), whole_btc)
    assert torch.equal(history, last)


@pytest.mark.parametrize("gradients", [(0,), (1,), ()], ids=["convolved", "beside", "none"])
def test_an_output_without_a_gradient_counts_as_zeros(gradients) -> None:
    layout = Layout((), (8,), (3,))
    results = []
    for backend in ("cpu", "reference"):
        inputs = draw(5, layout)
        pieces, _ = op.split_conv(*inputs, layout, backend=backend)
        loss = sum(pieces[n].square().sum() for n in gradients) + inputs[0].sum()
        results.append(torch.autograd.grad(loss, inputs[0])[0])
    torch.testing.assert_close(*results)


def test_what_no_kernel_takes_is_pytorchs(calls) -> None:
    for change in ({"taps": 9}, {"layout": Layout((), (4, 4), ())}, {"dtype": torch.bfloat16}):
        layout = change.get("layout", ALONE)
        inputs = draw(5, **{"layout": layout, **change})
        outputs, _ = op.split_conv(*inputs, layout, backend="cpu")
        assert len(outputs) == len(layout.parts)
    op.split_conv(*draw(5, ALONE), ALONE, silu=True, backend="cpu")
    op.split_conv(*draw(0, ALONE), ALONE, backend="cpu")
    assert calls == []


def test_transforms_see_pytorchs_operators(calls) -> None:
    x_bte, weight_ck, *_ = draw(5, ALONE)

    def loss(x_bte: Tensor) -> Tensor:
        return op.split_conv(x_bte, weight_ck, None, None, ALONE, backend="cpu")[0][0].sum()

    found = torch.func.grad(loss)(x_bte.detach())
    assert calls == []
    torch.testing.assert_close(found, torch.autograd.grad(loss(x_bte), x_bte)[0])
    assert calls == ["forward", "backward"]


def test_a_second_derivative_is_an_error() -> None:
    inputs = draw(5, ALONE)
    (y_btc,), _ = op.split_conv(*inputs, ALONE, backend="cpu")
    (first,) = torch.autograd.grad(y_btc.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(UserError, match="kernels have no second derivative"):
        first.sum().backward()


def test_gradients_are_those_of_small_differences() -> None:
    layout = Layout((1,), (3,), (2,))
    inputs = draw(5, layout, taps=3, dtype=FP64)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        pieces, history = op.split_conv(*tensors, layout, backend="cpu")
        return (*pieces, history)

    assert torch.autograd.gradcheck(run, tuple(inputs))
