"""Floating-point operations of every cell: as counted, and as the equations have them."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import elman.layers
from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.cells import registry
from elman.sections.model import ModelConfig
from elman.training import flops
from elman.training.flops import flops_per_byte, forward_flops
from tests.models.cases import CASES, Case

DIM, VOCABULARY = 16, 256
HEAD = 2 * VOCABULARY * DIM

# What one step does with a number of the state, by the first word of a case's name or all of it.
# 2 for a read or an outer product that is written; 1 for a decay, a gate or tanh; 3 for a norm.
DELTA = 7  # read of the key 2, write 2, query 2, and 1: tanh or a decay
OF_A_NUMBER = {
    "e14": 1 + 2 + 2,
    "e23": 2 + 2 + 3 + 2,  # scores and sum of a read; scores and a mean of two of a write
    "e63m": 2 + 1 + 2 + 2,
    "e70": 1 + 2 + 1 + 2,
    "e70-final": 1 + 2 + 2,
    "e71": 2 + 1 + 2 + 2,
    "e72": 2 + 1 + 2 + 2,
    "e73": 1 + 2 + 1 + 2,
    "e73-full": 2 + 2 + 1 + 2,
    "e73-delta": DELTA,
    "e73cp": DELTA,
    "e74": DELTA,
    "e74-retain": DELTA - 1 + 2 + 3,  # the mean of its squares, and RMSNorm in place of tanh
    "e74-state": DELTA - 1 + 2,
    "e74-residual": 2 + 1 + 1 + 2 + 1 + 2,
    "e74-ntm": 2 + 2 + 2 + 3,
    "e74-ema": 1 + 2 + 1 + 2,
    "e74-simple": 1 + 2 + 1 + 2,
    "e75": 1 + DELTA,
    "e75-vector-gate": DELTA,
    "e88": 1 + DELTA,
    "e97": 1 + DELTA,
    "e97-raw-linear": 1 + 2 + 2,
    "m2rnn": 1 + 1 + 1 + 3 + 2,  # outer product, sum, tanh, mean of two, query; and the mix
    "mamba2": 1 + 2 + 2,
    "mamba3": 1 + 2 + 2 + 2,
    "fla-gdn": DELTA,
    "kda": DELTA,
    "gdn2": DELTA,
    "deltaproduct": 1 + 2 * 4 + 2,
    "deltaproduct-plain": 3 * 4 + 2,
    "rwkv7": 1 + (2 + 2) + 2 + 2,  # a change of rank one, read and written; a write; the query
}


# Parameters of two and more axes that vectors are multiplied by, number by number.
POINTWISE = ("forget_bias", "value_residual", "B_bias", "C_bias", "r_k")
SHIFTS = tuple(f"x_{letter}" for letter in "rwkvag")


def config_of(case: Case, depth: int = 1) -> ModelConfig:
    """Return a model of a case's layers."""
    name, options = case
    cell = getattr(elman.layers, name).cell
    return ModelConfig(
        name=cell.name,
        cell=cell.name,
        dim=DIM,
        depth=depth,
        allow_unaligned=True,
        options=cell.parse_options(DIM, options),
    )


def layer_of(case: Case) -> Any:
    """Return its layer in the plain form, without memory."""
    name, options = case
    layer = getattr(elman.layers, name)
    return layer(DIM, **options, device="meta", backend=layer.cell.backends[0])


def weights(name: str, layer: nn.Module) -> int:
    """Return the multiply-adds of a layer's matrices for one byte."""
    found = sum(
        parameter.numel()
        for path, parameter in layer.named_parameters()
        if parameter.ndim > 1 and path.split(".")[-1] not in (*POINTWISE, *SHIFTS)
    )
    inner = int(DIM * layer.settings.values.get("expansion", 1.0))
    if name.startswith(("e42", "e37", "e60-tied")):
        found += inner**2  # one matrix for the input and the state
    if name == "e0-orthogonal":
        found += inner**2  # a fixed matrix is no parameter
    if name == "e74-lowrank":
        found += 2 * layer.basis.numel()  # fixed too; it meets the key and the query
    if name.startswith("m2rnn"):
        found -= layer.residual.numel()  # a factor of each value
        found += layer.mix.numel() * (layer.state_shapes()["S"][2] - 1)  # it meets every column
    return found


def state_numbers(layer: Any) -> int:
    """Return how many numbers the states that are matrices have."""
    with torch.no_grad():
        _, state = layer(torch.empty(1, 1, DIM, device="meta"))
    return sum(prod(state[part].shape) for part in ("S", "tape") if part in state)


