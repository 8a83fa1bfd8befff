"""What the dense engine's stepwise CUDA kernels alone have, run on a CPU from their own sources."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.dense.cuda import stepwise
from elman.ops.dense.op import dense_recurrence
from tests.emulation import dense_emulator, emulator
from tests.emulation.test_recurrent_emulation import DENSE as STEPWISE
from tests.emulation.test_recurrent_emulation import FP32
from tests.ops.dense.dense_cases import EMULATED, call, draw, resets_of
from tests.ops.recurrent import DENSE, check

pytestmark = pytest.mark.compiler

SOME = pytest.mark.parametrize("step", STEPWISE.some)
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "cuda"])


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(stepwise, "STARTER", dense_emulator.starter)
    emulator.poison(monkeypatch.setattr)


@SOME
@pytest.mark.parametrize("size", ["even", "wide"])
def test_many_channels_and_two_of_a_thread(step: str, size: str) -> None:
    found = DENSE.everything(step, draw(step, size, torch.float32), "cuda")
    check(found, DENSE.reference(step, size), FP32)


@pytest.mark.parametrize("step", ["tanh", "slstm"])
@pytest.mark.parametrize("size", ["even-heads", "odd-heads", "one-head"])
def test_heads_are_the_references(step: str, size: str) -> None:
    found = DENSE.everything(step, draw(step, size, torch.float32), "cuda")
    check(found, DENSE.reference(step, size), FP32)


@pytest.mark.parametrize("step", ["tanh", "slstm"])
def test_heads_in_bf16_and_with_resets(step: str) -> None:
    STEPWISE.check_bf16(step, "even-heads")
    leaves = draw(step, "even-heads", torch.float32)
    found = DENSE.everything(step, leaves, "cuda", resets=resets_of(leaves))
    check(found, DENSE.reference(step, "even-heads", resets=True), FP32)


# ---- defects of the original (vector-state specification 2.9, 3.4 and 5)


@BACKENDS
@SOME
def test_the_gradient_of_a_matrix_is_not_stored_transposed(step: str, backend: str) -> None:
    """Of the right norm either way; that of U of the GRU, and of the first block of R."""
    leaves, exact = draw(step, "even", torch.float32), DENSE.reference(step, "even")
    found = DENSE.everything(step, leaves, backend)
    width = EMULATED["even"][2]
    for name in {"d matrix", "d extra"} & set(found):
        right, block = exact[name][:width], found[name][:width].double()
        assert (block - right).norm() <= FP32 * right.norm()
        assert (block - right.T).norm() > 0.5 * right.norm()


@BACKENDS
@pytest.mark.parametrize("step", ["lstm", "gru"])
def test_gates_are_those_of_their_own_row(step: str, backend: str) -> None:
    """The gradients of a batch are those of its rows alone."""
    leaves = draw(step, "even", torch.float32)
    together = DENSE.everything(step, leaves, backend, slice(1))
    generator = torch.Generator().manual_seed(2)
    pull = torch.randn(together["out 0"].shape, dtype=torch.float64, generator=generator).float()
    for row in range(EMULATED["even"][0]):
        alone = {
            name: leaf[row : row + 1].detach().requires_grad_()
            if name.split()[0] in ("input", "state")
            else leaf
            for name, leaf in leaves.items()
        }
        sequences = [name for name in alone if name.split()[0] in ("input", "state")]
        y, *_ = call(step, alone, backend)
        gradients = torch.autograd.grad(y, [alone[n] for n in sequences], pull[row : row + 1])
        for name, gradient in zip(sequences, gradients, strict=True):
            torch.testing.assert_close(
                gradient, together[f"d {name}"][row : row + 1], rtol=1e-4, atol=1e-5
            )


@SOME
def test_a_workspace_counted_in_the_inputs_dtype_is_noticed(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise._KernelCall, "wide", stepwise._KernelCall.narrow)
    # PyTorch's product would refuse, or narrow its result.
    monkeypatch.setattr(stepwise, "_multiply", lambda left, right, to: to.zero_())
    with pytest.raises(emulator.FaultError):
        call(step, STEPWISE.narrowed(step, "even"), "cuda")


@BACKENDS
def test_gradients_of_weights_are_summed_in_fp32(backend: str) -> None:
    """A sum of 320 exact products: with R = 0 the states are the inputs."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    x, dy = normal(32, 11, 6), normal(32, 11, 6)
    matrix = torch.zeros(6, 6, requires_grad=True)
    y, _ = dense_recurrence("linear", [x], [matrix], [torch.zeros(32, 6)], backend=backend)
    (found,) = torch.autograd.grad(y, [matrix], dy.to(y.dtype))
    exact = torch.einsum("bti,btj->ij", dy[:, 1:].double(), x[:, :-1].double())
    assert found.dtype == torch.float32
    assert (found.double() - exact).norm() <= 1e-6 * exact.norm()
