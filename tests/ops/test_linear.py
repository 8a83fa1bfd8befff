"""Linear maps whose weights are cast ahead of a pass: autocast's bits by fewer operators."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from elman import layers
from elman.models.language_model import LanguageModel
from elman.ops import linear as module
from elman.ops.linear import Weights, linear, narrow
from elman.ops.silu_linear import silu_linear

BF16, FP32 = torch.bfloat16, torch.float32
Map = Callable[..., Tensor]


def normal(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameter(*shape: int, dtype: torch.dtype = FP32, seed: int = 1) -> nn.Parameter:
    return nn.Parameter(normal(*shape, dtype=dtype, seed=seed))


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", BF16, enabled=enabled)


def results(run: Map, x: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the output of a pass under autocast and the gradients of leaves."""
    with autocast():
        y = run(x)
    return [y.detach(), *torch.autograd.grad(y, leaves, y.detach().sin())]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous() == other.is_contiguous()
        assert torch.equal(one, other)


def passes(weights: Weights, run: Map, x: Tensor, leaves: list[Tensor]) -> list[list[Tensor]]:
    """Return the results of a pass that knows no weights, and of the next one."""

    def within(x: Tensor) -> Tensor:
        with weights.cast(x):
            return run(x)

    return [results(within, x, leaves) for _ in range(2)]


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, torch.dtype]]:
    """Note how many tensors are cast at once, and to what."""
    seen: list[tuple[int, torch.dtype]] = []
    cast = module._cast

    def note(tensors: list[Tensor], dtype: torch.dtype, *rooms: Any) -> list[Tensor]:
        seen.append((len(tensors), dtype))
        return cast(tensors, dtype, *rooms)

    monkeypatch.setattr(module, "_cast", note)
    return seen


# ------------------------------------------------------------------------- autocast's bits

SHAPES = {
    "rows": (2, 3, 8),
    "one-step": (2, 1, 8),
    "no-rows": (0, 3, 8),
    "a-vector": (8,),
    "four-axes": (2, 1, 3, 8),
}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_autocasts(casts, shape, dtype, bias) -> None:
    x = normal(*shape, dtype=dtype).requires_grad_()
    leaves = [x, parameter(5, 8), *([parameter(5)] if bias else [])]
    wanted = results(lambda x: functional.linear(x, *leaves[1:]), x, leaves)
    for found in passes(Weights(), lambda x: linear(x, *leaves[1:]), x, leaves):
        assert_same(found, wanted)
    assert casts == [(1, BF16), (1, FP32)]


def test_silu_of_the_input_is_projected_with_the_same_bits(casts) -> None:
    x, weight = normal(2, 3, 8, dtype=BF16).requires_grad_(), parameter(5, 8)
    wanted = results(lambda x: silu_linear(x, weight), x, [x, weight])
    for found in passes(Weights(), lambda x: silu_linear(x, weight), x, [x, weight]):
        assert_same(found, wanted)
    assert casts == [(1, BF16), (1, FP32)]


@pytest.mark.parametrize("layout", ["transposed", "expanded", "every-other"])
def test_inputs_and_gradients_of_any_layout(layout) -> None:
    def laid(x: Tensor) -> Tensor:
        if layout == "expanded":
            return x[:1].expand_as(x)
        return x.mT.contiguous().mT if layout == "transposed" else torch.stack([x, x], -1)[..., 0]

    x, weight = normal(4, 3, 8).requires_grad_(), parameter(8, 8)

    def run(map_: Map) -> Map:
        return lambda x: laid(map_(laid(x), weight))

    assert not laid(x).is_contiguous()
    wanted = results(run(functional.linear), x, [x, weight])
    for found in passes(Weights(), run(linear), x, [x, weight]):
        assert_same(found, wanted)


def test_without_autocast_it_is_pytorchs_own(casts) -> None:
    x, weight, bias = normal(2, 3, 8).requires_grad_(), parameter(5, 8), parameter(5)
    weights = Weights()
    with autocast(), weights.cast(x):
        linear(x, weight, bias)
    with weights.cast(x):
        y = linear(x, weight, bias)
    assert casts == []
    wanted = functional.linear(x, weight, bias)
    assert y.dtype == FP32
    assert torch.equal(y, wanted)
    assert torch.equal(*(torch.autograd.grad(one.sum(), weight)[0] for one in (y, wanted)))


# ------------------------------------------------------------------------- which weights


def test_a_weight_of_several_maps_is_cast_once(casts) -> None:
    x, weight = normal(2, 8).requires_grad_(), parameter(8, 8)

    def run(map_: Map) -> Map:
        return lambda x: map_(map_(x, weight), weight)

    *_, found = passes(Weights(), run(linear), x, [x, weight])
    assert casts == [(1, BF16), (1, FP32)]
    assert_same(found, results(run(functional.linear), x, [x, weight]))


