"""The add-and-norm kernel of the CPU: against fp64, and as operators of PyTorch.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.models.blocks.norm import RMSNorm
from elman.ops.add_norm import custom_op, op
from elman.parity.experiment import Run, poisoned
from elman.parity.proof import prove_norms

pytestmark = pytest.mark.compiler

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
LIMITS = {BF16: 4e-3, FP32: 2e-6, FP64: 1e-14}
SHAPES = {
    "one-number": (2, 3, 1),
    "odd": (3, 7, 37),
    "one-step": (4, 1, 64),
    "one-row": (1, 1, 37),
    "one-vector": (3, 3, 16),
    "several-slices-and-a-rest": (5, 131, 20),
    "slices-of-more-rows": (17, 131, 5),
    "wide": (1, 3, 4100),
}


def draw(shape: tuple[int, ...], dtype: torch.dtype, branch: torch.dtype | None) -> list[Tensor]:
    """Return stream, gain and branch."""
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    gain = torch.randn(shape[-1], generator=generator).to(dtype)
    leaves = [leaves[0], gain, *([] if branch is None else [leaves[1].to(branch)])]
    return [leaf.requires_grad_() for leaf in leaves]


def everything(
    leaves: list[Tensor], dtype: torch.dtype, backend: str, reached: str = "sum and normed"
) -> dict[str, Tensor]:
    """Return outputs and gradients; the outputs named in ``reached`` have one."""
    stream, gain, *branch = leaves
    with poisoned():
        outputs = op.add_rms_norm(
            stream, branch[0] if branch else None, gain, dtype, backend=backend
        )
        # Quarters are exact in every dtype.
        pull = torch.arange(stream.numel()).mul(7).remainder(23).sub(11).div(4).view(stream.shape)
        names = [name for name in ("sum", "normed") if name in reached]
        chosen = [dict(zip(("sum", "normed"), outputs, strict=True))[name] for name in names]
        pulls = [pull.to(out.dtype) for out in chosen]
        gradients = torch.autograd.grad(chosen, leaves, pulls, allow_unused=True)
    named = dict(zip(("d stream", "d gain", "d branch"), gradients, strict=False))
    named |= {"sum": outputs[0].detach(), "normed": outputs[1].detach()}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def check(found: dict[str, Tensor], leaves: list[Tensor], reached: str = "sum and normed") -> None:
    """Compare with the reference in fp64, every tensor by the precision of its dtype."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = everything(wide, FP64, "reference", reached)
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= LIMITS[tensor.dtype] * exact[name].norm() + 1e-12, (name, error)


