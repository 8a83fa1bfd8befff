"""Resets in models: packed documents that do not see each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.blocks.conv import CausalConv
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from tests.models.cases import CASES, DIM, beginning, build

REFERENCE: dict[str, Any] = {"dtype": torch.float64, "backend": "reference"}
EXACT = {"rtol": 1e-8, "atol": 1e-11}
STARTS = ((0, 3), (0, 7), (0, 1, 2), (0,))
"""Where the documents of each row start; STEPS ends the last one."""
STEPS = 8
NEW = (False, False, False, True)
"""Whether a row drops the state that it is given."""
# Those that are not ours, and a tape that does not start from zeros.
OTHERS = {
    "llama",
    "mamba2",
    "mamba3",
    "fla_gdn",
    "kda",
    "gdn2",
    "deltaproduct",
    "rwkv7",
}


def refuses(layer: Any) -> bool:
    """Return whether a layer declares that it takes no resets."""
    return bool(layer.cell.no_resets(layer.settings.values))


MADE = {name: build(case, device="meta") for name, case in CASES.items()}
OURS = {name: case for name, case in CASES.items() if not refuses(MADE[name])}
ours = pytest.mark.parametrize("case", OURS.values(), ids=OURS)
# A second to compile each: a vector state, the slots, a convolution before and after, a norm.
MATRIX = ("e88-conv", "e75-post", "e14", "e63m-rnn", "e63m-lite", "e74-blockdiag", "e73-full")
KERNELS = [
    pytest.param(case, id=name)
    for name, case in OURS.items()
    if "cpu" in MADE[name].runnable.backends
    and (MADE[name].cell.engine != "matrix_state" or name in MATRIX)
]


def plain(case: Any) -> Any:
    """Return a layer in the plain form of its cell, in fp64."""
    backend = build(case, device="meta").cell.backends[0]
    return build(case, dtype=torch.float64, backend=backend)


def resets() -> Tensor:
    """Return where documents start."""
    resets_bt = torch.zeros(len(STARTS), STEPS, dtype=torch.bool)
    for b, (starts, new) in enumerate(zip(STARTS, NEW, strict=True)):
        resets_bt[b, list(starts[1:])] = True
        resets_bt[b, 0] = new
    return resets_bt


def given(layer: Any, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """Return an input and a state before it."""
    x = torch.randn(len(STARTS), STEPS, DIM, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        parts = layer(x)[1]
    state = {n: torch.randn_like(p) for n, p in beginning(layer, x, dict(parts)).items()}
    return x.requires_grad_(), {n: p.requires_grad_() for n, p in state.items()}


def apart(layer: Any, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Run every document by itself, the first of a row from its given state."""
    rows, lasts = [], []
    for b, (starts, new) in enumerate(zip(STARTS, NEW, strict=True)):
        carried = None if new else {name: part[b : b + 1] for name, part in state.items()}
        parts = []
        for begin, end in pairwise((*starts, STEPS)):
            y, last = layer(x[b : b + 1, begin:end], None if begin else carried)
            parts.append(y)
        rows.append(torch.cat(parts, dim=1))
        lasts.append(last)
    return torch.cat(rows), {name: torch.cat([last[name] for last in lasts]) for name in state}


def gradients(layer: Any, x: Tensor, state: dict[str, Tensor], run: Any) -> list[Tensor]:
    """Return outputs, and the gradients of input, state and weights by sums over them."""
    y, last = run(layer, x, state)
    generator = torch.Generator().manual_seed(7)
    outputs = [y, *(last[name] for name in state)]
    pulls = [
        torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for out in outputs
    ]
    weights = [p for p in layer.parameters() if p.requires_grad]
    found = torch.autograd.grad(outputs, [x, *state.values(), *weights], pulls, allow_unused=True)
    return [*outputs, *(torch.zeros(()) if one is None else one for one in found)]


