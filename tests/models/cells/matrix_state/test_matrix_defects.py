"""What went wrong in the original matrix-state models, each with a test that would have seen it.

Sections are those of the matrix-state specification.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.layers import E14, E70, E72, E74, E75, E73cp, E74BlockDiagonal, E74FixedDecay, E74LowRank
from elman.models.language_model import LanguageModel
from elman.ops.common import scan

DIM = 6


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make the draws the same every time."""
    torch.manual_seed(7)


def draws(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loss_of(layer: Any, x: Tensor) -> Tensor:
    """Return a loss that reads the output and the final state."""
    y, state = layer(x)
    return y.cos().sum() + sum(tensor.sin().sum() for tensor in state.values())


def numeric(layer: Any, parameter: Tensor, index: int, x: Tensor) -> float:
    """Return the central difference of the loss in one entry of a parameter."""
    flat, step = parameter.detach().view(-1), 1e-5
    values = []
    for sign in (1, -1):
        flat[index] += sign * step
        values.append(loss_of(layer, x).item())
        flat[index] -= sign * step
    return (values[0] - values[1]) / (2 * step)


def test_e14_applies_its_maps_and_not_their_transposes() -> None:
    """3: the kernel took W_key and W_decay transposed, which only square maps let pass."""
    layer = E14(DIM, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = draws(1, 1, DIM)
    both = layer.in_proj @ x[0, 0]
    c = both[:DIM] * torch.sigmoid(both[:DIM])
    w_key, w_dec, w_val, _ = layer.cell_proj.split(DIM)
    b_key, b_dec, b_val, _ = layer.cell_bias.split(DIM)
    start = draws(1, 1, DIM, DIM)
    _, state = layer(x, {"S": start})
    decay = torch.sigmoid(w_dec @ c + b_dec)
    wanted = decay[:, None] * start[0, 0] + torch.outer(
        torch.tanh(w_key @ c + b_key), w_val @ c + b_val
    )
    torch.testing.assert_close(state["S"][0, 0], wanted, rtol=1e-10, atol=1e-12)
    wrong = torch.sigmoid(w_dec.T @ c + b_dec)
    assert not torch.allclose(wrong, decay, rtol=1e-3)


@pytest.mark.parametrize(
    ("layer_type", "options", "name"),
    [
        (E70, {"n_state": 4}, "decay"),
        (E70, {"n_state": 4, "linear_state": True, "projection_norm": "spectral"}, "decay"),
        (E74, {"n_state": 4, "update": "simple"}, "decay_logit"),
        (E74FixedDecay, {"n_state": 4, "learned_decay": True}, "decay_logit"),
    ],
    ids=["e70", "e70-final", "e74-simple", "e74-fixed-decay"],
)
def test_a_learned_decay_receives_its_gradient(layer_type, options, name) -> None:
    """5 and 9: the decay was handed over as a plain number and stayed at 0.9 for ever."""
    layer = layer_type(DIM, **options, dtype=torch.float64)
    x = 2 * draws(2, 5, DIM)
    loss_of(layer, x).backward()
    decay = layer.get_parameter(name)
    assert decay.grad.item() == pytest.approx(numeric(layer, decay, 0, x), rel=1e-5)
    assert abs(decay.grad.item()) > 1e-4


@pytest.mark.parametrize("form", [{}, {"linear_state": True, "projection_norm": "spectral"}])
def test_e70s_decay_can_stay_where_it_stayed_in_the_published_runs(form) -> None:
    """5: at 0.9; it is still one of the layer's parameters, whose number was published."""
    layer, learned = (
        E70(DIM, n_state=4, learned_decay=flag, dtype=torch.float64, **form)
        for flag in (False, True)
    )
    learned.load_state_dict(layer.state_dict())
    assert [p.numel() for p in layer.parameters()] == [p.numel() for p in learned.parameters()]
    x, moved = draws(2, 5, DIM), {}
    for name, one in (("frozen", layer), ("learned", learned)):
        model = LanguageModel(DIM, [one], dtype=torch.float64)
        optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
        loss_of(one, x).backward()
        optimizer.step()
        moved[name] = one.decay.item() - 0.9
    assert moved["frozen"] == 0
    assert abs(moved["learned"]) > 1e-4
    # Whatever else was learned is the same to the bit.
    for (name, one), other in zip(layer.named_parameters(), learned.parameters(), strict=True):
        assert name == "decay" or torch.equal(one, other), name


@pytest.mark.parametrize("value", [-0.5, 0.9995, 2.0])
def test_e70s_decay_stays_in_its_range(value) -> None:
    """5: decay = clamp(decay, 0, 0.999)."""
    layer = E70(DIM, n_state=4, dtype=torch.float64)
    inside = E70(DIM, n_state=4, dtype=torch.float64)
    inside.load_state_dict(layer.state_dict())
    with torch.no_grad():
        layer.decay.fill_(value)
        inside.decay.fill_(min(max(value, 0.0), 0.999))
    x = draws(1, 6, DIM)
    torch.testing.assert_close(layer(x)[0], inside(x)[0], rtol=0, atol=0)


def test_e70s_norm_also_enlarges_and_leaves_the_query_alone() -> None:
    """5: the scaling is unconditional; W_q is as it is."""
    layer = E70(32, n_state=8, projection_norm="spectral", dtype=torch.float64)
    with torch.no_grad():
        layer.cell_proj.mul_(1e-3)
    for _ in range(60):
        layer.begin_step()
    w_k, w_v, w_q = layer.cell_matrix().split(8)
    for matrix in (w_k, w_v):
        assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(0.5, rel=1e-3)
    torch.testing.assert_close(w_q, layer.cell_proj[16:], rtol=0, atol=0)


def test_e70s_norms_advance_once_a_step_and_are_saved() -> None:
    """5: they advanced in every forward pass and were not in the checkpoint."""
    layer = E70(DIM, n_state=4, projection_norm="spectral")
    model = LanguageModel(DIM, [layer])
    before = [buffer.clone() for buffer in layer.buffers()]
    model.loss(torch.randint(0, 256, (2, 6)))[0].backward()
    assert all(map(torch.equal, before, layer.buffers()))
    model.begin_step()
    assert not any(map(torch.equal, before, layer.buffers()))
    assert {"norms.0.u", "norms.0.v", "norms.1.u", "norms.1.v"} <= set(layer.state_dict())


@pytest.mark.parametrize("variant", ["standard", "inverse"])
def test_e72s_state_gradient_knows_the_gated_value(variant) -> None:
    """7: the state's gradient took v where the gated value v o g stands."""
    layer = E72(DIM, n_state=4, variant=variant, dtype=torch.float64)
    x = draws(1, 3, DIM)
    start = draws(1, 1, 4, 4).requires_grad_()

    def run(start: Tensor) -> tuple[Tensor, Tensor]:
        y, state = layer(x, {"S": start})
        return y, state["S"]

    assert torch.autograd.gradcheck(run, (start,))


@pytest.mark.parametrize("layer_type", [E70, elman.layers.E71, E72, elman.layers.E73, E73cp])
@pytest.mark.parametrize("expansion", [0.5, 2.0])
def test_the_input_width_is_not_the_state_width(layer_type, expansion) -> None:
    """7: the first kernel used n for the width of the input."""
    layer = layer_type(DIM, n_state=5, expansion=expansion)
    assert layer(torch.randn(2, 3, DIM))[0].shape == (2, 3, DIM)
    assert layer.cell_proj.shape[1] == int(DIM * expansion)


@pytest.mark.parametrize("steps", [31, 32, 33, 47, 64])
def test_e73cps_gradients_do_not_depend_on_the_checkpoints(steps, monkeypatch) -> None:
    """8: with T no multiple of K the final state was written over a slot still needed."""
    layer = E73cp(DIM, n_state=4, dtype=torch.float64)
    x = draws(2, steps, DIM)
    found = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        found.append(torch.autograd.grad(loss_of(layer, x), list(layer.parameters())))
    for kept, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-10, atol=1e-12)


def test_e73cps_long_calls_keep_few_states(monkeypatch) -> None:
    """8: checkpointing is there to save memory, so the states in between must be let go."""
    monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", 0)
    layer = E73cp(DIM, n_state=16)
    kept: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape[-2:] == (16, 16) and tensor.numel() == 256:
            kept.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(layer, torch.randn(1, 64, DIM))
    assert len(kept) < 20


@pytest.mark.parametrize(
    "options",
    [
        {"update": "residual"},
        {"update": "ntm"},
        {"update": "retrieved_gate"},
        {"update": "retrieved_gate", "error_gate": True},
        {"update": "ema"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_e74s_further_updates_have_right_gradients(options) -> None:
    """9: logits were passed for gates, the scale was read as fp32 and divided by T B n."""
    layer = E74(DIM, n_state=4, **options, dtype=torch.float64)
    x = draws(3, 4, DIM)
    loss_of(layer, x).backward()
    for name, parameter in layer.named_parameters():
        for index in {0, parameter.numel() // 2, parameter.numel() - 1}:
            wanted = numeric(layer, parameter, index, x)
            assert parameter.grad.flatten()[index].item() == pytest.approx(
                wanted, rel=1e-5, abs=1e-8
            ), name


def test_e74s_residual_update_applies_the_outer_tanh() -> None:
    """9: the kernel left it out, so the state could leave (-1, 1)."""
    layer = E74(DIM, n_state=4, update="residual")
    with torch.no_grad():
        layer.scale.fill_(50.0)
    assert layer(torch.randn(2, 9, DIM))[1]["S"].abs().max() <= 1


def test_e74s_residual_scales_rows() -> None:
    """9: part of the elements read the scale of another row."""
    layer = E74(DIM, n_state=4, update="residual", nonlinearity="linear")
    with torch.no_grad():
        layer.scale.copy_(torch.tensor([0.0, 1.0, 0.0, 2.0]))
    state = layer(torch.randn(2, 9, DIM))[1]["S"]
    assert not state[:, :, [0, 2]].any()
    assert state[:, :, [1, 3]].ne(0).all()


def test_e74s_ntm_write_gate_is_a_sigmoid() -> None:
    """9: the kernel's write gate had none."""
    layer = E74(DIM, n_state=4, update="ntm", dtype=torch.float64)
    x = draws(2, 4, DIM)
    with torch.no_grad():
        layer.write_bias.fill_(-60.0)
    assert layer(x)[1]["S"].abs().max() < 1e-20


@pytest.mark.parametrize("update", ["delta", "residual", "ntm", "retrieved_gate", "ema", "simple"])
def test_e74_without_tanh_is_linear(update) -> None:
    """9: use_tanh=False was ignored."""
    layer = E74(DIM, n_state=4, update=update, nonlinearity="linear", dtype=torch.float64)
    squashed = E74(DIM, n_state=4, update=update, dtype=torch.float64)
    squashed.load_state_dict(layer.state_dict())
    x = 5 * draws(1, 6, DIM)
    assert not torch.allclose(layer(x)[1]["S"], squashed(x)[1]["S"], rtol=1e-2)


@pytest.mark.parametrize("layer_type", [E74, E74LowRank, E74BlockDiagonal])
@pytest.mark.parametrize("projection", ["tied_kq", "tied_kvq"])
def test_tied_roles_all_send_their_gradient(layer_type, projection) -> None:
    """9: tied_kq had no backward at all and tied_kvq dropped the value's gradient."""
    tied = layer_type(DIM, n_state=8, projection=projection, dtype=torch.float64)
    free = layer_type(DIM, n_state=8, dtype=torch.float64)
    weights = dict(tied.state_dict())
    k, v = weights["cell_proj"][:8], weights["cell_proj"][-8:]
    weights["cell_proj"] = torch.cat([k, v, k])
    free.load_state_dict(weights)
    x = draws(2, 5, DIM)
    torch.testing.assert_close(tied(x)[0], free(x)[0], rtol=1e-12, atol=1e-15)
    for layer in (tied, free):
        loss_of(layer, x).backward()
    d_k, d_v, d_q = free.cell_proj.grad.split(8)
    assert all(part.abs().max() > 1e-8 for part in (d_k, d_v, d_q))
    summed = [d_k + d_q, d_v] if projection == "tied_kq" else [d_k + d_v + d_q]
    torch.testing.assert_close(tied.cell_proj.grad, torch.cat(summed), rtol=1e-9, atol=1e-12)


def test_e74s_low_rank_state_repeats_itself() -> None:
    """9: the fixed factor was drawn anew in every call."""
    layer = E74LowRank(DIM, n_state=8, rank=3)
    x = torch.randn(2, 4, DIM)
    torch.testing.assert_close(layer(x)[0], layer(x)[0], rtol=0, atol=0)
    other = E74LowRank(DIM, n_state=8, rank=3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x)[0], layer(x)[0], rtol=0, atol=0)


def test_e74s_blocks_normalise_their_own_keys() -> None:
    """9: block-diagonal; a block's key does not see the size of the others."""
    layer = E74BlockDiagonal(DIM, n_state=16, dtype=torch.float64)
    x = draws(1, 5, DIM)
    before = layer(x)[1]["S"]
    with torch.no_grad():
        layer.cell_proj[8:16] *= 100
    after = layer(x)[1]["S"]
    torch.testing.assert_close(after[:, 0], before[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(after[:, 1], before[:, 1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 7, 20, 28, 40, 56])
@pytest.mark.parametrize("name", ["E70", "E71", "E72", "E73", "E73cp", "E74", "E75"])
def test_every_state_size_trains(name, n) -> None:
    """11 and 15: sizes without a template launched nothing and returned unwritten memory."""
    layer = getattr(elman.layers, name)(DIM, n_state=n)
    x = torch.randn(2, 3, DIM)
    loss_of(layer, x).backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_initial_and_final_state_carry_gradient() -> None:
    """2: the kernels ignored the final state's gradient and gave the initial state none."""
    for name in ("E14", "E70", "E71", "E72", "E73", "E73cp", "E74", "E75"):
        options = {"n_heads": 2} if name == "E75" else {}
        layer = getattr(elman.layers, name)(DIM, n_state=4, **options, dtype=torch.float64)
        x = draws(1, 3, DIM)
        start = draws(*layer(x)[1]["S"].shape).requires_grad_()
        y, state = layer(x, {"S": start})
        (from_state,) = torch.autograd.grad(state["S"].sum(), start, retain_graph=True)
        (from_output,) = torch.autograd.grad(y.sum(), start)
        assert from_state.any(), name
        assert from_output.any(), name


@pytest.mark.parametrize("size", [1e-30, 0.0])
def test_a_vanishing_key_gives_finite_gradients(size) -> None:
    """2: k / (norm + 1e-6); its second term is 0 at k = 0."""
    for name in ("E73cp", "E74", "E74LowRank", "E75"):
        layer = getattr(elman.layers, name)(DIM, n_state=4)
        x = size * torch.ones(2, 3, DIM)
        loss_of(layer, x).backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters()), name


@pytest.mark.parametrize("name", ["E70", "E73", "E73cp", "E74", "E75"])
def test_large_inputs_saturate_instead_of_overflowing(name) -> None:
    """12.6 and 15: a tanh by exponentials gave inf / inf."""
    layer = getattr(elman.layers, name)(DIM, n_state=4)
    with torch.no_grad():
        layer.cell_proj.mul_(1e4)
    y, state = layer(torch.randn(2, 5, DIM))
    assert state["S"].abs().max() <= 1
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_e75s_convolution_behind_the_projection_leaves_beta_alone() -> None:
    """11: beta is projected from the input without convolution."""
    layer = E75(DIM, n_heads=2, n_state=3, use_conv=True, conv_mode="post", dtype=torch.float64)
    x = draws(1, 5, DIM)
    _, beta = layer.project(x, {}, {}, None)
    torch.testing.assert_close(beta, x @ layer.cell_proj[18:].T, rtol=1e-12, atol=1e-15)
