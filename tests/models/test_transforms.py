"""What PyTorch's transforms make of every layer: right, or one line that refuses.

Right is what central differences of the layer itself give in fp64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad

import elman.layers
from elman.base.errors import UserError
from elman.models.language_model import LanguageModel
from tests.models.cases import CASES, DIM, build

STEP = 1e-6
Flat = list[Tensor]


class Subject:
    """A layer as a function of its input, its state and its weights.

    Attributes:
        at: Where it is looked at: input, parts of the state, weights.
        along: A direction from there.
    """

    def __init__(self, case: Any, backend: str) -> None:
        self.layer = build(case, dtype=torch.float64, backend=backend)
        x = torch.randn(2, 3, DIM, dtype=torch.float64)
        with torch.no_grad():
            state = self.layer(x)[1]
        self.parts = list(state)
        weights = {n: p.detach() for n, p in self.layer.named_parameters() if p.requires_grad}
        self.weights = list(weights)
        self.at = [x, *(torch.randn_like(one) * 0.5 for one in state.values()), *weights.values()]
        if "n" in state:  # a sum of positive numbers
            self.at[1 + self.parts.index("n")] = state["n"]
        self.along = [torch.randn_like(one) for one in self.at]

    def __call__(self, *given: Tensor) -> Tensor:
        """Return the output and the last state as one vector."""
        x, rest = given[0], given[1:]
        state = dict(zip(self.parts, rest, strict=False))
        named = dict(zip(self.weights, rest[len(self.parts) :], strict=True))
        y, last = func.functional_call(self.layer, named, (x, state))
        return torch.cat([y.flatten(), *(last[name].flatten() for name in self.parts)])

    def of(self, number: int) -> Callable[[Tensor], Tensor]:
        """Return the layer as a function of one of its arguments."""
        return lambda one: self(*self.at[:number], one, *self.at[number + 1 :])

    def of_row(self, x_td: Tensor) -> Tensor:
        """Return the output of a single row without a state."""
        return self.layer(x_td.unsqueeze(0))[0].squeeze(0)

    def loss(self, *given: Tensor) -> Tensor:
        """Return a number whose gradient comes from constants, too: some outputs are added up."""
        y = self(*given)
        half = y.numel() // 2
        return y[:half].sum() + y[half:].sin().sum()

    def gradients(self, *given: Tensor) -> Tensor:
        leaves = [one.detach().clone().requires_grad_() for one in given]
        found = torch.autograd.grad(self.loss(*leaves), leaves, allow_unused=True)
        return flat(found, leaves)


def flat(found: Any, like: Any) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(o) if one is None else one).flatten()
            for one, o in zip(found, like, strict=True)
        ]
    )


def difference(run: Callable[..., Tensor], at: Flat, along: Flat) -> Tensor:
    """Return the central difference of a function along a direction."""
    ahead, behind = (
        [one + sign * STEP * step for one, step in zip(at, along, strict=True)] for sign in (1, -1)
    )
    return (run(*ahead) - run(*behind)).detach() / (2 * STEP)


def close(found: Tensor, wanted: Tensor) -> None:
    assert wanted.norm() > 1e-3, "nothing to compare"
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------- the transforms


def jvp(one: Subject) -> None:
    found = func.jvp(one, tuple(one.at), tuple(one.along))[1]
    close(found, difference(one, one.at, one.along))


def dual_numbers(one: Subject) -> None:
    with forward_ad.dual_level():
        given = [forward_ad.make_dual(a, v) for a, v in zip(one.at, one.along, strict=True)]
        found = forward_ad.unpack_dual(one(*given)).tangent
    close(found, difference(one, one.at, one.along))


def dual_state(one: Subject) -> None:
    """The tangent of the state alone, without a gradient anywhere: Lyapunov exponents."""
    at = one.at[1]
    with torch.no_grad(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(one.of(1)(forward_ad.make_dual(at, one.along[1]))).tangent
    close(found, difference(one.of(1), [at], one.along[1:2]))


def jacobian(transform: Any, number: int) -> Callable[[Subject], None]:
    def run(one: Subject) -> None:
        at, along = one.at[number], one.along[number]
        whole = transform(one.of(number))(at)
        close(torch.tensordot(whole, along, along.ndim), difference(one.of(number), [at], [along]))

    return run


def vectorized(run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda at: torch.autograd.functional.jacobian(run, at, vectorize=True)


def vmap(one: Subject) -> None:
    x_btd = one.at[0]
    close(func.vmap(one.of_row)(x_btd), torch.stack([one.of_row(x_td) for x_td in x_btd]))


def vmap_of_grad(one: Subject) -> None:
    def nonlinear(x_td: Tensor) -> Tensor:
        return one.of_row(x_td).sin().sum()

    x_btd = one.at[0].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(sum(nonlinear(x_td) for x_td in x_btd), x_btd)
    close(func.vmap(func.grad(nonlinear))(x_btd.detach()), wanted)
    found = func.grad(lambda x: func.vmap(one.of_row)(x).sin().sum())(x_btd.detach())
    close(found, wanted)


def grad(one: Subject) -> None:
    numbers = tuple(range(len(one.at)))
    found = flat(func.grad(one.loss, numbers)(*one.at), one.at)
    close(found, one.gradients(*one.at))


def double_backward(one: Subject) -> None:
    leaves = [a.clone().requires_grad_() for a in one.at]
    first = torch.autograd.grad(one.loss(*leaves), leaves, create_graph=True, allow_unused=True)
    pairs = zip(first, one.along, strict=True)
    along = sum((g * v).sum() for g, v in pairs if g is not None)
    second = torch.autograd.grad(along, leaves, allow_unused=True)
    close(flat(second, leaves), difference(one.gradients, one.at, one.along))


def forward_over_reverse(one: Subject) -> None:
    numbers = tuple(range(len(one.at)))
    run = func.grad(one.loss, numbers)
    found = func.jvp(run, tuple(one.at), tuple(one.along))[1]
    close(flat(found, one.at), difference(one.gradients, one.at, one.along))


def hessian(one: Subject) -> None:
    at, along = one.at[1], one.along[1]
    whole = func.hessian(lambda state: one.loss(one.at[0], state, *one.at[2:]))(at)
    wanted = difference(lambda s: one.gradients(one.at[0], s, *one.at[2:]), [at], [along])
    start = one.at[0].numel()
    close(torch.tensordot(whole, along, along.ndim).flatten(), wanted[start : start + at.numel()])


def replaced_weights(one: Subject) -> None:
    wanted = one(*one.at[: 1 + len(one.parts)], *one.along[1 + len(one.parts) :])
    named = dict(zip(one.weights, one.along[1 + len(one.parts) :], strict=True))
    one.layer.load_state_dict(named, strict=False)
    state = dict(zip(one.parts, one.at[1:], strict=False))
    y, last = one.layer(one.at[0], state)
    close(wanted, torch.cat([y.flatten(), *(last[name].flatten() for name in one.parts)]))


RIGHT = {
    "grad": grad,
    "vmap": vmap,
    "vmap of grad": vmap_of_grad,
    "jacrev": jacobian(func.jacrev, 0),
    "jacrev of the state": jacobian(func.jacrev, 1),
    "functional_call": replaced_weights,
}
"""What every backend computes."""
REFUSED = {
    "jvp": jvp,
    "forward_ad": dual_numbers,
    "forward_ad of the state": dual_state,
    "jacfwd": jacobian(func.jacfwd, 0),
    "jacfwd of the state": jacobian(func.jacfwd, 1),
    "vectorized jacobian": jacobian(vectorized, 0),
    "double backward": double_backward,
    "forward over reverse": forward_over_reverse,
    "hessian": hessian,
}
"""What plain PyTorch alone computes."""


REASONS = r"kernels have no (forward-mode|second) derivative|has no batched backward pass"
# What PyTorch's own layers lack, with PyTorch's own errors: no other backend has it.
LACKING = {
    ("gru", "vmap"): "Batching rule not implemented for aten::gru",
    ("gru", "vmap of grad"): "Batching rule not implemented for aten::gru",
    ("lstm", "vmap"): "Batching rule not implemented for aten::lstm",
    ("lstm", "vmap of grad"): "Batching rule not implemented for aten::lstm",
    ("llama", "double backward"): "_flash_attention_for_cpu_backward is not implemented",
}
# One of each engine and each piece around one: convolutions, norms, gates, resets' tapes.
QUICK = set(CASES) & {
    *("e88-conv", "e1-conv", "e4", "e23", "e61-tanh", "e63m-lite", "e74-diagonal-ema"),
    *("e70-final", "m2rnn", "mingru", "mamba2", "mamba3", "fla-gdn", "deltaproduct", "kda"),
    *("rwkv7", "llama", "gru", "lstm", "slstm"),
}


def of(names: Iterable[str], backend: str) -> list[Any]:
    """Return each case that has a backend with each transform; only some are quick."""
    found = []
    for name in names:
        cell = getattr(elman.layers, CASES[name][0]).cell
        own = cell.backends[0] if backend == "reference" else backend
        if own not in cell.backends:
            continue
        marks = [] if name in QUICK else [pytest.mark.slow]
        found += [
            pytest.param(name, own, transform, marks=marks, id=f"{name}-{own}-{transform}")
            for transform in RIGHT | REFUSED
        ]
    return found


@pytest.mark.parametrize(("name", "backend", "transform"), of(CASES, "reference"))
def test_plain_pytorch_has_every_transform(name: str, backend: str, transform: str) -> None:
    one = Subject(CASES[name], backend)
    cell = one.layer.cell.name
    if said := LACKING.get((cell, transform)):
        with pytest.raises(RuntimeError, match=said):
            (RIGHT | REFUSED)[transform](one)
        return
    (RIGHT | REFUSED)[transform](one)


@pytest.mark.parametrize(("name", "backend", "transform"), of(CASES, "cpu"))
def test_a_kernel_has_a_transform_or_refuses_it(name: str, backend: str, transform: str) -> None:
    try:
        one = Subject(CASES[name], backend)
    except UserError as problem:
        pytest.skip(str(problem))  # these options have no kernel
    if transform in RIGHT:
        RIGHT[transform](one)
        return
    with pytest.raises(UserError, match=REASONS) as refused:
        REFUSED[transform](one)
    assert 'use backend="reference"' in str(refused.value)


def test_a_tangent_that_the_layer_does_not_read_refuses_nothing() -> None:
    one = Subject(CASES["e88"], "cpu")
    x_btd = one.at[0]
    wanted = one.layer(x_btd)[0]
    with forward_ad.dual_level():
        scale = forward_ad.make_dual(torch.ones(()), torch.ones(()))
        found = forward_ad.unpack_dual(one.layer(x_btd)[0].detach() * scale).tangent
    torch.testing.assert_close(found, wanted.detach())


@pytest.mark.parametrize("name", ["e88", "e61", "e1", "e70", "e23", "llama"])
def test_weights_of_a_language_model_can_be_replaced(name: str) -> None:
    cases = [CASES[name], CASES[name]]
    model = LanguageModel(DIM, [build(case, dtype=torch.float64) for case in cases]).double()
    other = {n: p.detach() * 0.9 for n, p in model.named_parameters()}
    tokens_bt = torch.arange(10).reshape(2, 5)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        logits_btv = func.functional_call(model, weights, (tokens_bt,))[0]
        return logits_btv.sin().sum()

    found = func.grad(loss)(other)
    model.load_state_dict(other, strict=False)
    model(tokens_bt)[0].sin().sum().backward()
    for n, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[n], parameter.grad)