def packed(layer: Any, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Run all documents of a row in one call."""
    return layer(x, state, resets())


@ours
def test_packed_documents_equal_documents_run_apart(case) -> None:
    """With their gradients; short ones too, which the convolution's window is longer than."""
    layer = plain(case)
    x, state = given(layer, torch.float64)
    for found, wanted in zip(
        gradients(layer, x, state, packed), gradients(layer, x, state, apart), strict=True
    ):
        torch.testing.assert_close(found, wanted.expand_as(found).to(found.dtype), **EXACT)


@pytest.mark.compiler
@pytest.mark.parametrize("case", KERNELS)
def test_kernels_run_packed_documents_apart(case) -> None:
    layer = build(case, dtype=torch.float32, backend="cpu")
    exact = plain(case)
    exact.load_state_dict(layer.state_dict())
    x, state = given(layer, torch.float32)
    wide = {n: part.detach().double().requires_grad_() for n, part in state.items()}
    wanted = gradients(exact, x.detach().double().requires_grad_(), wide, apart)
    for found, one in zip(gradients(layer, x, state, packed), wanted, strict=True):
        assert found.isfinite().all()
        assert (found.double() - one).norm() <= 2e-4 * one.norm() + 1e-6


@ours
def test_a_states_gradient_ends_at_the_first_reset(case) -> None:
    layer = plain(case)
    x, state = given(layer, torch.float64)
    y, _ = packed(layer, x, state)
    after = y[0, 3:].sum() + y[1, 7:].sum() + y[2, 1:].sum() + y[3].sum()
    dx, *dstate = torch.autograd.grad(after, [x, *state.values()], allow_unused=True)
    assert all(one is None or not one.any() for one in dstate)
    assert not dx[0, :3].any()
    assert not dx[1, :7].any()
    assert not dx[2, 0].any()


def test_the_cells_that_take_none_are_these() -> None:
    names = {name for name, cell in registry.cells().items() if cell.layer.startswith("elman.")}
    refusing = {
        name
        for name in names
        if registry.cell(name).no_resets(
            {n: option.default for n, option in registry.cell(name).options.items()}
        )
    }
    assert refusing == OTHERS | {"e23"}
    assert "e23-zero" in OURS


@pytest.mark.parametrize("name", [name for name in CASES if name not in OURS])
def test_a_layer_that_takes_none_says_why(name) -> None:
    layer = build(CASES[name])
    with pytest.raises(UserError) as caught:
        layer(torch.randn(len(STARTS), STEPS, DIM), None, resets())
    why = layer.cell.no_resets(layer.settings.values)
    assert str(caught.value) == (
        f"resets_bt: not with cell {layer.cell.name}: {why}; use resets_bt=None"
    )


def test_a_layer_of_somebody_else_says_what_to_add() -> None:
    class Old(elman.layers.E1):
        def forward(self, x_btd: Tensor, state: Any = None) -> Any:
            return super().forward(x_btd, state)

    with pytest.raises(UserError) as caught:
        Old(DIM)(torch.randn(len(STARTS), STEPS, DIM), None, resets())
    assert str(caught.value) == (
        "resets_bt: Old.forward does not take it; add resets_bt to its arguments, or use "
        "resets_bt=None"
    )


WRONG = {
    "shape": (torch.zeros(2, 4, dtype=torch.bool), r"resets of E1: shape \[2, 4\], expected \[2, "),
    "dtype": (torch.zeros(2, 5), "resets of E1: dtype float32, expected bool"),
    "kind": ([False], "resets of E1: list, expected a tensor"),
}


@pytest.mark.parametrize(("resets_bt", "words"), WRONG.values(), ids=WRONG)
def test_wrong_resets_are_refused(resets_bt, words) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        elman.layers.E1(DIM)(torch.randn(2, 5, DIM), None, resets_bt)


# ---- the convolution ----


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_the_convolution_does_not_look_across_a_reset(taps, steps) -> None:
    """Nor does its history for the next part."""
    generator = torch.Generator().manual_seed(3)
    conv = CausalConv(3, taps, bias=True, dtype=torch.float64)
    x = torch.randn(5, steps + 6, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    resets_bt = torch.rand(5, steps + 6, generator=generator) < 0.3
    y, history = conv(x[:, :steps], None, resets_bt[:, :steps])
    z, _ = conv(x[:, steps:], history, resets_bt[:, steps:])
    found = torch.cat([y, z], dim=1)
    rows = []
    for row, resets_t in zip(x, resets_bt, strict=True):
        starts = sorted({0, *resets_t.nonzero().flatten().tolist(), len(row)})
        pieces = [conv(row[None, a:b], None)[0] for a, b in pairwise(starts)]
        rows.append(torch.cat(pieces, dim=1))
    wanted = torch.cat(rows)
    torch.testing.assert_close(found, wanted)
    leaves = [x, conv.weight, conv.bias]
    pull = torch.randn(found.shape, dtype=torch.float64, generator=generator)
    for one, other in zip(
        torch.autograd.grad(found, leaves, pull),
        torch.autograd.grad(wanted, leaves, pull),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_the_convolution_in_bf16_sums_in_fp32() -> None:
    conv = CausalConv(16, 4, bias=True)
    x = torch.randn(2, 50, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        plain, _ = conv(x, None)
        y, history = conv(x, None, torch.zeros(2, 50, dtype=torch.bool))
    assert y.dtype == plain.dtype
    assert history.dtype == torch.bfloat16
    torch.testing.assert_close(y, plain, rtol=2e-2, atol=2e-2)


# ---- the model ----


@pytest.mark.parametrize("wrapper", ["rms", "legacy_ln"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_a_model_predicts_every_document_as_if_alone(wrapper, recomputed) -> None:
    torch.manual_seed(1)
    layers = [
        elman.layers.E88(DIM, n_heads=2, n_state=4, use_conv=True, **REFERENCE),
        elman.layers.E61(DIM, use_conv=True, **REFERENCE),
        elman.layers.E1(DIM, **REFERENCE),
    ]
    model = LanguageModel(DIM, layers, wrapper, dtype=torch.float64)
    model.activation_checkpointing = recomputed
    tokens = torch.randint(256, (1, 9))
    resets_bt = torch.zeros(1, 8, dtype=torch.bool)
    resets_bt[0, 5] = True
    loss, states = model.loss(tokens, None, resets_bt)
    first, _ = model.loss(tokens[:, :6])
    second, last = model.loss(tokens[:, 5:])
    torch.testing.assert_close(loss, (5 * first + 3 * second) / 8, rtol=1e-10, atol=0)
    for state, alone in zip(states, last, strict=True):
        for name, part in state.items():
            torch.testing.assert_close(part, alone[name], rtol=1e-9, atol=1e-11)
    weights = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(loss, weights),
        torch.autograd.grad((5 * first + 3 * second) / 8, weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


SEPARATOR = 30


def separated(reset_after: int | None) -> LanguageModel:
    """Return a model of three layers, one with a state of several parts."""
    torch.manual_seed(1)
    layers = [
        elman.layers.E88(DIM, n_heads=2, n_state=4, use_conv=True, **REFERENCE),
        elman.layers.CudaLSTM(DIM, **REFERENCE),
        elman.layers.E61(DIM, use_conv=True, **REFERENCE),
    ]
    model = LanguageModel(DIM, layers, reset_after=reset_after, dtype=torch.float64)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("lengths", [(12,), (5, 7), (4, 8), (6, 6), (1,) * 12], ids=str)
@torch.no_grad()
def test_a_separator_ends_a_document_wherever_a_part_ends(lengths) -> None:
    """The separator is the last byte that its own document sees."""
    tokens = torch.randint(40, 256, (2, 12))
    tokens[0, 4] = tokens[0, 5] = tokens[1, 7] = SEPARATOR
    model, plain = separated(SEPARATOR), separated(None)
    states, parts = None, []
    for piece in tokens.split(lengths, dim=1):
        logits, states = model(piece, states)
        parts.append(logits)
    for row, ends in ((0, (5, 6)), (1, (8,))):
        alone = [plain(tokens[row : row + 1, a:b])[0] for a, b in pairwise((0, *ends, 12))]
        found = torch.cat(parts, dim=1)[row]
        torch.testing.assert_close(found, torch.cat(alone, dim=1)[0], rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_a_state_behind_a_separator_is_zero() -> None:
    tokens = torch.randint(40, 256, (2, 6))
    tokens[1, 5] = SEPARATOR
    _, states = separated(SEPARATOR)(tokens)
    for state in states:
        for part in state.values():
            assert part[0].any()
            assert not part[1].any()


def test_without_a_separator_in_the_text_nothing_changes() -> None:
    tokens = torch.randint(40, 256, (2, 9))
    losses = [separated(after).loss(tokens)[0] for after in (None, SEPARATOR)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)


@torch.no_grad()
def test_what_the_caller_says_counts_besides_separators() -> None:
    tokens = torch.randint(40, 256, (1, 9))
    tokens[0, 2] = SEPARATOR
    resets_bt = torch.zeros(1, 9, dtype=torch.bool)
    resets_bt[0, 6] = True
    found, _ = separated(SEPARATOR)(tokens, None, resets_bt)
    resets_bt[0, 3] = True
    torch.testing.assert_close(found, separated(None)(tokens, None, resets_bt)[0])


@pytest.mark.compiler
def test_a_model_with_a_separator_compiles_as_one_graph() -> None:
    torch.manual_seed(1)
    layer = elman.layers.E61(DIM, use_conv=True, backend="cpu")
    model = LanguageModel(DIM, [layer], reset_after=SEPARATOR)
    torch._dynamo.reset()
    tokens = torch.randint(40, 256, (2, 9))
    tokens[1, 3] = SEPARATOR
    whole = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(tokens)[0], model(tokens)[0])
