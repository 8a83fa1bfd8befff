"""The decay that a layer tells is the factor by which a step multiplies its old state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.models.build import layer_class
from elman.models.cells import registry
from elman.models.cells.common.mixer import Mixer
from elman.ops.channel.decays import decays
from elman.ops.channel.plan import Plan
from elman.ops.common.slices import Slice
from elman.ops.dense import decays as dense
from elman.ops.dense.op import dense_recurrence

DIM = 64
# Options under which the state is linear: then only the decay multiplies the old state, once the
# keys are zero and nothing is erased or written.
CASES = {
    "e88": {"n_heads": 2, "n_state": 8, "linear_state": True},
    "e97": {"n_heads": 2, "n_state": 8, "linear_state": True},
    "e74_fixed_decay": {"n_state": 8},
    "m2rnn": {"n_heads": 2, "n_state": 8},
    "fla_gdn": {"n_heads": 2, "head_dim": 8},
    "deltaproduct": {"n_heads": 2, "head_dim": 8},
    "kda": {},
    "gdn2": {},
    "rwkv7": {},
    "mamba2": {},
    "mamba3": {},
}
# Parameters that are zero so that nothing is erased.
_ZERO = {"k_proj", "mix", "cell_proj"}


def quiet(name: str) -> Mixer:
    """Return a layer whose steps only decay."""
    layer = layer_class(registry.cell(name))(DIM, **CASES[name], dtype=torch.float64)
    assert isinstance(layer, Mixer)
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if key.split(".")[0] in _ZERO:
                parameter.zero_()
        if name in ("e88", "e97"):
            keys = layer.heads * layer.key_width
            layer.in_proj[keys : 2 * keys] = 0
    return layer


@pytest.mark.parametrize("name", CASES)
def test_a_step_multiplies_the_old_state_by_the_decay_that_the_layer_tells(name: str) -> None:
    layer, x_b1d = quiet(name), torch.randn(3, 1, DIM, dtype=torch.float64)
    _, state = layer(torch.randn(3, 2, DIM, dtype=torch.float64))
    more = {key: part + torch.randn_like(part) * (key == "S") for key, part in state.items()}
    with torch.no_grad():
        decay = layer.applied_decay(x_b1d, state)
        difference = layer(x_b1d, more)[1]["S"] - layer(x_b1d, state)[1]["S"]
    assert decay is not None
    expected = more["S"] - state["S"]
    factor = decay.expand(3, 1, *decay.shape[2:]).squeeze(1)
    factor = factor[:, :, None, None] if factor.ndim == 2 else factor[:, :, None, :]
    assert (factor > 0).all()
    assert (factor <= 1).all()
    torch.testing.assert_close(difference, factor * expected)


# Layers of which nothing is written once some rows of a parameter are zero: the parameter, which of
# its blocks of rows, and how many it has. Their new state is then the old one times the decay. A
# gate that reads the state sees another one at every step.
SILENT: dict[str, tuple[str, dict[str, Any], list[tuple[str, int, int]]]] = {
    "e61": ("e61", {"variant": "additive"}, [("cell_proj", 1, 2)]),
    "e61_tanh": ("e61", {"use_tanh": True}, [("cell_proj", 1, 2)]),
    "e62": ("e62", {}, [("cell_proj", 1, 2)]),
    "e62_decay": ("e62", {"variant": "decay"}, [("cell_proj", 1, 3)]),
    "e67": ("e67", {}, [("cell_proj", 1, 2)]),
    "e68": ("e68", {}, [("cell_proj", 1, 2)]),
    **{
        f"e74_diagonal_{update}": (
            "e74_diagonal",
            {"n_state": 8, "nonlinearity": "linear", "update": update},
            [("cell_proj", 1, blocks)],
        )
        for update, blocks in {"delta": 3, "simple": 3, "ema": 4}.items()
    },
    **{
        f"e74_diagonal_{gate}": (
            "e74_diagonal",
            {"n_state": 8, "nonlinearity": "linear", "gate": gate},
            [("cell_proj", 1, 3)],
        )
        for gate in ("retain", "state")
    },
    "e63": ("e63", {}, [("input", 0, 2), ("recurrent", 0, 1)]),
    "e63_independent": (
        "e63",
        {"variant": "independent"},
        [("input", 0, 3), ("recurrent", 0, 1)],
    ),
    "e63_h_dependent": (
        "e63",
        {"variant": "h_dependent"},
        [("input", 0, 3), ("recurrent", 0, 3)],
    ),
    "e66": ("e66", {}, [("input", 0, 2), ("recurrent", 0, 1)]),
    "e60c": ("e60c", {}, [("input", 0, 2), ("recurrent", 0, 2)]),
    "e67lr": ("e67lr", {}, [("input", 1, 2)]),
    "cudagru": ("cudagru", {}, [("cell_proj", 2, 3), ("recurrent", 0, 1)]),
    "cudalstm": ("cudalstm", {}, [("cell_proj", 3, 4), ("recurrent", 3, 4)]),
    "gru": ("gru", {}, [("rnn.weight_ih_l0", 2, 3), ("rnn.weight_hh_l0", 2, 3)]),
    "lstm": ("lstm", {}, [("rnn.weight_ih_l0", 2, 4), ("rnn.weight_hh_l0", 2, 4)]),
    "e14": ("e14", {}, [("cell_proj", 0, 4)]),
    "e70": ("e70", {"n_state": 8, "linear_state": True}, [("cell_proj", 1, 3)]),
    "e71": ("e71", {"n_state": 8}, [("cell_proj", 1, 4)]),
    "e72": ("e72", {"n_state": 8}, [("cell_proj", 1, 4)]),
    "e74_simple": (
        "e74",
        {"n_state": 8, "nonlinearity": "linear", "update": "simple", "projection": "no_z"},
        [("cell_proj", 1, 3)],
    ),
    "e74_ema": (
        "e74",
        {"n_state": 8, "nonlinearity": "linear", "update": "ema", "projection": "no_z"},
        [("cell_proj", 1, 4)],
    ),
    "e75": (
        "e75",
        {"n_heads": 2, "n_state": 8, "linear_state": True},
        [("cell_proj", 0, 4), ("cell_proj", 1, 4)],
    ),
    "e23": ("e23", {"n_slots": 4}, [("write", 0, 1)]),
}
_MEMORY = {"cudalstm": "c", "lstm": "c", "e23": "tape"}


@pytest.mark.parametrize("case", SILENT)
def test_where_nothing_is_written_the_state_is_the_old_one_times_all_decays(case: str) -> None:
    name, options, zeros = SILENT[case]
    layer = layer_class(registry.cell(name))(DIM, **options, dtype=torch.float64)
    assert isinstance(layer, Mixer)
    with torch.no_grad():
        for parameter in layer.parameters():  # biases and scales of gates are not the same
            parameter += 0.1 * torch.randn_like(parameter)
        for key, block, blocks in zeros:
            layer.get_parameter(key).chunk(blocks)[block].zero_()
            for bias in ("candidate_bias", "bias", "cell_bias"):
                if isinstance(vector := getattr(layer, bias, None), torch.Tensor):
                    vector.zero_()
        for key, parameter in layer.named_parameters():
            if key.startswith("rnn.bias"):
                parameter.chunk(zeros[0][2])[2].zero_()
    x_btd = torch.randn(3, 7, DIM, dtype=torch.float64)
    begin = {key: torch.randn_like(part) for key, part in layer(x_btd)[1].items()}
    with torch.no_grad():
        decay = layer.applied_decay(x_btd, begin)
        _, end = layer(x_btd, begin)
    assert decay is not None
    part = _MEMORY.get(name, "S" if "S" in begin else "h")
    factor = decay.expand(3, 7, *decay.shape[2:]).prod(dim=1)
    # Of heads, of rows of a matrix, or of channels.
    factor = factor.view(3, *factor.shape[1:], *[1] * (begin[part].ndim - factor.ndim))
    factor = factor.squeeze(1) if begin[part].ndim == 2 else factor
    expected = begin[part] * factor
    assert (factor.abs() < 1).all()
    torch.testing.assert_close(end[part], expected)


def memory_of(layer: Mixer, size: float) -> tuple[dict[str, torch.Tensor], ...]:
    """Return two states that differ in h, S or c; the candidates of both are saturated alike."""
    x_btd = torch.randn(3, 2, DIM, dtype=torch.float64)
    one = {key: torch.randn_like(part) for key, part in layer(x_btd)[1].items()}
    if "n" in one:
        one["n"] = one["n"].exp()
    names = {"c"} if "c" in one else {"h", "S"} & set(one)
    low, high = (
        {key: part * (scale if key in names else 1) for key, part in one.items()}
        for scale in (size, 2 * size)
    )
    return low, high


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mingru", {}),
        ("mingru", {"form": "sequential"}),
        ("minlstm", {}),
        ("minlstm", {"form": "sequential"}),
        ("e61", {}),
        ("e61", {"variant": "tied"}),
        ("e64", {}),
        ("e65", {}),
        ("e63m", {"n_state": 8}),
        ("slstm", {"n_heads": 2, "use_conv": False}),
    ],
)
def test_of_two_large_states_the_difference_is_multiplied_by_the_decay(
    name: str, options: dict[str, Any]
) -> None:
    layer = layer_class(registry.cell(name))(DIM, **options, dtype=torch.float64)
    assert isinstance(layer, Mixer)
    x_b1d = torch.randn(3, 1, DIM, dtype=torch.float64)
    low, high = memory_of(layer, 1.0 if name == "slstm" else 1e7)
    part = "c" if name == "slstm" else "S" if "S" in low else "h"
    with torch.no_grad():
        decay = layer.applied_decay(x_b1d, low)
        ends = [layer(x_b1d, state)[1] for state in (low, high)]
    assert decay is not None
    before, after = high[part] - low[part], ends[1][part] - ends[0][part]
    if name == "slstm":  # the memory without its stabilizer
        before, after = before * low["m"].exp(), after * ends[0]["m"].exp()
    factor = decay.reshape(3, *before.shape[1:-1], -1) if part != "S" else decay[:, 0, ..., None]
    torch.testing.assert_close(after, factor * before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("e34", {}),
        ("e70", {"n_state": 8}),
        *(("e73", {"n_state": 8, "variant": variant}) for variant in ("row", "column", "full")),
        ("e74", {"n_state": 8, "update": "ntm", "nonlinearity": "linear", "projection": "no_z"}),
    ],
)
def test_the_decay_is_that_before_the_nonlinearity(name: str, options: dict[str, Any]) -> None:
    layer = layer_class(registry.cell(name))(DIM, **options, dtype=torch.float64)
    assert isinstance(layer, Mixer)
    with torch.no_grad():
        if name == "e34":
            layer.get_parameter("cell_proj").zero_()
        else:
            layer.get_parameter("cell_proj")[8:16] = 0  # the values
    x_b1d = torch.randn(3, 1, DIM, dtype=torch.float64)
    before = {key: torch.randn_like(part) for key, part in layer(x_b1d)[1].items()}
    part = "S" if "S" in before else "h"
    with torch.no_grad():
        decay = layer.applied_decay(x_b1d, before)
        after = layer(x_b1d, before)[1][part]
    assert decay is not None
    factor = (after if options.get("nonlinearity") == "linear" else after.atanh()) / before[part]
    if options.get("variant") == "column":
        factor = factor.mean(dim=-2)
    elif part == "S":
        factor = factor.mean(dim=-1)
    expected = decay[:, 0] if part == "S" else decay[:, 0, 0]
    torch.testing.assert_close(factor, expected.expand_as(factor))


WITH_DECAY = sorted(
    name
    for name, cell in registry.cells().items()
    if layer_class(cell).applied_decay is not Mixer.applied_decay
)


def of_all_steps(decay: torch.Tensor | None, steps: int) -> torch.Tensor:
    """Return decays [2, steps, ...], as many as there are steps."""
    assert decay is not None
    return decay.expand(2, steps, *decay.shape[2:])


@pytest.mark.parametrize("name", WITH_DECAY)
def test_decays_do_not_depend_on_chunks_and_a_reset_begins_anew(name: str) -> None:
    options = {"n_state": 8} if "n_state" in registry.cell(name).options else {}
    layer = layer_class(registry.cell(name))(DIM, **CASES.get(name, options), dtype=torch.float64)
    assert isinstance(layer, Mixer)
    x_btd, resets_bt = torch.randn(2, 9, DIM, dtype=torch.float64), torch.zeros(2, 9).bool()
    resets_bt[:, 5] = True
    with torch.no_grad():
        if (whole := layer.applied_decay(x_btd)) is None:
            return
        _, state = layer(x_btd[:, :4])
        rest = of_all_steps(layer.applied_decay(x_btd[:, 4:], state), 5)
        torch.testing.assert_close(of_all_steps(whole, 9)[:, 4:], rest)
        if layer.cell.no_resets(layer.settings.values):
            return
        cut = of_all_steps(layer.applied_decay(x_btd, state, resets_bt), 9)
        zeros = {key: torch.zeros_like(part) for key, part in state.items()}
        anew = of_all_steps(layer.applied_decay(x_btd[:, 5:], zeros), 4)
        torch.testing.assert_close(cut[:, 5:], anew)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("e88", {"n_heads": 2, "n_state": 8, "decay_mode": "none"}),
        ("deltaproduct", {"n_heads": 2, "head_dim": 8, "use_forget_gate": False}),
        ("e1", {}),
        ("e59", {}),
        ("e60", {}),
        ("e63", {"variant": "residual"}),
        ("e74", {"n_state": 8}),
        ("llama", {}),
    ],
)
def test_a_layer_without_a_decay_tells_none(name: str, options: dict[str, object]) -> None:
    layer = layer_class(registry.cell(name))(DIM, **options)
    assert isinstance(layer, Mixer)
    assert layer.applied_decay(torch.randn(1, 3, DIM)) is None


def test_of_a_step_that_another_package_brings_no_decay_is_guessed() -> None:
    x_btc, plan = torch.randn(1, 3, 8), Plan("leaky", (("candidate", Slice(0, 0)),))
    assert decays(plan, [x_btc], {}, torch.zeros(1, 8), backend="reference") is None


def test_a_gru_that_resets_behind_its_matrix_keeps_its_state_by_the_second_gate() -> None:
    gates_btp = torch.randn(2, 5, 24, dtype=torch.float64)
    matrix = torch.randn(24, 8, dtype=torch.float64)
    gates_btp[..., 16:], matrix[16:] = 0, 0
    inputs = [gates_btp, torch.zeros(2, 5, 8, dtype=torch.float64)]
    first = [torch.randn(2, 8, dtype=torch.float64)]
    call = ("gru_reset_after", inputs, [matrix], first)
    decay_bti = dense.decays(*call, backend="reference")
    assert decay_bti is not None
    _, (last_bi,) = dense_recurrence(*call, backend="reference")
    torch.testing.assert_close(last_bi, first[0] * decay_bti.prod(dim=1))
