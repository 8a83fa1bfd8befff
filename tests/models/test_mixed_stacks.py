"""Models whose layers have several cells: they are their layers, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.cells.channel_delta.rwkv7_layer import Rwkv7TimeMix
from elman.models.counts import Counts, count_params
from elman.models.language_model import LanguageModel
from elman.models.mixed import requested_backends, resolved_backends
from elman.models.sizing import solve
from elman.models.state_bytes import state_bytes, state_size
from elman.models.state_sizes import StateSize, key_of
from elman.sections.model import ModelConfig
from elman.training.flops import forward_flops
from elman.training.memory.estimate import PROCESS_BYTES, estimate_memory

E88, GDN = "{cell:e88,n_heads:2,n_state:4}", "{cell:fla_gdn,n_heads:2,head_dim:4}"
LLAMA = "{cell:llama,head_dim:4,mlp_width:8,context:9}"
RWKV7 = "{cell:rwkv7,head_dim:8,decay_rank:2,a_rank:2,v_rank:2,gate_rank:2}"
STACKS = {
    "two cells": f"[e1,{E88}]",
    "a pattern": f"[e1,{GDN},{GDN},{E88}]",
    "attention": f"[{LLAMA},e1,mingru,{{cell:e1,mlp_ratio:2}}]",
    "first values": f"[e1,{RWKV7},{RWKV7},{RWKV7}]",
    "places": "[{cell:e88,n_heads:2,n_state:4,at:[1,3]},{cell:e1,expansion:1,at:0}]",
}
stacks = pytest.mark.parametrize("layers", STACKS.values(), ids=STACKS)


def config(layers: str, *more: str, dim: int = 8) -> ModelConfig:
    """Return a model of four layers whose own cell is e1."""
    sizes = (f"model.dim={dim}", "model.depth=4", "model.allow_unaligned=true")
    return compose_config(["model=e1", *sizes, f"model.layers={layers}", *more]).model


def doubled(layers: str, *more: str) -> LanguageModel:
    """Return a model in fp64 with weights drawn at random, none of them zero."""
    torch.manual_seed(0)
    model = build_model(config(layers, *more), dtype=torch.float64, backend="reference")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def shared(dim: int) -> int:
    """Return the parameters that belong to no layer: embedding and final norm."""
    return 256 * dim + dim


@stacks
def test_the_count_is_the_sum_of_the_counts_of_the_layers(layers: str) -> None:
    model = config(layers)
    parts = [count_params(part) - shared(8) for part in model.parts()]
    assert count_params(model) == sum(parts) + shared(8)


@stacks
def test_the_counts_that_solve_uses_are_those_of_whole_models(layers: str) -> None:
    model = config(layers)
    counts = Counts(model, count_params, lambda seen: None)
    for dim, depth in ((8, 4), (16, 8), (8, 12)):
        whole = model.model_copy(update={"dim": dim, "depth": depth})
        assert counts.at({"dim": dim, "depth": depth}) == count_params(whole)


def test_solve_finds_a_depth_that_the_layers_fit() -> None:
    model = config(STACKS["a pattern"])
    target = count_params(model.model_copy(update={"depth": 13 * 4}))
    found = solve(model, count_params, target + 5, "depth")
    assert (found.nearest.size, found.below.size, found.above.size) == (52, 48, 56)


def test_solve_resizes_the_models_own_cell() -> None:
    model = compose_config(
        ["model=e88_tiny", "model.depth=4", "model.layers=[e88,e88,e1,e1]"]
    ).model
    found = solve(model, count_params, count_params(model) + 2 * 16 * 1000, "n_heads")
    resized = found.nearest.config
    assert resized.options["n_heads"] > model.options["n_heads"]
    assert [part.cell for part in resized.parts()] == ["e88", "e1"]
    assert count_params(resized) == found.nearest.count


@stacks
def test_operations_are_the_sums_of_those_of_the_layers(layers: str) -> None:
    model = config(layers)
    head, row = 2 * 8 * 256 * 32, range(32)
    parts = [forward_flops(part, row) - head for part in model.parts()]
    assert forward_flops(model, row) == sum(parts) + head


def test_more_layers_of_one_cell_take_its_operations() -> None:
    row = range(32)
    each = [forward_flops(config(f"[e1,{one}]"), row) for one in (E88, LLAMA)]
    both = forward_flops(config(f"[e1,{E88},{LLAMA},e1]"), row)
    assert both == pytest.approx(sum(each) / 2, rel=1e-12)


def test_of_several_kinds_of_rwkv7_the_first_layer_alone_has_no_values_to_mix_in() -> None:
    """Kinds that differ in nothing that costs operations cost what one kind does."""
    other = RWKV7[:-1] + ",norm_eps:0.001}"
    one, two = (f"[e1,{RWKV7},{last},{last}]" for last in (RWKV7, other))
    assert len(config(two).parts()) == 3
    assert forward_flops(config(two), range(32)) == forward_flops(config(one), range(32))


def test_memory_is_that_of_the_layers() -> None:
    run = compose_config(["model=e1", "train.batch_size=4", "train.chunk_size=64"])

    def needed(model: ModelConfig) -> int:
        estimate = estimate_memory(run.model_copy(update={"model": model}))
        return estimate.total - PROCESS_BYTES

    both = config(f"[e1,{E88}]", dim=64)
    one, other = both.parts()
    halves = [needed(part.model_copy(update={"depth": 4})) for part in (one, other)]
    assert needed(both) == pytest.approx(sum(halves) / 2, rel=0.02)
    assert needed(config("[e1,e1]", dim=64)) == needed(config("null", dim=64))


def test_the_state_of_a_layer_is_the_mean_over_the_layers() -> None:
    model = config(f"[e1,{E88},{LLAMA},{E88}]")
    e1, e88, llama = (state_size(part) for part in model.parts())
    assert llama == StateSize(0, 2 * 2 * 8, 8)
    found = state_size(model)
    assert found == StateSize(-(-(e1.fixed + 2 * e88.fixed) // 4), llama.per_byte // 4, 8)


def test_every_attention_of_a_stack_grows_to_a_limit_of_its_own() -> None:
    model = config(f"[e1,{LLAMA},{LLAMA.replace('context:9', 'context:3')},e1]")
    e1, nine, three = (state_size(part) for part in model.parts())
    assert e1 is not None
    assert (nine, three) == (StateSize(0, 32, 8), StateSize(0, 32, 2))
    for positions, kept in ((1, 1 + 1), (5, 5 + 2), (100, 8 + 2)):
        mean = -(-(2 * e1.fixed + 32 * kept) // 4)
        assert state_bytes(model, positions, narrow_bytes=2) == mean


def test_layers_before_the_first_other_one_have_the_weights_of_the_model_of_one_cell() -> None:
    """Weights are drawn layer by layer, and the embedding behind the last one."""
    models = []
    for layers in ("null", "[{cell:e88,n_heads:2,n_state:4,at:2}]"):
        torch.manual_seed(3)
        models.append(build_model(config(layers)).state_dict())
    plain, mixed = models
    for name in plain:
        if name.startswith(("layers.0.", "layers.1.")):
            assert torch.equal(plain[name], mixed[name])
    assert not torch.equal(plain["layers.3.in_proj"], mixed["layers.3.in_proj"])
    assert not torch.equal(plain["embedding"], mixed["embedding"])


def test_states_counted_ahead_are_those_of_the_whole_stack() -> None:
    names = {key_of(config(layers)) for layers in STACKS.values()}
    assert len(names | {key_of(config("null"))}) == len(STACKS) + 1


@stacks
def test_gradients_are_those_of_central_differences(layers: str) -> None:
    model = doubled(layers, "model.mlp_ratio=0.5")
    tokens = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(1))
    named = dict(model.named_parameters())
    names = [name for name, one in named.items() if one.requires_grad]

    def loss(*weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        found: Tensor = torch.func.functional_call(
            _Loss(model), {f"model.{name}": one for name, one in given.items()}, (tokens,)
        )
        return found

    weights = tuple(named[name].detach().clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)


class _Loss(nn.Module):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        loss, _ = self.model.loss(tokens)
        return loss


@stacks
def test_states_carry_every_layer_from_part_to_part(layers: str) -> None:
    model = doubled(layers)
    tokens = torch.randint(0, 256, (2, 12))
    whole, last = model(tokens)
    states, parts = None, []
    for begin, end in zip((0, 5, 6), accumulate((5, 1, 6)), strict=True):
        logits, states = model(tokens[:, begin:end], states)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    for one, other in zip(states, last, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name])


def test_every_layer_has_the_mlp_that_its_entry_says() -> None:
    model = doubled(
        f"[{LLAMA},e1,{{cell:e1,mlp_ratio:20}},{{cell:e1,mlp_ratio:0}}]", "model.mlp_ratio=2"
    )
    widths = [getattr(mlp, "out_proj", torch.empty(0, 0)).shape[-1] for mlp in model.mlps]
    assert widths == [0, 128, 256, 0]


def test_rwkv7_mixes_in_the_values_of_the_first_layer_of_its_own() -> None:
    model = doubled(STACKS["first values"])
    first, *others = [one for one in model.layers if isinstance(one, Rwkv7TimeMix)]
    assert first.v_lora is None
    assert all(one.v_lora is not None and one.first is first.first for one in others)


def test_a_stack_of_one_cell_has_the_weights_of_the_model_of_that_cell() -> None:
    models = []
    for layers in ("null", "[e1,e1]", "[{cell:e1,at:[2]}]"):
        torch.manual_seed(3)
        models.append(build_model(config(layers)).state_dict())
    for other in models[1:]:
        assert other.keys() == models[0].keys()
        assert all(torch.equal(other[name], models[0][name]) for name in other)


@pytest.mark.parametrize(
    ("requested", "each"),
    [
        ("auto", ["auto", "auto", "auto"]),
        ("reference", ["reference", "reference", "torch"]),
        ("cpu", ["cpu", "auto", "auto"]),
        ("triton", ["auto", "triton", "auto"]),
        ("cuda", ["cuda", "auto", "cuda"]),
        ("cpu+reference+torch", ["cpu", "reference", "torch"]),
    ],
)
def test_a_backend_is_that_of_the_cells_that_have_it(requested: str, each: Sequence[str]) -> None:
    model = config(f"[e1,{GDN},{GDN},{LLAMA}]")
    assert requested_backends(model, requested) == each


def test_the_backends_of_a_stack_are_joined() -> None:
    model = config(f"[e1,{GDN},{GDN},{LLAMA}]")
    assert resolved_backends(model, "reference", "cpu") == "reference+reference+torch"
    assert resolved_backends(config(f"[e1,{GDN}]"), "reference", "cpu") == "reference"


@pytest.mark.parametrize(
    ("requested", "line"),
    [
        ("metal", "kernels.backend=metal: no such backend"),
        ("torch", "kernels.backend=torch: cell e1 has only reference, cpu and cuda"),
        (
            "cpu+cpu+cpu",
            "kernels.backend=cpu+cpu+cpu: 3 names, and the layers of e1 are of 2 kinds",
        ),
    ],
)
def test_a_backend_that_no_cell_has_is_refused(requested: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(config(f"[e1,{GDN}]"), backend=requested)
    assert str(caught.value).startswith(line)
