"""E63m's kernel for a CPU: against the fp64 reference, and as an operator of PyTorch.

Shape legend: b batch, t time, n slots, i channels.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.ops.matrix_state.slots import custom_op
from elman.ops.matrix_state.slots.op import slot_recurrence

pytestmark = pytest.mark.compiler
# b, t, n, i: segments and a rest, one step, whole vectors, one of everything.
SIZES = {
    "odd": (3, 37, 5, 21),
    "one-step": (2, 1, 7, 3),
    "whole": (2, 32, 16, 16),
    "1": (1, 2, 1, 1),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
NAMES = ("k", "q", "input", "row")
Leaves = dict[str, Tensor]


def draw(size: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call; a, of ``row``, stands between 0 and 1.

    Keys and ``mix`` are about as large as a layer's: larger ones make the recurrence chaotic.
    """
    b, t, n, i = size
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    leaves = {
        "k": normal(b, t, 1, i) / i**0.5,
        "q": normal(b, t, 1, i),
        "input": normal(b, t, 1, n),
    }
    leaves |= {"row": normal(b, t, 1, n).sigmoid(), "mix": normal(n, n) / n**0.5}
    leaves["state"] = normal(b, 1, n, i)
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def mask(size: tuple[int, int, int, int]) -> Tensor:
    """Return resets at the first step, about the boundary of a segment (16) and at the last step.

    The first row alone has those on both sides of the boundary.
    """
    resets_bt = torch.zeros(size[:2], dtype=torch.bool)
    resets_bt[0, [t for t in (0, 1, 15, 17) if t < size[1]]] = True
    resets_bt[-1, [t for t in (3, 16, size[1] - 1) if 0 < t < size[1]]] = True
    return resets_bt


def everything(
    leaves: Leaves, backend: str, reached: str = "both", resets_bt: Tensor | None = None
) -> Leaves:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    parts = {name: leaves[name] for name in NAMES}
    outputs = slot_recurrence(
        parts, leaves["mix"], leaves["state"], backend=backend, resets_bt=resets_bt
    )
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for out in outputs
    ]
    chosen = {"both": (0, 1), "output": (0,), "last": (1,)}[reached]
    gradients = torch.autograd.grad(
        [outputs[i] for i in chosen],
        list(leaves.values()),
        [pulls[i] for i in chosen],
        allow_unused=True,
        materialize_grads=True,
    )
    named = {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"y": outputs[0].detach(), "last": outputs[1].detach()} | named


def check(found: Leaves, exact: Leaves, tolerance: float) -> None:
    """Compare tensors in relative L2."""
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= tolerance * exact[name].norm(), name


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_are_the_references(size, dtype) -> None:
    exact = everything(draw(size), "reference")
    check(everything(draw(size, dtype), "cpu"), exact, TOLERANCE[dtype])


def through_documents(leaves: Leaves, backend: str, resets_bt: Tensor) -> tuple[Tensor, Tensor]:
    """Return reads and last states of documents that are run by themselves."""
    reads, lasts = [], []
    for row, resets in enumerate(resets_bt.tolist()):
        begins = [t for t, reset in enumerate(resets) if reset or not t]
        parts = []
        for begin, end in zip(begins, [*begins[1:], len(resets)], strict=True):
            own = {name: leaves[name][[row], begin:end] for name in NAMES}
            first = leaves["state"][[row]]
            first = torch.zeros_like(first) if resets[begin] else first
            y_btn, last = slot_recurrence(own, leaves["mix"], first, backend=backend)
            parts.append(y_btn)
        reads.append(torch.cat(parts, dim=1))
        lasts.append(last)
    return torch.cat(reads), torch.cat(lasts)


def through_mask(leaves: Leaves, backend: str, resets_bt: Tensor) -> tuple[Tensor, Tensor]:
    parts = {name: leaves[name] for name in NAMES}
    given = parts, leaves["mix"], leaves["state"]
    return slot_recurrence(*given, backend=backend, resets_bt=resets_bt)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_resets_part_documents(backend) -> None:
    size = SIZES["odd"]
    found = []
    for run in (through_mask, through_documents):
        leaves = draw(size)
        out = run(leaves, backend, mask(size))
        total = sum((one * torch.linspace(-1, 1, one.numel()).view_as(one)).sum() for one in out)
        found.append([*out, *torch.autograd.grad(total, list(leaves.values()))])
    for name, one, other in zip(("y", "last", *leaves), *found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=name)
    assert not found[0][-1][0].any()  # nothing reaches the first state of row 0
    assert found[0][-1][1].any()