def test_weights_that_are_computed_frozen_or_of_other_dtypes_are_autocasts(casts) -> None:
    x, weight = normal(2, 8).requires_grad_(), parameter(6, 8)
    frozen = parameter(4, 8).requires_grad_(False)
    narrow_, half = parameter(4, 8, dtype=BF16), parameter(4, 8, dtype=torch.float16)

    def run(map_: Map) -> Map:
        def maps(x: Tensor) -> Tensor:
            given = (weight[:4], weight.chunk(2)[1], 2 * weight, frozen, narrow_, half)
            return torch.cat([map_(x, one) for one in given], dim=-1)

        return maps

    leaves = [x, weight, narrow_, half]
    wanted = results(run(functional.linear), x, leaves)
    for found in passes(Weights(), run(linear), x, leaves):
        assert_same(found, wanted)
    assert casts == []


def test_fp64_stays_fp64() -> None:
    x, weight = normal(2, 8, dtype=torch.float64).requires_grad_(), parameter(5, 8).double()
    weight = nn.Parameter(weight.detach())
    for found in passes(Weights(), lambda x: linear(x, weight), x, [x, weight]):
        assert {one.dtype for one in found} == {torch.float64}


def test_a_pass_casts_what_the_last_one_read(casts) -> None:
    x, ours = normal(2, 8), [parameter(5, 8, seed=seed) for seed in range(4)]
    weights = Weights()
    for chosen in ((0, 1), (0, 1, 2), (3,), (3,)):
        with autocast(), weights.cast(x):
            found = [linear(x, ours[n]) for n in chosen]
        with autocast():
            assert_same(found, [functional.linear(x, ours[n]) for n in chosen])
    assert [number for number, _ in casts] == [2, 3, 1]


def test_every_pass_casts_the_numbers_of_its_own_time() -> None:
    x, weight, weights = normal(2, 8), parameter(5, 8), Weights()
    for _ in range(3):
        with torch.no_grad():
            weight.mul_(2)
        with autocast(), weights.cast(x):
            found = linear(x, weight)
        with autocast():
            assert torch.equal(found, functional.linear(x, weight))


def test_a_pass_that_fails_leaves_nothing_behind() -> None:
    x, weight, weights = normal(2, 8), parameter(5, 8), Weights()

    def fail() -> None:
        with autocast(), weights.cast(x):
            assert linear(x, weight).dtype == BF16
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        with autocast():
            assert narrow(weight) is weight


def test_passes_within_passes_read_their_own_weights(casts) -> None:
    x, outer, inner = normal(2, 8), Weights(), Weights()
    ours, theirs, more = (parameter(8, 8, seed=seed) for seed in range(3))
    for _ in range(2):
        with autocast(), outer.cast(x):
            linear(x, ours)
            with inner.cast(x):
                linear(x, theirs)
            linear(x, more)
    assert [number for number, _ in casts] == [2, 1]


def test_another_thread_has_no_part_in_a_pass() -> None:
    x, weight, weights = normal(2, 8), parameter(5, 8), Weights()
    seen: list[Tensor] = []

    def look() -> None:
        with autocast():
            seen.append(narrow(weight))

    for _ in range(2):
        with autocast(), weights.cast(x):
            linear(x, weight)
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            look()
    assert [one is weight for one in seen] == [True, True, True, False]


def test_where_autocast_is_off_within_a_pass_weights_are_as_they_are() -> None:
    x, weight, weights = normal(2, 8), parameter(5, 8), Weights()
    for _ in range(2):
        with autocast(), weights.cast(x):
            linear(x, weight)
            with autocast(enabled=False):
                found = linear(x, weight)
    assert torch.equal(found, functional.linear(x, weight))


# ------------------------------------------------------------------------- gradients


def test_a_gradient_alone_may_be_asked_for() -> None:
    x, ours = normal(2, 8), [parameter(8, 8, seed=seed) for seed in range(3)]

    def run(map_: Map) -> Map:
        return lambda x: map_(map_(map_(x, ours[0]), ours[1]), ours[2])

    for asked in ours:
        *_, found = passes(Weights(), run(linear), x, [asked])
        assert_same(found, results(run(functional.linear), x, [asked]))


def test_a_weight_that_the_loss_does_not_reach_has_no_gradient() -> None:
    x, unused, used, weights = normal(2, 8), parameter(5, 8), parameter(5, 8, seed=2), Weights()
    for _ in range(2):
        with autocast(), weights.cast(x):
            _, y = linear(x, unused), linear(x, used)
        used.grad = None
        y.sum().backward()
        assert unused.grad is None
        with autocast():
            wanted = torch.autograd.grad(functional.linear(x, used).sum(), used)
        assert_same([used.grad], list(wanted))


