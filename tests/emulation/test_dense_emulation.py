"""The dense engine's CUDA kernels, run on a CPU from their own sources, against the reference."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.sources import included_sources
from elman.ops.dense import custom_op
from elman.ops.dense.cuda import stepwise
from elman.ops.dense.cuda.stepwise import StepConfig
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS
from tests.emulation import dense_emulator, emulator
from tests.ops.dense.dense_cases import EMULATED, SIZES, Leaves, arguments, call, draw, resets_of
from tests.ops.recurrent import DENSE, check, check_drops, check_nan

pytestmark = pytest.mark.compiler

STEPS = pytest.mark.parametrize("step", CELLS)
# All kinds: plain, more parts of the state, a second product, a norm with a number of its own.
SOME = pytest.mark.parametrize("step", ["tanh", "lstm", "slstm", "gru", "normalized_scalar"])
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "cuda"])
FP32, BF16 = 2e-5, 1.2e-2  # relative L2; bf16 rounds inputs and matrices to 2^-9


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(stepwise, "STARTER", dense_emulator.starter)
    emulator.poison(monkeypatch.setattr)


def narrowed(step: str, size: str) -> Leaves:
    """Return tensors for bf16 products: inputs in bf16, what else products read of its numbers."""
    leaves = draw(step, size, torch.float32)
    for name, leaf in leaves.items():
        narrow = leaf.detach().to(torch.bfloat16)
        leaves[name] = (narrow if name.startswith("input") else narrow.float()).requires_grad_()
    return leaves


@cache
def wanted_of_narrowed(step: str, size: str) -> Leaves:
    """Return what the reference computes in fp64 of the same numbers, for gradients of bf16."""
    wide = {n: leaf.detach().double().requires_grad_() for n, leaf in narrowed(step, size).items()}
    outputs = call(step, wide, "reference")
    pulls = pulls_of(outputs, torch.bfloat16)
    gradients = torch.autograd.grad(outputs, list(wide.values()), [p.double() for p in pulls])
    named = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
    return named | {f"d {n}": g for n, g in zip(wide, gradients, strict=True)}


def pulls_of(outputs: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """Return gradients of the outputs at random, representable in a dtype."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(out.shape, generator=generator).to(dtype) for out in outputs]


@STEPS
@pytest.mark.parametrize("size", ["one-thread", "one-row-one-step", "rank-1"])
def test_fp32_outputs_and_gradients_are_the_references(step: str, size: str) -> None:
    """An odd number of channels, so that every thread has one."""
    found = DENSE.everything(step, draw(step, size, torch.float32), "cuda")
    check(found, DENSE.reference(step, size), FP32)


@STEPS
@pytest.mark.parametrize("size", ["even", "even-low-rank"])
def test_bf16_in_and_out(step: str, size: str) -> None:
    """Two channels of a thread; sums, states at the ends and gradients of weights are fp32."""
    check_narrow(step, narrowed(step, size), wanted_of_narrowed(step, size))


def check_narrow(step: str, leaves: Leaves, exact: Leaves) -> None:
    """Compare a call in bf16 with the exact numbers, dtypes included."""
    outputs = call(step, leaves, "cuda")
    pulls = [
        p.to(out.dtype) for p, out in zip(pulls_of(outputs, torch.bfloat16), outputs, strict=True)
    ]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    assert outputs[0].dtype == torch.bfloat16
    assert {out.dtype for out in outputs[1:]} == {torch.float32}
    assert {g.dtype for n, g in zip(leaves, gradients, strict=True) if n[:5] != "input"} == {
        torch.float32
    }
    found = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
    found |= {f"d {n}": g for n, g in zip(leaves, gradients, strict=True)}
    check(found, exact, BF16)


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
    leaves = narrowed(step, "even-heads")
    check_narrow(step, leaves, wanted_of_narrowed(step, "even-heads"))
    leaves = draw(step, "even-heads", torch.float32)
    found = DENSE.everything(step, leaves, "cuda", resets=resets_of(leaves))
    check(found, DENSE.reference(step, "even-heads", resets=True), FP32)


@SOME
@pytest.mark.parametrize("reached", [slice(0, 1), slice(1, None)], ids=["states", "last"])
def test_a_gradient_may_reach_one_output_alone(step: str, reached: slice) -> None:
    found = DENSE.everything(step, draw(step, "even", torch.float32), "cuda", reached)
    check(found, DENSE.reference(step, "even", reached), FP32)


@SOME
def test_repeats_agree_to_the_bit(step: str) -> None:
    first, second = (
        DENSE.everything(step, draw(step, "even", torch.float32), "cuda") for _ in range(2)
    )
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@SOME
def test_without_gradients_the_numbers_are_the_same(step: str) -> None:
    leaves = narrowed(step, "even")
    kept = call(step, leaves, "cuda")
    with torch.no_grad():
        free = call(step, leaves, "cuda")
    assert all(torch.equal(one, other) for one, other in zip(kept, free, strict=True))


