"""Zeros that fill up the factors of a product: the same sums, and none on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from elman import layers
from elman.models.language_model import LanguageModel
from elman.ops.column_sum import op as column_sum
from elman.ops.common import padding
from elman.ops.linear import KeptCopies, Weights, joined, linear, narrow, padded_linear
from elman.ops.silu_linear import silu_linear

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
ROWS = (2, 40)  # 80 rows, enough to be filled up
PRODUCTS = {"mm", "addmm"}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of the CPU be padded as those of a GPU are."""
    monkeypatch.setattr(padding, "DEVICE", "cpu")


class Sizes(TorchDispatchMode):
    """Notes the sizes of the factors of all products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket.__name__ in PRODUCTS:
            left, right = [one for one in args if isinstance(one, Tensor)][-2:]
            self.found.append((*left.shape, right.shape[1]))
        return func(*args, **(kwargs or {}))


def normal(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameter(*shape: int, dtype: torch.dtype = FP32, seed: int = 1) -> nn.Parameter:
    return nn.Parameter(normal(*shape, dtype=dtype, seed=seed))


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", BF16, enabled=enabled)


def gradients(run: Callable[[], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    y = run()
    upstream = normal(*y.shape, dtype=y.dtype, seed=7)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


def distance(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest relative distance of tensors from exact ones."""
    pairs = zip(found, exact, strict=True)
    return max(float((one.to(FP64) - other).norm() / other.norm()) for one, other in pairs)


# ------------------------------------------------------------------------- one product

SIZES = {"columns": (13, 16), "rows": (16, 10), "both": (13, 10), "one": (1, 1)}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("way", ["ahead", "alone", "half"])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_are_within_the_rounding_of_the_plain_product(
    on_a_gpu, outputs, inputs, way, bias
) -> None:
    dtype = BF16 if way == "half" else FP32
    x = normal(*ROWS, inputs, dtype=dtype).requires_grad_()
    leaves = [x, parameter(outputs, inputs, dtype=dtype)]
    leaves += [parameter(outputs, dtype=dtype, seed=2)] if bias else []
    weights = Weights()

    def ours() -> Tensor:
        with autocast(way != "half"):
            if way != "ahead":
                return linear(*leaves)
            with weights.cast(x):
                return linear(*leaves)

    def plain() -> Tensor:
        with autocast(way != "half"):
            return functional.linear(*leaves)

    # The exact product of the numbers that the plain one rounds.
    wide = [leaf.detach().to(BF16).to(FP64).requires_grad_() for leaf in leaves]
    exact = gradients(lambda: functional.linear(*wide), wide)
    wanted = gradients(plain, leaves)
    for _ in range(2):
        found = gradients(ours, leaves)
        assert [one.shape for one in found] == [one.shape for one in wanted]
        assert [one.dtype for one in found] == [one.dtype for one in wanted]
        assert distance(found, exact) <= 1.5 * distance(wanted, exact) + 1e-6


@pytest.mark.parametrize("map_", [linear, silu_linear], ids=["linear", "silu"])
def test_all_three_products_have_sizes_of_whole_vectors(on_a_gpu, map_) -> None:
    x, weight = normal(*ROWS, 10).requires_grad_(), parameter(13, 10)
    with Sizes() as sizes, autocast():
        map_(x, weight).sum().backward()
    assert sorted(sizes.found) == sorted([(80, 16, 16), (80, 16, 16), (16, 80, 16)])


def test_the_output_is_a_view_of_wider_rows(on_a_gpu) -> None:
    x, weight = normal(*ROWS, 16), parameter(13, 16)
    with autocast():
        assert linear(x, weight).stride() == (40 * 16, 16, 1)
        wide = padded_linear(x, weight)
    assert wide.shape == (*ROWS, 16)
    assert not wide[..., 13:].any()