def test_gradients_accumulate_in_fp32_of_their_own() -> None:
    x, weights = normal(2, 8), Weights()
    ours, others = ([parameter(5, 8, seed=seed) for seed in (1, 2)] for _ in range(2))
    for _ in range(3):
        with autocast(), weights.cast(x):
            total = torch.stack([linear(x, weight) for weight in ours])
        total.sum().backward()
        with autocast():
            total = torch.stack([functional.linear(x, weight) for weight in others])
        total.sum().backward()
    assert_same([weight.grad for weight in ours], [weight.grad for weight in others])
    storages = {weight.grad.untyped_storage().data_ptr() for weight in ours}
    assert len(storages) == len(ours)


def test_second_derivatives_are_autocasts() -> None:
    x, weight, weights = normal(3, 8).requires_grad_(), parameter(5, 8), Weights()

    def second(map_: Map, ahead: bool) -> list[Tensor]:
        with autocast(), weights.cast(x) if ahead else nullcontext():
            y = map_(x, weight)
        first = torch.autograd.grad(y.float().pow(3).sum(), [x, weight], create_graph=True)
        return list(torch.autograd.grad(sum(one.square().sum() for one in first), [x, weight]))

    wanted = second(functional.linear, False)
    assert all(one.any() for one in wanted)
    for _ in range(2):
        assert_same(second(linear, True), wanted)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_what_is_computed_again_has_the_same_gradients(casts, reentrant) -> None:
    x, weight = normal(2, 8).requires_grad_(), parameter(8, 8)

    def again(x: Tensor) -> Tensor:
        return checkpoint(lambda x: linear(x, weight).sin(), x, use_reentrant=reentrant)

    wanted = results(lambda x: functional.linear(x, weight).sin(), x, [x, weight])
    leaves = [x, weight]
    for leaf in leaves:
        leaf.grad = None
    weights = Weights()
    for _ in range(2):
        with autocast(), weights.cast(x):
            y = again(x)
        y.backward(wanted[0].sin())
        assert_same([y.detach(), *(leaf.grad for leaf in leaves)], wanted)
        x.grad = weight.grad = None
    assert casts[0] == (1, BF16)


def test_no_more_is_saved_than_autocast_saves() -> None:
    x, weight = normal(2, 3, 8, dtype=BF16).requires_grad_(), parameter(5, 8)

    def saved(run: Map) -> list[tuple[torch.Size, torch.dtype]]:
        found: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
            run(x)
        return [(one.shape, one.dtype) for one in found]

    weights = Weights()

    def ahead(x: Tensor) -> Tensor:
        with autocast(), weights.cast(x):
            return linear(x, weight)

    def plain(x: Tensor) -> Tensor:
        with autocast():
            return functional.linear(x, weight)

    assert saved(plain) == saved(ahead) == saved(ahead)


# ------------------------------------------------------------------------- who has it


