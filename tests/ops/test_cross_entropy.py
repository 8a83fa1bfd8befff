"""Cross entropy in chunks of positions, against PyTorch's from whole logits and against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.ops.common import padding
from elman.ops.cross_entropy import MOST_LOGITS, chunk_of, mean_in_chunks, path
from elman.parity.experiment import poisoned
from elman.training.memory.estimate import _LiveBytes

DIM = 24
SIZES = {
    "one position": (1, 1000, 128),
    "less than a chunk": (77, 1000, 128),
    "a part of a chunk is left": (777, 1000, 128),
    "whole chunks": (96, 1000, 32),
    "a position at a time": (5, 1000, 1),
    "50,281 tokens": (37, 50281, 16),
}
sizes = pytest.mark.parametrize(("positions", "vocabulary", "chunk"), SIZES.values(), ids=SIZES)


def drawn(positions: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, a head, and targets, among them the first and the last token."""
    random = torch.Generator().manual_seed(1)
    x_nd = torch.randn(positions, DIM, generator=random).to(dtype)
    weight_vd = torch.randn(vocabulary, DIM, generator=random).to(dtype)
    targets_n = torch.randint(vocabulary, (positions,), generator=random)
    targets_n[0], targets_n[-1] = 0, vocabulary - 1
    return x_nd, weight_vd, targets_n


def whole(x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor) -> Tensor:
    logits_nv = functional.linear(x_nd, weight_vd)
    wide = torch.promote_types(logits_nv.dtype, torch.float32)
    return functional.cross_entropy(logits_nv.to(wide), targets_n)


