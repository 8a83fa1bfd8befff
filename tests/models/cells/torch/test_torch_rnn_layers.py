"""GRU and LSTM, PyTorch's own, against their equations written out; their counts and dtypes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from elman.evaluation.generation import generate
from elman.layers import GRU, LSTM, CudaGRU, CudaLSTM
from elman.models.backends import computation_path
from elman.models.language_model import LanguageModel
from elman.ops import fp16_range
from elman.ops.common.precision import wide_dtype
from elman.ops.decode.reference import draw

EXACT = {"rtol": 1e-10, "atol": 1e-12}
both = pytest.mark.parametrize("layer_type", [GRU, LSTM])


def build(layer_type: type, **options):
    """Return a layer of 10 channels in and 15 of state, every weight random."""
    torch.manual_seed(8)
    layer = layer_type(10, expansion=1.5, dtype=torch.float64, **{"backend": "torch"} | options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def naive(
    layer, x: Tensor, state: dict[str, Tensor], resets: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Step by step, gate by gate, in the order of PyTorch's rows."""
    weights = layer.rnn.weight_ih_l0, layer.rnn.weight_hh_l0
    biases = layer.rnn.bias_ih_l0, layer.rnn.bias_hh_l0
    outputs = []
    h, c = state["h"], state.get("c")
    for t, step in enumerate((x @ layer.in_proj.T).unbind(1)):
        if resets is not None:
            keep = (~resets[:, t, None]).double()
            h, c = h * keep, None if c is None else c * keep
        of_x = (step @ weights[0].T + biases[0]).split(layer.width, -1)
        of_h = (h @ weights[1].T + biases[1]).split(layer.width, -1)
        if c is None:
            reset, keep = (torch.sigmoid(of_x[n] + of_h[n]) for n in (0, 1))
            candidate = torch.tanh(of_x[2] + reset * of_h[2])
            h = keep * h + (1 - keep) * candidate
        else:
            given, forget, new, shown = (of_x[n] + of_h[n] for n in range(4))
            c = torch.sigmoid(forget) * c + torch.sigmoid(given) * torch.tanh(new)
            h = torch.sigmoid(shown) * torch.tanh(c)
        outputs.append(h @ layer.out_proj.T)
    return torch.stack(outputs, 1), {"h": h} | ({} if c is None else {"c": c})


@both
@pytest.mark.parametrize("shape", [(3, 7), (9, 2), (1, 1)], ids="{0[0]}x{0[1]}".format)
def test_outputs_states_and_gradients_are_those_of_the_equations(layer_type, shape) -> None:
    layer = build(layer_type)
    x = torch.randn(*shape, 10, dtype=torch.float64, requires_grad=True)
    first = {n: torch.randn(shape[0], 15, dtype=torch.float64).requires_grad_() for n in "hc"}
    state = {name: first[name] for name in layer.parts}
    results = []
    for y, final in (layer(x, state), naive(layer, x, state)):
        assert final.keys() == state.keys()
        loss = y.sin().sum() + sum((tensor * tensor).sum() for tensor in final.values())
        grads = torch.autograd.grad(loss, [x, *state.values(), *layer.parameters()])
        results.append([y, *final.values(), *grads])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)


@both
@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("places", [[(0, 3), (1, 0), (1, 3), (1, 6)], "all", []], ids=str)
def test_a_reset_cuts_states_and_gradients(layer_type, backend: str, places) -> None:
    layer = build(layer_type, backend=backend)
    x = torch.randn(2, 7, 10, dtype=torch.float64, requires_grad=True)
    resets = torch.full((2, 7), places == "all")
    for row, step in () if places == "all" else places:
        resets[row, step] = True
    first = {n: torch.randn(2, 15, dtype=torch.float64).requires_grad_() for n in layer.parts}
    results = []
    for y, final in (layer(x, first, resets), naive(layer, x, first, resets)):
        loss = y.sin().sum() + sum((tensor * tensor).sum() for tensor in final.values())
        grads = torch.autograd.grad(loss, [x, *first.values(), *layer.parameters()])
        results.append([y, *final.values(), *grads])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)


@both
def test_initial_values(layer_type) -> None:
    """Lm-and-training specification 5.4; vector-state specification 5.2 for the forget gate."""
    layer = layer_type(64, expansion=1.5)
    assert layer.in_proj.std().item() == pytest.approx(0.02, rel=0.05)
    assert not layer.out_proj.any()
    for name in ("weight_ih_l0", "weight_hh_l0"):
        stacked = layer.rnn.get_parameter(name)
        gates = stacked.shape[0] // 96
        assert stacked.shape == (gates * 96, 96)
        torch.testing.assert_close(stacked.T @ stacked, torch.eye(96), rtol=0, atol=1e-4)
    # The forget gate's rows are the second of four: 1 in each of two biases.
    wanted = torch.tensor([0.0, 1.0, 0.0, 0.0] if layer_type is LSTM else [0.0, 0.0, 0.0])
    for name in ("bias_ih_l0", "bias_hh_l0"):
        bias = layer.rnn.get_parameter(name)
        torch.testing.assert_close(bias, wanted.repeat_interleave(96), rtol=0, atol=0)