def test_gradcheck_with_resets() -> None:
    size = (2, 4, 3, 2)
    resets_bt = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]).bool()

    def flat(*given: Tensor) -> tuple[Tensor, Tensor]:
        return through_mask(dict(zip(draw(size), given, strict=True)), "reference", resets_bt)

    assert torch.autograd.gradcheck(flat, list(draw(size).values()), fast_mode=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_with_resets_are_the_references(size, dtype) -> None:
    exact = everything(draw(size), "reference", resets_bt=mask(size))
    found = everything(draw(size, dtype), "cpu", resets_bt=mask(size))
    check(found, exact, TOLERANCE[dtype])


def nothing_passes(backend: str, tolerance: float = 0.0) -> None:
    """Assert that a number which is not finite stays on its side of a reset."""
    size = (2, 19, 4, 9)
    wanted = everything(draw(size), backend, resets_bt=mask(size))
    leaves = draw(size)
    with torch.no_grad():
        leaves["input"][1, 2] = torch.nan  # row 1 is reset at steps 3, 16 and 18
        leaves["state"][0] = torch.inf  # and row 0 at the first one
    found = everything(leaves, backend, resets_bt=mask(size))
    assert found["y"][1, 2].isnan().all()
    for name in ("y", "d input", "d k", "d q", "d row"):
        for rows in (found[name][0], found[name][1, 3:]):
            assert rows.isfinite().all(), name
        torch.testing.assert_close(
            found[name][1, 3:], wanted[name][1, 3:], rtol=tolerance, atol=0, msg=name
        )
    assert found["last"].isfinite().all()
    assert not found["d state"][0].any()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nothing_passes_a_reset(backend) -> None:
    nothing_passes(backend)


@pytest.mark.parametrize("reached", ["output", "last"])
def test_gradients_of_one_output_alone(reached) -> None:
    leaves = draw((2, 19, 4, 9))
    check(everything(leaves, "cpu", reached), everything(leaves, "reference", reached), 1e-10)


@pytest.mark.parametrize("with_resets", [False, True], ids=["whole", "resets"])
def test_nothing_uninitialized_is_read_or_returned(with_resets, monkeypatch) -> None:
    """With NaN in every fresh buffer, the workspace too, not a bit changes."""
    leaves = draw((2, 19, 4, 9), torch.float32)
    resets_bt = mask((2, 19, 4, 9)) if with_resets else None
    before = everything(leaves, "cpu", resets_bt=resets_bt)
    make = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: make(*a, **k).fill_(torch.nan))
    for name, tensor in everything(leaves, "cpu", resets_bt=resets_bt).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, msg=name)


def test_the_number_of_threads_changes_no_bit(monkeypatch) -> None:
    leaves = draw((3, 20, 6, 33), torch.float32)
    results = []
    for threads in (1, 2, 8):
        monkeypatch.setattr(custom_op, "kernel_threads", lambda _, n=threads: n)
        results.append(everything(leaves, "cpu"))
    for other in results[1:]:
        for name, tensor in other.items():
            torch.testing.assert_close(tensor, results[0][name], rtol=0, atol=0, msg=name)


def test_a_nan_stays_in_its_own_sequence() -> None:
    leaves = draw((2, 6, 3, 5))
    key = leaves["k"].detach().clone()
    key[1, 3] = torch.nan
    found = everything(leaves | {"k": key.requires_grad_()}, "cpu")
    assert found["y"][1, 3:].isnan().all()
    torch.testing.assert_close(found["y"][0], everything(leaves, "cpu")["y"][0], rtol=0, atol=0)


@pytest.mark.parametrize("size", [(2, 0, 3, 5), (0, 4, 3, 5)], ids=["no-steps", "no-sequences"])
def test_nothing_to_do(size) -> None:
    leaves = draw(size)
    found = everything(leaves, "cpu")
    torch.testing.assert_close(found["last"], leaves["state"].detach(), rtol=0, atol=0)
    assert not found["d mix"].any()


@pytest.mark.parametrize("with_resets", [False, True], ids=["whole", "resets"])
def test_opcheck(with_resets) -> None:
    resets_bt = mask((2, 18, 3, 5)) if with_resets else None
    leaves = draw((2, 18, 3, 5), torch.float32)
    arguments = [leaves[name].squeeze(2) for name in NAMES]
    arguments = [one.detach().requires_grad_() for one in arguments]
    arguments += [leaves["mix"], leaves["state"].detach().squeeze(1).requires_grad_()]
    torch.library.opcheck(custom_op.SLOTS.operator, ("cpu", *arguments, resets_bt))
    k, q, _, row, mix, _ = (one.detach() for one in arguments)
    y, last, *kept = (
        one.detach() for one in custom_op.SLOTS.operator("cpu", *arguments, resets_bt)
    )
    for dy, dlast in ((y, last), (None, last), (y, None)):
        torch.library.opcheck(
            custom_op.SLOTS.backward_operator, ("cpu", dy, dlast, k, q, row, mix, *kept, resets_bt)
        )


@pytest.mark.parametrize("name", ["q", "input", "row"])
def test_a_sequence_of_another_width_is_refused(name) -> None:
    leaves = draw((2, 4, 3, 5))
    leaves[name] = leaves[name][..., :-1]
    with pytest.raises(ValueError, match=rf"^{name} of matrix_state e63m: shape .*, expected "):
        everything(leaves, "cpu")


def test_the_operator_itself_refuses_what_it_would_misread() -> None:
    leaves = draw((2, 4, 3, 5), torch.float32)
    given = {name: leaves[name].detach().squeeze(2) for name in NAMES}
    given |= {"mix": leaves["mix"].detach(), "state": leaves["state"].detach().squeeze(1)}
    custom_op.SLOTS.operator("cpu", *given.values(), None)
    for change in (
        {"state": given["state"][:1]},
        {"state": given["state"].double()},
        {"mix": given["mix"][:1]},
        {"row": given["row"].half()},
        {"k": given["k"][:, :0]},
        {name: one[:0] for name, one in given.items() if name != "mix"},
    ):
        with pytest.raises(ValueError, match=r" of .*expected "):
            custom_op.SLOTS.operator("cpu", *(given | change).values(), None)


@pytest.mark.parametrize("variant", ["full", "lite", "rnn"])
def test_the_layer_runs_on_the_kernel(variant) -> None:
    """It ran on the reference alone, a Python loop over time."""
    torch.manual_seed(0)
    options = {"variant": variant, "n_state": 3, "expansion": 1.5}
    layer = elman.layers.E63m(8, **options, backend="cpu").double()
    plain = elman.layers.E63m(8, **options, backend="reference").double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    found = []
    for module in (layer, plain):
        y, state = module(x)
        y, state = module(y, state)
        total = y.square().sum() + state["S"].square().sum()
        found.append(torch.autograd.grad(total, list(module.parameters())))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