def found(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    """Return a loss and its gradients, of a loss that counts three times."""
    return [loss.detach(), *torch.autograd.grad(3 * loss, leaves)]


def compared(positions: int, vocabulary: int, chunk: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Return loss and gradients in chunks, from whole logits, and of the same numbers in fp64."""
    x_nd, weight_vd, targets_n = drawn(positions, vocabulary, dtype)
    leaves = x_nd.requires_grad_(), weight_vd.requires_grad_()
    in_chunks = found(mean_in_chunks(*leaves, targets_n, chunk), *leaves)
    plain = found(whole(*leaves, targets_n), *leaves)
    exact = tuple(leaf.detach().double().requires_grad_() for leaf in leaves)
    return [in_chunks, plain, found(whole(*exact, targets_n), *exact)]


@sizes
def test_loss_and_gradients_are_those_of_whole_logits(positions, vocabulary, chunk) -> None:
    in_chunks, plain, _ = compared(positions, vocabulary, chunk, torch.float64)
    for one, other in zip(in_chunks, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-14)


@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_as_near_to_fp64_as_those_of_whole_logits(
    positions, vocabulary, chunk, dtype
) -> None:
    in_chunks, plain, exact = compared(positions, vocabulary, chunk, dtype)
    assert [one.dtype for one in in_chunks] == [torch.float32, dtype, dtype]
    for one, other, true in zip(in_chunks, plain, exact, strict=True):
        off, of_whole = (float((each.double() - true).norm()) for each in (one, other))
        assert off <= 1.5 * of_whole + torch.finfo(dtype).eps * float(true.norm())


def test_the_loss_is_the_same_with_and_without_gradients() -> None:
    x_nd, weight_vd, targets_n = drawn(300, 1000, torch.float32)
    without = mean_in_chunks(x_nd, weight_vd, targets_n, 64)
    assert not without.requires_grad
    learned = mean_in_chunks(x_nd.requires_grad_(), weight_vd, targets_n, 64)
    assert learned.requires_grad
    assert torch.equal(without, learned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_factor_gets_no_gradient_and_the_other_its_own(frozen, dtype) -> None:
    x_nd, weight_vd, targets_n = drawn(77, 1000, dtype)
    leaves = x_nd.requires_grad_(), weight_vd.requires_grad_()
    both = found(mean_in_chunks(*leaves, targets_n, 32), *leaves)
    leaves[frozen].requires_grad_(False)
    other = leaves[1 - frozen]
    loss, gradient = found(mean_in_chunks(*leaves, targets_n, 32), other)
    assert torch.equal(loss, both[0])
    assert torch.equal(gradient, both[2 - frozen])
    other.requires_grad_(False)
    assert not mean_in_chunks(*leaves, targets_n, 32).requires_grad


def test_the_gradient_of_the_loss_is_not_rounded_to_half_precision() -> None:
    """As a third of a loss in three micro-batches: rounded, all gradients are 0.2 % too large."""
    x_nd, weight_vd, targets_n = drawn(777, 1000, torch.bfloat16)
    leaves = x_nd.requires_grad_(), weight_vd.requires_grad_()
    ones = torch.autograd.grad(mean_in_chunks(*leaves, targets_n, 128), leaves)
    thirds = torch.autograd.grad(mean_in_chunks(*leaves, targets_n, 128) / 3, leaves)
    for one, third in zip(ones, thirds, strict=True):
        one, third = one.double(), third.double()
        assert float(3 * (third * one).sum() / (one * one).sum()) == pytest.approx(1, abs=2e-4)


def test_small_gradients_live_in_fp16_as_from_whole_logits() -> None:
    """With the factor of a GradScaler; a share of the mean would be below the smallest number."""
    x_nd, weight_vd, targets_n = drawn(4096, 1000, torch.float16)
    leaves = (x_nd / 8).requires_grad_(), (weight_vd / 8).requires_grad_()
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    loss = mean_in_chunks(*leaves, targets_n, 512)
    of_whole = torch.autograd.grad(4096 * whole(*leaves, targets_n), leaves)
    right = torch.autograd.grad(4096 * whole(*exact, targets_n), exact)
    for one, plain, true in zip(
        torch.autograd.grad(4096 * loss, leaves), of_whole, right, strict=True
    ):
        off, allowed = (float((each.double() - true).norm()) for each in (one, plain))
        assert off <= 1.5 * allowed + 1e-3 * float(true.norm())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_loss_has_the_same_bits(backend, dtype) -> None:
    x_nd, weight_vd, targets_n = drawn(77, 1003, dtype)
    leaves = x_nd.requires_grad_(), weight_vd.requires_grad_()
    compiled = torch.compile(mean_in_chunks, backend=backend, fullgraph=True)
    torch._dynamo.reset()
    eager = found(mean_in_chunks(*leaves, targets_n, 32), *leaves)
    assert all(map(torch.equal, found(compiled(*leaves, targets_n, 32), *leaves), eager))


def test_autocast_narrows_the_factors_and_nothing_else() -> None:
    x_nd, weight_vd, targets_n = drawn(300, 1000, torch.float32)
    leaves = x_nd.requires_grad_(), weight_vd.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        in_chunks = found(mean_in_chunks(*leaves, targets_n, 64), *leaves)
        plain = found(whole(*leaves, targets_n), *leaves)
    assert {one.dtype for one in in_chunks} == {torch.float32}
    for one, other in zip(in_chunks, plain, strict=True):
        assert float((one - other).norm()) < 5e-3 * float(other.norm())


@pytest.mark.parametrize(("vocabulary", "dim"), [(1003, 24), (1000, 21), (1003, 21)])
def test_factors_filled_up_for_a_gpu_give_the_same_numbers(vocabulary, dim, monkeypatch) -> None:
    """On a GPU zeros fill up a vocabulary and a width that are no multiples of 8."""
    x_nd, weight_vd, targets_n = drawn(300, vocabulary, torch.bfloat16)
    leaves = [one[:, :dim].clone().requires_grad_() for one in (x_nd, weight_vd)]
    as_they_are = found(mean_in_chunks(*leaves, targets_n, 128), *leaves)
    monkeypatch.setattr(padding, "DEVICE", "cpu")
    with poisoned():
        filled = found(mean_in_chunks(*leaves, targets_n, 128), *leaves)
    for one, other in zip(filled, as_they_are, strict=True):
        assert one.shape == other.shape
        assert float((one - other).float().norm()) < 4e-3 * float(other.float().norm())


def test_every_element_is_written() -> None:
    with poisoned():
        in_chunks, plain, _ = compared(77, 1000, 32, torch.float64)
    for one, other in zip(in_chunks, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-14)


def test_one_chunk_is_in_memory_at_a_time() -> None:
    def peak(positions: int) -> int:
        x_nd, weight_vd = (
            torch.empty(rows, 8, device="meta").requires_grad_() for rows in (positions, 50_000)
        )
        targets_n = torch.empty(positions, dtype=torch.long, device="meta")
        with _LiveBytes() as live:
            mean_in_chunks(x_nd, weight_vd, targets_n, 128).backward()
        return live.peak

    # The logits and their softmax, then the gradient; beside them the head's gradient.
    assert peak(128) == pytest.approx(2 * 4 * 128 * 50_000, rel=0.1)
    assert peak(1024) < 1.1 * peak(128)


def test_a_number_that_is_not_finite_reaches_the_loss() -> None:
    x_nd, weight_vd, targets_n = drawn(77, 1000, torch.float32)
    x_nd[70, 3] = torch.nan
    assert mean_in_chunks(x_nd, weight_vd, targets_n, 32).isnan()


def test_a_second_derivative_and_a_second_pass_are_refused() -> None:
    x_nd, weight_vd, targets_n = drawn(9, 1000, torch.float32)
    loss = mean_in_chunks(x_nd.requires_grad_(), weight_vd.requires_grad_(), targets_n, 4)
    with pytest.raises(UserError, match="without a second derivative"):
        torch.autograd.grad(loss, [x_nd], create_graph=True)
    loss = mean_in_chunks(x_nd, weight_vd, targets_n, 4)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_which_sizes_are_cut() -> None:
    assert chunk_of(1 << 40, 256) is None
    assert chunk_of(MOST_LOGITS // 50281, 50281) is None
    assert chunk_of(32 * 512, 50281) == 640
    assert chunk_of(1, MOST_LOGITS + 1) == 1
    for vocabulary in (257, 1000, 8192, 50281, 300_000):
        chunk = chunk_of(1 << 30, vocabulary)
        assert chunk is not None
        assert 0.5 * MOST_LOGITS < chunk * vocabulary <= MOST_LOGITS


def test_the_path_of_a_loss_is_told_with_its_reason() -> None:
    assert path(32 * 512, 50281) == (
        "cross entropy over 50,281 tokens in chunks of 640 of 16,384 positions: "
        "823,803,904 logits are more than 33,554,432"
    )
    assert path(512, 50281).endswith("50,281 tokens from whole logits: at most 33,554,432")
    assert path(1 << 40, 256).endswith("256 tokens from whole logits: bytes have few")