@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_of_the_equations(name: str) -> None:
    layer = layer_of(CASES[name])
    family = "fla-gdn" if name.startswith("fla-gdn") else name.split("-")[0]
    each = OF_A_NUMBER.get(name, OF_A_NUMBER.get(family, 0))
    if name == "e23-one-slot":
        each = 6  # a state that is one vector: its two reads alone are products
    positions = range(5)
    expected = 2 * weights(name, layer) + HEAD + each * state_numbers(layer)
    attended = 0
    if name.startswith("llama"):
        context = layer.settings.count("context") or 5
        attended = 4 * DIM * sum(min(place + 1, context) for place in positions)
    assert forward_flops(config_of(CASES[name]), positions) == 5 * expected + attended


def test_every_cell_has_a_case() -> None:
    counted = {getattr(elman.layers, name).cell.name for name, _ in CASES.values()}
    assert counted >= set(registry.cells())


@pytest.mark.parametrize("name", ["e88", "llama", "rwkv7", "m2rnn", "fla-gdn"])
def test_operations_of_layers_add_up(name: str) -> None:
    one, *more = (
        forward_flops(config_of(CASES[name], depth), range(4)) for depth in (1, 2, 3, 4, 6)
    )
    each = more[1] - more[0]
    assert more == [one + (more[0] - one) + n * each for n in (0, 1, 2, 4)]


@pytest.mark.parametrize("name", ["e1", "mingru", "e88", "llama"])
def test_a_pass_that_computes_has_the_products_that_pytorch_counts(name: str) -> None:
    config, steps = config_of(CASES[name]), 32
    model = build_model(config, backend=registry.cell(config.cell).backends[0])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, steps, dtype=torch.long))
    ours = forward_flops(config, range(steps))
    layer, row = layer_of(CASES[name]), float(steps)
    if name == "e88":
        ours -= 4 * state_numbers(layer) * row  # all but the reads
        ours += 2 * state_numbers(layer)  # the first read stands before the loop
    if name == "llama":
        ours -= 4 * DIM * row * (row + 1) / 2  # attention: one fused operation
    assert counter.get_total_flops() == ours


def test_a_row_is_attended_to_from_where_it_begins() -> None:
    config = compose_config(["model=llama", "model.context=20", "train.chunk_size=8"])
    carried = config.train.model_copy(update={"tbptt": True})
    fresh = flops_per_byte(config.model, config.train)
    continued = flops_per_byte(config.model, carried)
    channels = config.model.dim * config.model.depth
    # 1 to 8 positions, 4.5 on the average, or all 20 that the limit allows.
    assert continued - fresh == pytest.approx(3 * 4 * channels * (20 - 4.5))


def test_an_mlp_behind_the_mixers_counts() -> None:
    plain = config_of(CASES["e88"])
    wide = plain.model_copy(update={"mlp_ratio": 8.0})
    difference = forward_flops(wide, range(1)) - forward_flops(plain, range(1))
    assert difference == 2 * 3 * DIM * wide.mlp_width


def test_an_operator_without_a_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.library.custom_op("elman_test::opaque", mutates_args=())
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    opaque.register_fake(torch.empty_like)
    layer = elman.layers.E1
    before = layer.forward
    monkeypatch.setattr(
        layer, "forward", lambda self, x, *rest: before(self, torch.ops.elman_test.opaque(x), *rest)
    )
    with pytest.raises(UserError, match="cell e1: its plain form runs elman_test::opaque"):
        forward_flops(config_of(CASES["e1"]), range(2))


@pytest.mark.parametrize("name", CASES)
def test_counting_asks_nothing_of_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a sweep counts before it is told its GPU; CUDA looks for GPUs only once."""

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("CUDA was asked before the job had its GPU")

    for function in ("is_available", "device_count", "current_device", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, function, asked)
    for function in ("get_device_properties", "init", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, function, asked)
    forward_flops(config_of(CASES[name]), range(2))


def test_operations_are_counted_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = flops.forward_flops

    def noted(config: ModelConfig, row: range) -> float:
        counted.append(len(row))
        return count(config, row)

    monkeypatch.setattr(flops, "_counted", {})
    monkeypatch.setattr(flops, "forward_flops", noted)
    config = compose_config(["model=e88_tiny"])
    longer = config.train.model_copy(update={"chunk_size": 64, "seed": 7})
    first = flops_per_byte(config.model, config.train)
    assert flops_per_byte(config.model, config.train) == first
    assert counted == [config.train.chunk_size]
    flops_per_byte(config.model, longer)
    wide = config.model.model_copy(update={"dim": 128, "expected_params": None})
    assert flops_per_byte(wide, config.train) < first
    assert counted == [config.train.chunk_size, 64, config.train.chunk_size]