def test_a_weight_is_cast_and_filled_up_in_one_copy(on_a_gpu) -> None:
    x, weight, weights = normal(*ROWS, 16).requires_grad_(), parameter(13, 16), Weights()
    for _ in range(2):
        with autocast(), torch.profiler.profile() as seen, weights.cast(x):
            linear(x, weight)
        names = [event.name for event in seen.events()]
    assert names.count("aten::_foreach_copy_") == 1
    assert "aten::constant_pad_nd" not in names
    assert "aten::cat" not in names


def test_only_weights_of_padded_products_have_copies_with_room(on_a_gpu) -> None:
    """Two weights that are joined are filled up together, and the gradient of each is as it is."""
    x, weights = normal(*ROWS, 16).requires_grad_(), Weights()
    alone, parts = parameter(13, 16), [parameter(6, 16, seed=2), parameter(7, 16, seed=3)]
    for _ in range(2):
        with autocast(), weights.cast(x):
            y = linear(x, alone).sum() + linear(x, joined(parts)).sum()
            assert [narrow(part).shape for part in parts] == [part.shape for part in parts]
            assert not any(narrow(part)._is_view() for part in parts)
    y.backward()
    assert [one.grad.shape for one in (alone, *parts)] == [(13, 16), (6, 16), (7, 16)]


@pytest.mark.parametrize("sizes", [(13, 16), (16, 10), (24, 16)], ids=str)
def test_a_bias_whose_gradient_a_kernel_sums_is_padded_too(on_a_gpu, monkeypatch, sizes) -> None:
    monkeypatch.setattr(column_sum.cuda, "column_sum", lambda dy_no: dy_no.float().sum(0))
    leaves = [normal(*ROWS, sizes[1]).requires_grad_(), parameter(*sizes), parameter(sizes[0])]

    def run(map_: Callable[..., Tensor]) -> list[Tensor]:
        with autocast():
            return gradients(lambda: map_(*leaves), leaves)

    found = run(lambda *given: column_sum.biased_linear(*given, backend="cuda"))
    wanted = run(functional.linear)
    assert found[-1].shape == (sizes[0],)
    # The bias's gradient is summed in fp32 here, and rounded to bf16 there.
    torch.testing.assert_close(found[:-1], wanted[:-1])
    torch.testing.assert_close(found[-1], wanted[-1], rtol=2**-7, atol=2**-7)


def test_second_derivatives_are_those_of_the_plain_product(on_a_gpu) -> None:
    x, weight = normal(*ROWS, 10, dtype=BF16).requires_grad_(), parameter(13, 10, dtype=BF16)

    def second(map_: Callable[..., Tensor]) -> list[Tensor]:
        y = map_(x, weight)
        first = torch.autograd.grad(y.float().pow(3).mean(), [x, weight], create_graph=True)
        return list(torch.autograd.grad(sum(one.float().square().sum() for one in first), [weight]))

    torch.testing.assert_close(second(linear), second(functional.linear))


# ------------------------------------------------------------------------- who is left alone

ALONE = {
    "aligned": ((*ROWS, 16), (24, 16), BF16),
    "few-rows": ((2, 20, 16), (13, 16), BF16),
    "fp32": ((*ROWS, 16), (13, 16), FP32),
}