@SOME
def test_sequences_may_lie_apart_and_begin_anywhere(step: str) -> None:
    """A part of a wider tensor, at an odd place: then a thread has one channel."""
    leaves = draw(step, "even", torch.float32)
    for name in [name for name in leaves if name.startswith("input")]:
        whole = leaves[name].detach()
        room = torch.zeros(*whole.shape[:2], whole.shape[2] + 3)
        room[..., 1:-2] = whole
        leaves[name] = room[..., 1:-2].requires_grad_()
    check(DENSE.everything(step, leaves, "cuda"), DENSE.reference(step, "even"), FP32)


@SOME
def test_a_sequence_in_two_calls_is_the_same_sequence(step: str) -> None:
    """To the bit, in bf16 too: the state between the calls is what a step reads inside of one."""
    leaves = narrowed(step, "even")
    whole, *last = call(step, leaves, "cuda")
    halves, carried = [], leaves
    for begin, end in ((0, 1), (1, 4)):
        cut = {
            name: leaf[:, begin:end] if name.startswith("input") else leaf
            for name, leaf in carried.items()
        }
        y, *state = call(step, cut, "cuda")
        halves.append(y)
        carried = carried | {f"state {n}": part for n, part in enumerate(state)}
    assert torch.equal(torch.cat(halves, dim=1), whole)
    for n, part in enumerate(last):
        assert torch.equal(carried[f"state {n}"], part)


@SOME
def test_it_is_a_good_operator(step: str) -> None:
    """Shapes and dtypes of fake tensors are those of the real ones, bf16 beside fp32."""
    leaves = narrowed(step, "even-low-rank")
    given = arguments(step, leaves, None)
    torch.library.opcheck(custom_op.DENSE.operator, (step, "cuda", True, *given))


# ---- resets


@STEPS
@pytest.mark.parametrize("size", ["one-thread", "even", "rank-1"])
def test_with_resets_they_are_the_references(step: str, size: str) -> None:
    leaves = draw(step, size, torch.float32)
    found = DENSE.everything(step, leaves, "cuda", resets=resets_of(leaves))
    check(found, DENSE.reference(step, size, resets=True), FP32)


@SOME
def test_with_resets_bf16_in_and_out(step: str) -> None:
    leaves = narrowed(step, "even")
    wide = {n: leaf.detach().double().requires_grad_() for n, leaf in leaves.items()}
    both = []
    for given, backend in ((leaves, "cuda"), (wide, "reference")):
        outputs = call(step, given, backend, resets_of(leaves))
        pulls = [
            pull.to(out.dtype)
            for pull, out in zip(pulls_of(outputs, torch.bfloat16), outputs, strict=True)
        ]
        gradients = torch.autograd.grad(outputs, list(given.values()), pulls)
        named = {f"d {n}": g for n, g in zip(given, gradients, strict=True)}
        both.append(named | {f"out {n}": out.detach() for n, out in enumerate(outputs)})
    check(*both, BF16)


@SOME
def test_a_reset_before_the_first_step_drops_the_given_state(step: str) -> None:
    check_drops(DENSE, step, "cuda", "even")


@SOME
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(step: str, first: bool) -> None:
    check_nan(DENSE, step, "cuda", "even", first=first)


@SOME
def test_no_reset_in_resets_has_the_bits_of_none(step: str) -> None:
    leaves = narrowed(step, "even")
    none = torch.zeros(leaves["input 0"].shape[:2], dtype=torch.bool)
    plain = DENSE.everything(step, leaves, "cuda")
    found = DENSE.everything(step, leaves, "cuda", resets=none)
    assert all(torch.equal(tensor, found[name]) for name, tensor in plain.items())


@SOME
def test_with_resets_it_is_a_good_operator(step: str) -> None:
    leaves = narrowed(step, "even-low-rank")
    given = arguments(step, leaves, resets_of(leaves))
    torch.library.opcheck(custom_op.DENSE.operator, (step, "cuda", True, *given))


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
        call(step, narrowed(step, "even"), "cuda")


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


# ---- the units


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    config = StepConfig("gru", torch.bfloat16, torch.float32, 2)
    compiled, emulated = (stepwise.unit_text(config, *h) for h in ((), (emulator.HEADER,)))
    assert emulated == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    assert "dense_candidate" in compiled
    shared = {path for path in included_sources(emulated) if path.parent.name != "emulation"}
    assert shared == {path for path in included_sources(compiled) if path.name != "device.cuh"}
    (engine,) = [path for path in shared if path.match("cuda/dense/*.cuh")]
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_dtype_has_no_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STARTER", stepwise._starter)
    state = torch.zeros(2, 6, dtype=torch.promote_types(dtype, torch.float32))
    x, matrix = torch.zeros(2, 3, 6, dtype=dtype), torch.zeros(6, 6, dtype=state.dtype)
    with pytest.raises(UserError, match=f"computes on bfloat16 and float32, not on {dtype}"):
        dense_recurrence("tanh", [x], [matrix], [state], backend="cuda")


def test_no_step_is_missing_from_these_sizes() -> None:
    assert set(EMULATED).isdisjoint(SIZES)