@pytest.mark.parametrize("dtype", [FP32, FP64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("added", [True, False], ids=["added", "alone"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_and_gradients_are_those_of_fp64(shape, added, dtype) -> None:
    leaves = draw(shape, dtype, dtype if added else None)
    check(everything(leaves, dtype, "cpu"), leaves)


@pytest.mark.parametrize("reached", ["sum", "normed"])
@pytest.mark.parametrize("branch", [FP32, None], ids=["added", "alone"])
def test_gradients_of_one_output_alone(branch, reached) -> None:
    leaves = draw((2, 5, 40), FP32, branch)
    check(everything(leaves, FP32, "cpu", reached), leaves, reached)


@pytest.mark.parametrize(("branch", "dtype"), [(BF16, BF16), (FP32, BF16), (BF16, FP32)])
def test_a_narrow_branch_or_result_is_rounded_once(branch, dtype) -> None:
    leaves = draw((3, 11, 40), FP32, branch)
    found = everything(leaves, dtype, "cpu")
    assert (found["sum"].dtype, found["normed"].dtype) == (FP32, dtype)
    assert found["d branch"].dtype == branch
    check(found, leaves)


def test_tensors_that_are_not_contiguous() -> None:
    turned = [leaf.detach().mT if leaf.dim() > 1 else leaf for leaf in draw((4, 40, 5), FP32, FP32)]
    leaves = [turned[0], torch.randn(40), turned[2]]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    assert not leaves[0].is_contiguous()
    check(everything(leaves, FP32, "cpu"), leaves)


def test_no_rows() -> None:
    found = everything(draw((0, 3, 40), FP32, FP32), FP32, "cpu")
    assert torch.equal(found["d gain"], torch.zeros(40))
    assert found["normed"].shape == found["d branch"].shape == (0, 3, 40)


@pytest.mark.parametrize("size", [1e-6, 1e12])
def test_numbers_far_from_one(size) -> None:
    leaves = [(leaf.detach() * size).requires_grad_() for leaf in draw((2, 3, 40), FP32, FP32)]
    check(everything(leaves, FP32, "cpu", "normed"), leaves, "normed")


def test_nan_stays_in_its_row() -> None:
    leaves = draw((1, 4, 37), FP32, FP32)
    with torch.no_grad():
        leaves[0][0, 2, 5] = torch.nan
    found = everything(leaves, FP32, "cpu")
    for name in ("normed", "d stream", "d branch"):
        assert found[name].isnan().all(-1).tolist() == [[False, False, True, False]]


@pytest.mark.parametrize("shape", [(16, 128, 256), (5, 131, 37)], ids=str)
def test_every_bit_is_the_same_for_any_number_of_threads(shape, monkeypatch) -> None:
    leaves, results = draw(shape, FP32, FP32), []
    for threads in (1, 1, 2, 3):
        monkeypatch.setattr("elman.ops.add_norm.cpu.kernel_threads", lambda _, n=threads: n)
        results.append(everything(leaves, FP32, "cpu"))
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)


def test_a_row_alone_has_the_bits_that_it_has_among_others() -> None:
    stream, gain, branch = draw((3, 50, 256), FP32, FP32)
    whole = op.add_rms_norm(stream, branch, gain, FP32, backend="cpu")[1]
    alone = op.add_rms_norm(stream[1:2, 7:8], branch[1:2, 7:8], gain, FP32, backend="cpu")[1]
    assert torch.equal(whole[1:2, 7:8], alone)


def test_the_norm_of_a_model_takes_the_kernel(monkeypatch) -> None:
    stream, gain, branch = draw((2, 3, 40), FP32, FP32)
    norm = RMSNorm(40)
    with torch.no_grad():
        norm.weight.copy_(gain)
    kernel = op.add_rms_norm(stream, branch, gain, FP32, backend="cpu")
    assert all(map(torch.equal, norm(stream, branch), kernel))
    narrow = stream.detach().bfloat16()
    assert norm(narrow)[0] is narrow  # PyTorch computes what the kernel cannot


def test_a_stream_in_half_precision_is_refused() -> None:
    stream, gain, _ = draw((2, 3, 40), FP32, FP32)
    said = "kernels.backend=cpu: norms have a float32 or float64 stream, not torch.bfloat16"
    with pytest.raises(UserError, match=said):
        op.add_rms_norm(stream.bfloat16(), None, gain, BF16, backend="cpu")


def test_the_kernel_passes_parity_at_every_size() -> None:
    found = prove_norms(
        40, [Run("cpu", "cpu", name) for name in ("fp32", "bf16")], seed=42, quick=False
    )
    assert found.passed
    assert len(found.checks) == 2 * 10


# ---- operators


@pytest.mark.parametrize("dtype", [FP32, FP64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("added", [True, False], ids=["added", "alone"])
def test_opcheck(added, dtype) -> None:
    stream, gain, *given = draw((2, 3, 8), dtype, dtype if added else None)
    arguments = (stream, given[0] if given else None, gain, dtype, "cpu")
    torch.library.opcheck(custom_op.ADD_NORM.operator, arguments)
    total, normed, rstd = (out.detach() for out in custom_op.ADD_NORM.operator(*arguments))
    total = total if added else stream.detach()
    for dsum in (None, total):
        torch.library.opcheck(
            custom_op.ADD_NORM.backward_operator,
            (dsum, normed, total, rstd, gain.detach(), dtype if added else None, "cpu"),
        )


def test_gradients_are_those_of_small_differences() -> None:
    stream, gain, branch = draw((2, 3, 5), FP64, FP64)

    def run(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        return op.add_rms_norm(leaves[0], leaves[1], leaves[2], FP64, backend="cpu")

    assert torch.autograd.gradcheck(run, (stream, branch, gain))


def test_a_second_derivative_is_an_error() -> None:
    stream, gain, branch = draw((2, 3, 40), FP32, FP32)
    normed = op.add_rms_norm(stream, branch, gain, FP32, backend="cpu")[1]
    (first,) = torch.autograd.grad(normed.square().sum(), stream, create_graph=True)
    with pytest.raises(UserError, match="kernels have no second derivative"):
        first.sum().backward()


def test_torch_compile_gives_the_same_bits() -> None:
    stream, _, branch = draw((2, 3, 40), FP32, FP32)
    module = RMSNorm(40)
    torch._dynamo.reset()
    results = []
    for step in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        total, normed = step(stream, branch)
        loss = (total.sin() + normed.cos()).sum()
        gradients = torch.autograd.grad(loss, [stream, branch, module.weight])
        results.append([total, normed, *gradients])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
