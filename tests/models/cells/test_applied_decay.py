"""The decay that a layer tells is the factor by which a step multiplies its old state."""

from __future__ import annotations

import pytest
import torch

from elman.models.build import layer_class
from elman.models.cells import registry
from elman.models.cells.common.mixer import Mixer

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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("e88", {"n_heads": 2, "n_state": 8, "decay_mode": "none"}),
        ("deltaproduct", {"n_heads": 2, "head_dim": 8, "use_forget_gate": False}),
        ("e1", {}),
        ("llama", {}),
    ],
)
def test_a_layer_without_a_decay_tells_none(name: str, options: dict[str, object]) -> None:
    layer = layer_class(registry.cell(name))(DIM, **options)
    assert isinstance(layer, Mixer)
    assert layer.applied_decay(torch.randn(1, 3, DIM)) is None