class Counting(TorchDispatchMode):
    """Looks at every operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "watcher", [torch.no_grad, torch.inference_mode, Counting], ids=lambda one: one.__name__
)
def test_nothing_is_cast_ahead_where_autocast_knows_better(casts, watcher) -> None:
    x, weight, weights = normal(2, 8), parameter(5, 8), Weights()
    for _ in range(3):
        with watcher(), autocast(), weights.cast(x):
            found = linear(x, weight)
        with watcher(), autocast():
            assert torch.equal(found, functional.linear(x, weight))
    assert casts == []


def test_nothing_is_cast_ahead_on_the_meta_device(casts) -> None:
    x, weight, weights = (
        normal(2, 8).to("meta"),
        nn.Parameter(parameter(5, 8).to("meta")),
        Weights(),
    )
    for _ in range(3):
        with autocast(), weights.cast(x):
            linear(x, weight)
    assert casts == []


def test_transforms_of_functions_see_pytorchs_own(casts) -> None:
    x, weight, weights = normal(4, 8), parameter(5, 8), Weights()

    def loss(x: Tensor, map_: Map) -> Tensor:
        with autocast(), weights.cast(x):
            return map_(x, weight).float().square().sum()

    for _ in range(2):
        loss(x, linear)  # so that there is something to cast
        found, wanted = (
            torch.func.vmap(torch.func.grad(lambda x, map_=map_: loss(x, map_)))(x)
            for map_ in (linear, functional.linear)
        )
        assert torch.equal(found, wanted)
    assert [number for number, _ in casts] == [1]


def test_torch_compile_takes_a_pass_as_one_graph(casts) -> None:
    x, weight, weights = normal(2, 8).requires_grad_(), parameter(5, 8), Weights()

    def run(x: Tensor) -> Tensor:
        with weights.cast(x):
            return linear(x, weight)

    for _ in range(2):
        results(run, x, [x, weight])
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    del casts[:]
    found = results(compiled, x, [x, weight])
    assert casts == []
    wanted = results(lambda x: functional.linear(x, weight), x, [x, weight])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_compiled_part_of_a_pass_casts_its_weight_itself() -> None:
    x, ours, theirs, weights = normal(2, 8), parameter(8, 8), parameter(8, 8, seed=2), Weights()
    compiled = torch.compile(lambda x: linear(x, theirs), fullgraph=True, backend="aot_eager")

    def run(part: Map, map_: Map) -> Map:
        return lambda x: part(map_(x, ours))

    wanted = results(
        run(lambda x: functional.linear(x, theirs), functional.linear), x, [ours, theirs]
    )
    for found in passes(weights, run(compiled, linear), x, [ours, theirs]):
        assert_same(found, wanted)
    assert [*map(id, weights._read)] == [id(ours)]


# ------------------------------------------------------------------------- models

LAYERS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "E88": (layers.E88, {"n_heads": 2, "n_state": 4}),
    "E75": (layers.E75, {"n_state": 4}),
    "E70": (layers.E70, {"n_state": 4}),
    "E61": (layers.E61, {}),
    "E1": (layers.E1, {}),
    "llama": (layers.Llama, {"head_dim": 8, "mlp_width": 16}),
    "mamba2": (layers.Mamba2, {"head_dim": 8, "n_state": 4, "backend": "reference"}),
    "fla-gdn": (layers.GatedDeltaNet, {"n_heads": 2, "backend": "reference"}),
}
READ = {
    "E88": {"in_proj", "out_proj"},
    "E75": {"in_proj", "cell_proj", "out_proj"},
    "E70": {"in_proj", "cell_proj", "out_proj"},
    "E61": {"in_proj", "cell_proj", "out_proj"},
    "E1": {"in_proj", "input", "out_proj"},
    "llama": {"in_proj", "out_proj", "mlp_in", "mlp_out"},
    "mamba2": {"in_proj.weight", "out_proj.weight"},
    "fla-gdn": {f"{name}_proj.weight" for name in "qkvabgo"},
}
"""The projections of each layer: all of its products but those of its recurrence."""


def model(name: str) -> LanguageModel:
    torch.manual_seed(3)
    make, options = LAYERS[name]
    return LanguageModel(16, [make(16, **options) for _ in range(2)])


def train(made: LanguageModel) -> list[Tensor]:
    tokens = torch.arange(22).view(2, 11) % 7
    with autocast():
        loss, _ = made.loss(tokens)
    return [loss.detach(), *torch.autograd.grad(loss, [*made.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_a_models_projections_are_cast_at_once_with_autocasts_bits(casts, name) -> None:
    made = model(name)
    first, second = train(made), train(made)
    assert_same(first, second)
    expected = {"embedding"} | {f"layers.{n}.{one}" for n in range(2) for one in READ[name]}
    read = {id(one) for one in made._weights._read}
    assert {name for name, one in made.named_parameters() if id(one) in read} == expected
    assert casts == [(len(expected), BF16), (len(expected), FP32)]


@pytest.mark.parametrize("name", ["E88", "llama"])
def test_a_model_that_computes_again_has_the_same_gradients(name) -> None:
    made = model(name)
    wanted = train(made)
    made.activation_checkpointing = True
    for _ in range(2):
        assert_same(train(made), wanted)


def test_a_copy_of_a_model_reads_its_own_weights(casts) -> None:
    made = model("E88")
    train(made)
    other = copy.deepcopy(made)
    with torch.no_grad():
        for one in other.parameters():
            one.mul_(0.5)
    fresh = model("E88")
    fresh.load_state_dict(other.state_dict())
    wanted = train(fresh)
    assert casts == []
    assert_same(train(other), wanted)
    assert len(casts) == 2
    assert made.state_dict().keys() == other.state_dict().keys() == fresh.state_dict().keys()


def test_a_step_has_one_cast_in_place_of_one_for_every_weight() -> None:
    made = model("E88")
    counts = []
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            train(made)
        counts.append(Counter(event.name for event in seen.events()))
    before, after = counts
    assert (before["aten::_foreach_copy_"], after["aten::_foreach_copy_"]) == (0, 2)
    # Five weights, and their gradients.
    assert before["aten::_to_copy"] - after["aten::_to_copy"] == 10