@both
def test_every_block_starts_as_the_identity(layer_type) -> None:
    torch.manual_seed(1)
    model = LanguageModel(16, [layer_type(16) for _ in range(3)])
    empty = LanguageModel(16, [])
    empty.load_state_dict(model.state_dict(), strict=False)
    tokens = torch.randint(0, 256, (2, 5))
    torch.testing.assert_close(model(tokens)[0], empty(tokens)[0], rtol=0, atol=0)


@pytest.mark.parametrize(("layer_type", "own", "gates"), [(GRU, CudaGRU, 3), (LSTM, CudaLSTM, 4)])
@pytest.mark.parametrize("expansion", [1.0, 1.7])
def test_two_biases_where_our_own_cells_have_one(layer_type, own, gates, expansion) -> None:
    """2 d D + 6 D^2 + 6 D and 2 d D + 8 D^2 + 8 D (vector-state specification 5.1 and 5.2)."""
    counts = [
        sum(p.numel() for p in one(20, expansion=expansion, device="meta").parameters())
        for one in (layer_type, own)
    ]
    width = int(20 * expansion)
    assert counts[0] == 2 * 20 * width + 2 * gates * width * (width + 1)
    assert counts[0] - counts[1] == gates * width


def test_the_gru_is_not_our_own_one() -> None:
    """PyTorch resets behind the matrix; ours before it (vector-state specification 5.1)."""
    theirs, ours = build(GRU), build(CudaGRU, backend="reference")
    with torch.no_grad():
        # PyTorch's rows are r, z, n and its z keeps the state: ours are z, r, n, and z takes.
        reset, keep, new = theirs.rnn.weight_ih_l0.split(15)
        ours.cell_proj.copy_(torch.cat([-keep, reset, new]))
        reset, keep, new = theirs.rnn.weight_hh_l0.split(15)
        ours.recurrent_gates.copy_(torch.cat([-keep, reset]))
        ours.recurrent.copy_(new)
        for bias in (theirs.rnn.bias_ih_l0, theirs.rnn.bias_hh_l0, ours.cell_bias):
            bias.zero_()
        for name in ("in_proj", "out_proj"):
            ours.get_parameter(name).copy_(theirs.get_parameter(name))
    x = torch.randn(2, 3, 10, dtype=torch.float64)
    one, other = theirs(x)[0], ours(x)[0]
    torch.testing.assert_close(one[:, :1], other[:, :1], **EXACT)
    assert not torch.allclose(one[:, 1:], other[:, 1:], rtol=1e-3)


@both
def test_the_state_is_fp32_and_goes_in_where_it_came_out(layer_type) -> None:
    torch.manual_seed(0)
    layer = layer_type(16)
    with torch.no_grad():
        layer.out_proj.normal_()
    x = torch.randn(2, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        whole, last = layer(x)
        _, state = layer(x[:, :5])
        rest, final = layer(x[:, 5:], state)
    assert whole.dtype == torch.bfloat16
    assert {part.dtype for part in (*last.values(), *state.values())} == {torch.float32}
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0.03, atol=0.03)
    for name in last:
        torch.testing.assert_close(final[name], last[name], rtol=0.03, atol=0.03)


@both
def test_the_network_runs_in_the_projections_dtype_and_out_of_autocasts_hands(layer_type) -> None:
    """Autocast to bf16 casts cuDNN's networks to fp16, where small gradients become zero."""
    layer = layer_type(16, backend="torch")
    seen = []
    layer.rnn.register_forward_pre_hook(
        lambda rnn, given: seen.append(
            (torch.is_autocast_enabled("cpu"), given[0].dtype, rnn.weight_hh_l0.dtype)
        )
    )
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(torch.randn(2, 3, 16))
    (y.float() * 1e-12).sum().backward()
    assert seen == [(False, torch.bfloat16, torch.bfloat16)]
    assert layer.out_proj.grad.any()
    layer(torch.randn(2, 3, 16))
    assert seen[1] == (False, torch.float32, torch.float32)


@both
def test_weights_in_one_buffer_are_saved_whole(layer_type, tmp_path) -> None:
    """The form in which cuDNN wants them on a GPU: views of one storage."""
    layer = layer_type(16)
    wanted = {name: p.detach().clone() for name, p in layer.named_parameters()}
    flat = torch.cat([p.detach().flatten() for p in layer.rnn.parameters()])
    for parameter in layer.rnn.parameters():
        parameter.data = flat[: parameter.numel()].view_as(parameter)
        flat = flat[parameter.numel() :]
    save_file({n: v.contiguous() for n, v in layer.state_dict().items()}, tmp_path / "weights")
    found = load_file(tmp_path / "weights")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@both