@pytest.mark.parametrize(("shape", "sizes", "dtype"), ALONE.values(), ids=ALONE)
def test_what_needs_no_zeros_has_the_bits_of_the_plain_product(
    on_a_gpu, shape, sizes, dtype
) -> None:
    leaves = [normal(*shape, dtype=dtype).requires_grad_(), parameter(*sizes, dtype=dtype)]
    found = gradients(lambda: linear(*leaves), leaves)
    wanted = gradients(lambda: functional.linear(*leaves), leaves)
    assert found[0].is_contiguous()
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_on_a_cpu_no_product_is_padded() -> None:
    leaves = [normal(*ROWS, 10, dtype=BF16).requires_grad_(), parameter(13, 10, dtype=BF16)]
    with Sizes() as sizes:
        found = gradients(lambda: linear(*leaves), leaves)
    wanted = gradients(lambda: functional.linear(*leaves), leaves)
    assert (80, 10, 13) in sizes.found
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_transforms_of_functions_see_no_zeros(on_a_gpu) -> None:
    x, weight = normal(3, *ROWS, 10, dtype=BF16), parameter(13, 10, dtype=BF16)

    def loss(x: Tensor, map_: Callable[..., Tensor]) -> Tensor:
        return map_(x, weight).float().square().sum()

    found, wanted = (
        torch.func.vmap(torch.func.grad(lambda x, map_=map_: loss(x, map_)))(x)
        for map_ in (linear, functional.linear)
    )
    assert torch.equal(found, wanted)


def test_copies_that_are_kept_for_a_text_are_read_as_they_are(on_a_gpu) -> None:
    weight, copies = parameter(13, 16), KeptCopies("cpu", few_rows=False)
    with torch.no_grad(), autocast(), copies.read():
        one, many = linear(normal(1, 1, 16), weight), linear(normal(*ROWS, 16), weight)
    assert one.is_contiguous()
    assert (one.shape, many.shape) == ((1, 1, 13), (*ROWS, 13))


# ------------------------------------------------------------------------- models

LAYERS: dict[str, tuple[Callable[..., nn.Module], int, dict[str, Any]]] = {
    "mamba2": (layers.Mamba2, 32, {"head_dim": 16, "n_state": 4, "backend": "reference"}),
    "mamba3": (layers.Mamba3, 32, {"head_dim": 16, "n_state": 6, "backend": "reference"}),
    "E88": (layers.E88, 32, {"n_heads": 3, "n_state": 4}),
    "E88-conv": (layers.E88, 32, {"n_heads": 3, "n_state": 4, "use_conv": True}),
    "kda": (layers.KimiDeltaAttention, 32, {"n_heads": 3, "head_dim": 16, "backend": "reference"}),
    "E1": (layers.E1, 20, {}),
    "E75": (layers.E75, 20, {"n_state": 3, "backend": "reference"}),
    "llama": (layers.Llama, 40, {"head_dim": 20, "mlp_width": 18}),
}


@pytest.fixture(params=LAYERS)
def made(request: pytest.FixtureRequest) -> LanguageModel:
    make, dim, options = LAYERS[request.param]
    torch.manual_seed(3)
    return LanguageModel(dim, [make(dim, **options) for _ in range(2)])


def train(model: LanguageModel, enabled: bool = True) -> list[Tensor]:
    tokens = torch.arange(82).view(2, 41) % 7
    with autocast(enabled):
        loss, _ = model.loss(tokens)
    return [loss.detach(), *torch.autograd.grad(loss, [*model.parameters()])]


def test_a_padded_model_has_the_gradients_of_the_plain_one(made, monkeypatch) -> None:
    plain = train(made)
    monkeypatch.setattr(padding, "DEVICE", "cpu")
    with Sizes() as sizes:
        train(made)
    padded = [one for one in sizes.found if one[0] == 80]
    assert padded
    assert all(size % 8 == 0 for one in padded for size in one)
    first, second = train(made), train(made)
    made.activation_checkpointing = True
    again = train(made)
    monkeypatch.setattr(padding, "DEVICE", "cuda")
    exact = train(made.double(), enabled=False)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    for found, wanted, right in zip(first, plain, exact, strict=True):
        assert found.shape == wanted.shape
        assert distance([found], [right]) <= 1.5 * distance([wanted], [right]) + 1e-3


def test_parameters_and_saved_weights_do_not_change(made, monkeypatch) -> None:
    before = {name: one.clone() for name, one in made.state_dict().items()}
    monkeypatch.setattr(padding, "DEVICE", "cpu")
    train(made)
    after = made.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