def test_generation_carries_the_state(layer_type) -> None:
    torch.manual_seed(3)
    model = LanguageModel(16, [layer_type(16) for _ in range(2)]).eval()
    with torch.no_grad():
        model.embedding.mul_(20)
        for layer in model.layers:
            layer.out_proj.normal_()
    lengths = []
    model.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    found = list(generate(model, b"abc", 12, temperature=2.0, seed=1))
    assert lengths == [2] + [1] * 12
    text, numbers = list(b"abc"), torch.Generator().manual_seed(1)
    for _ in range(12):
        logits = model(torch.tensor([text]))[0][:, -1].detach()
        text.append(int(draw(logits, torch.rand(1, generator=numbers), 2.0, 0, 1.0)))
    assert found == text[3:]
    assert len(set(found)) > 6


@both
@pytest.mark.parametrize("size", [1.0, 1e-9, 1e4])
def test_fp16_keeps_gradients_of_any_size(layer_type, size, monkeypatch) -> None:
    """A GPU's cuDNN computes in fp16; PyTorch on a CPU can, too, and rounds the same numbers."""
    layer = build(layer_type)
    x = torch.randn(3, 9, 10, dtype=torch.float64, requires_grad=True)
    first = {n: torch.randn(3, 15, dtype=torch.float64).requires_grad_() for n in layer.parts}
    leaves = [x, *first.values(), *layer.parameters()]

    def found() -> list[torch.Tensor]:
        y, last = layer(x, first)
        loss = y.sin().sum() + sum((one * one).sum() for one in last.values())
        return [y, *last.values(), *torch.autograd.grad(size * loss, leaves)]

    wanted = found()
    monkeypatch.setattr(type(layer), "_narrows", lambda self, p_bti: True)
    for one, right in zip(found(), wanted, strict=True):
        assert one.dtype == right.dtype
        assert (one - right).norm() <= 5e-3 * right.norm()


def test_without_its_scale_fp16_would_lose_the_gradients(monkeypatch) -> None:
    monkeypatch.setattr(fp16_range, "_power", torch.ones_like)
    with pytest.raises(AssertionError):
        test_fp16_keeps_gradients_of_any_size(LSTM, 1e-9, monkeypatch)


def test_gradients_that_are_no_numbers_stay_so() -> None:
    for bad in (0.0, float("inf"), float("nan")):
        assert fp16_range._power(torch.tensor(bad)) == 1
    leaf = torch.ones(4, requires_grad=True)
    (y,) = fp16_range.in_fp16(lambda given: [given[0] * 2], [leaf], torch.bfloat16)
    assert y.dtype == torch.bfloat16
    y.backward(torch.tensor([torch.inf, 1, 1, 1], dtype=torch.bfloat16))
    assert leaf.grad[0] == torch.inf


@pytest.mark.parametrize(("dtype", "found"), [("fp16", "cuDNN, fp16"), ("bf16", "cuDNN, bf16")])
def test_the_result_says_what_the_network_computed_in(dtype, found) -> None:
    options = {"network_dtype": dtype}
    given = (LSTM.cell, "torch", options)
    assert computation_path(*given, device_type="cuda", precision="bf16") == found
    assert computation_path(*given, device_type="cuda", precision="fp32") == "cuDNN, fp32"
    assert computation_path(*given, device_type="cpu", precision="bf16") is None


@both
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_dense_engine_computes_pytorchs_networks(layer_type, backend: str) -> None:
    """Backend ``cuda`` hands the gates to the same engine."""
    layer = build(layer_type)
    p_bti = torch.randn(2, 7, layer.width, dtype=torch.float64, requires_grad=True)
    first_bi = [torch.randn(2, layer.width, dtype=torch.float64) for _ in layer.parts]
    leaves = [p_bti, *first_bi, *layer.rnn.parameters()]
    for one in first_bi:
        one.requires_grad_()
    found = []
    for chosen in ("torch", backend):
        h_bti, last_bi = layer.run_over_time(p_bti, first_bi, chosen)
        pulls = [torch.linspace(-1, 2, one.numel()).view_as(one) for one in (h_bti, *last_bi)]
        pulls = [pull.double() for pull in pulls]
        gradients = torch.autograd.grad([h_bti, *last_bi], leaves, pulls)
        found.append([h_bti, *last_bi, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_on_a_gpu_cudnn_computes_in_what_the_dense_engine_does_not(
    layer_type, dtype: torch.dtype
) -> None:
    layer = build(layer_type).to(dtype)
    p_bti = torch.randn(2, 3, layer.width, dtype=dtype)
    first_bi = [torch.randn(2, layer.width, dtype=wide_dtype(dtype)) for _ in layer.parts]
    found, wanted = (layer.run_over_time(p_bti, first_bi, name) for name in ("cuda", "torch"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_cudnn_can_compute_gradients_in_evaluation_too() -> None:
    """It refuses to outside of training mode; the network has no dropout."""
    for layer in (build(LSTM).eval(), build(GRU).eval()):
        assert not layer.training
        assert layer.rnn.training
