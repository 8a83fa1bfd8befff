"""The channel engine's CPU kernels: against the fp64 reference, and as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.cells import registry
from elman.ops.channel import cpu, custom_op, op, source, steps
from elman.ops.channel.plan import Plan, parse
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import Slice, row_blocks
from tests.ops.whole import compile_channel

# ---- what is run ----


def plain(step: str, **more: Any) -> Callable[[int], Plan]:
    """Return a plan by width whose inputs are blocks of one fused projection."""
    inputs = CELLS[step].inputs
    return lambda c: Plan(step, tuple(row_blocks(dict.fromkeys(inputs, c)).items()), **more)


def gated(step: str) -> Callable[[int], Plan]:
    return plain(step, self_gate=True)


def keyed(step: str, query: int, value: int = 1) -> Callable[[int], Plan]:
    """Return a plan of E74: keys normalized, value and query from any block."""

    def make(c: int) -> Plan:
        places = row_blocks(dict.fromkeys(CELLS[step].inputs, c)) | {"value": Slice(0, value * c)}
        return Plan(
            step, tuple(places.items()), unit="key", query=Slice(0, query * c), self_gate=True
        )

    return make


PLANS: dict[str, Callable[[int], Plan]] = {
    **{step: gated(step) for step in CELLS if not step.startswith(("e74", "min"))},
    **{step: plain(step) for step in ("mingru", "minlstm", "minlstm_parallel")},
    "e65-states": plain("e65"),
    "e34-read": lambda c: Plan("e34", (("candidate", Slice(0, 0)),), query=Slice(0, c)),
    "mingru-tied": lambda c: Plan("mingru", (("candidate", Slice(0, 0)), ("gate", Slice(0, 0)))),
    **{
        f"e74_{update}_{phi}": keyed(f"e74_{update}_{phi}", 3 if update == "ema" else 2)
        for update in ("delta", "simple", "ema", "retain", "state")
        for phi in ("tanh", "linear")
    },
    **{
        step: keyed(step, 3 if "ema" in step else 2)
        for step in (
            "e74_delta_rmsnorm",
            "e74_simple_frobnorm",
            "e74_ema_frobnorm",
            "e74_retain_frobnorm",
            "e74_state_rmsnorm",
        )
    },
    "e74-tied-kq": keyed("e74_state_tanh", 0),
    "e74-tied-kvq": keyed("e74_delta_tanh", 0, value=0),
    "e74-key-alone": plain("e74_delta_tanh", unit="key"),
}
plans = pytest.mark.parametrize("name", PLANS)
SOME = pytest.mark.parametrize(
    "name", ["e34", "e59b", "e65", "e68_inverse", "minlstm", "e74-tied-kvq"]
)

SIZES = {
    "odd": (3, 37, 21),
    "one-step": (2, 1, 64),
    "one-row-few-channels": (1, 17, 3),
    "whole-vectors": (2, 32, 32),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
Leaves = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        compile_channel(dtype)


def draw(plan: Plan, size: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call by name, the fused projection as ``source``."""
    b, t, c = size
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    width = max(place.start for place in plan.slices()) + c
    leaves = {"source": normal(b, t, width)}
    cell = CELLS[plan.step]
    leaves |= {name: normal(1 if name in cell.scalars else c) for name in cell.parameters}
    if plan.step == "e34":
        leaves["coefficient"] = leaves["coefficient"].clamp(-0.99, 0.99)
    leaves["state"] = normal(b, c)
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def call(
    plan: Plan, leaves: Leaves, backend: str, resets_bt: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run a plan."""
    parameters = {name: leaves[name] for name in CELLS[plan.step].parameters}
    given = (plan, [leaves["source"]], parameters, leaves["state"])
    return op.run(*given, backend=backend, resets_bt=resets_bt)


def everything(
    plan: Plan,
    leaves: Leaves,
    backend: str,
    reached: str = "both",
    resets_bt: Tensor | None = None,
) -> Leaves:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    y, last = call(plan, leaves, backend, resets_bt)
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for out in (y, last)
    ]
    chosen = {"both": (0, 1), "output": (0,), "last": (1,)}[reached]
    outputs, pulls = [(y, last)[i] for i in chosen], [pulls[i] for i in chosen]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    named = {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"y": y.detach(), "last": last.detach()} | named


@cache
def wanted(name: str, size: tuple[int, int, int], reached: str = "both") -> Leaves:
    """Return what the reference computes in fp64."""
    plan = PLANS[name](size[2])
    return everything(plan, draw(plan, size), "reference", reached)


def check(found: Leaves, exact: Leaves, tolerance: float) -> None:
    """Compare tensors in relative L2."""
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= tolerance * exact[name].norm(), (name, error / exact[name].norm())


def identical(found: Leaves, other: Leaves) -> None:
    """Compare tensors to the last bit."""
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=0, msg=name)


# ---- numbers ----


@plans
@DTYPES
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_are_the_references(name, dtype, size) -> None:
    plan = PLANS[name](size[2])
    check(everything(plan, draw(plan, size, dtype), "cpu"), wanted(name, size), TOLERANCE[dtype])


@plans
@pytest.mark.parametrize("reached", ["output", "last"])
def test_gradients_of_one_output_alone(name, reached) -> None:
    plan, size = PLANS[name](21), (2, 19, 21)
    check(everything(plan, draw(plan, size), "cpu", reached), wanted(name, size, reached), 1e-9)


def test_every_step_has_a_kernel() -> None:
    assert set(CELLS) == set(steps.STEPS) | {"mingru_parallel", "minlstm_parallel"}


@SOME
@pytest.mark.parametrize("steps", [15, 16, 17, 33])
def test_any_number_of_steps_around_the_kept_states(name, steps) -> None:
    plan, size = PLANS[name](5), (2, steps, 5)
    check(everything(plan, draw(plan, size), "cpu"), wanted(name, size), 1e-9)


@pytest.mark.parametrize("name", ["e59", "e65", "e74_retain_tanh", "e74_delta_rmsnorm"])
def test_more_channels_than_one_slab_holds(name) -> None:
    plan, size = PLANS[name](1101), (1, 18, 1101)
    check(everything(plan, draw(plan, size, torch.float32), "cpu"), wanted(name, size), 1e-4)


@SOME
def test_the_number_of_threads_changes_no_bit(name, monkeypatch) -> None:
    """Sums over batch and time have one order."""
    plan = PLANS[name](300)
    leaves = draw(plan, (3, 40, 300), torch.float32)
    results = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(cpu, "kernel_threads", lambda _, n=threads: n)
        results.append(everything(plan, leaves, "cpu"))
    for other in results[1:]:
        identical(other, results[0])


@pytest.mark.parametrize("name", ["e34", "e59", "e59b", "e61", "e62", "e64", "e65", "e67", "e68"])
def test_sums_over_many_steps_keep_fp32_accuracy(name) -> None:
    plan, size = PLANS[name](3), (8, 512, 3)
    found = everything(plan, draw(plan, size, torch.float32), "cpu")
    check(found, wanted(name, size), 2e-5)


@pytest.mark.parametrize("name", ["mingru", "minlstm"])
@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_saturated_gates_give_finite_numbers(name, scale) -> None:
    plan, size = PLANS[name](5), (2, 80, 5)
    exact = {n: (scale * x).detach().requires_grad_() for n, x in draw(plan, size).items()}
    single = {n: x.detach().float().requires_grad_() for n, x in exact.items()}
    found = everything(plan, single, "cpu")
    assert all(tensor.isfinite().all() for tensor in found.values())
    check(found, everything(plan, exact, "reference"), 1e-4)


@pytest.mark.parametrize("name", ["e74_delta_tanh", "e74-tied-kvq"])
def test_a_key_of_zeros_has_no_direction(name) -> None:
    """The slope of its norm is taken as 0, as PyTorch does."""
    plan, size = PLANS[name](5), (2, 4, 5)
    leaves = draw(plan, size)
    source = leaves["source"].detach().clone()
    source[:, 1, :5] = 0
    leaves["source"] = source.requires_grad_()
    check(everything(plan, leaves, "cpu"), everything(plan, leaves, "reference"), 1e-9)


# ---- memory ----


@plans
def test_nothing_uninitialized_is_read_or_returned(name, monkeypatch) -> None:
    """With NaN in every fresh buffer, the workspace too, not a bit changes."""
    plan = PLANS[name](21)
    leaves = draw(plan, (2, 19, 21), torch.float32)
    before = everything(plan, leaves, "cpu")
    for owner, word in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        make = getattr(owner, word)
        monkeypatch.setattr(owner, word, lambda *a, make=make, **k: make(*a, **k).fill_(torch.nan))
    identical(everything(plan, leaves, "cpu"), before)


@SOME
@pytest.mark.parametrize("layout", ["time-first", "channels-apart", "part-of-a-wider-row"])
def test_sources_are_read_where_they_lie(name, layout) -> None:
    plan = PLANS[name](13)
    leaves = draw(plan, (3, 18, 13))
    expected = everything(plan, leaves, "cpu")
    given = leaves["source"].detach()
    if layout == "time-first":
        laid = given.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "channels-apart":
        laid = given.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        laid = torch.cat([given, given, given], -1).narrow(-1, given.shape[-1], given.shape[-1])
    assert not laid.is_contiguous()
    identical(everything(plan, leaves | {"source": laid.requires_grad_()}, "cpu"), expected)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_several_sources_and_columns_that_nothing_reads(backend) -> None:
    """Their gradients are 0."""
    plan = Plan("e61", (("retain", Slice(1, 3)), ("candidate", Slice(0, 5))))
    sources = [torch.randn(2, 5, n, dtype=torch.float64, requires_grad=True) for n in (11, 8)]
    parameters = {name: torch.randn(4, dtype=torch.float64) for name in CELLS["e61"].parameters}
    state = torch.randn(2, 4, dtype=torch.float64)
    y, last = op.run(plan, sources, parameters, state, backend=backend)
    apart = {"retain": sources[1][..., 3:7], "candidate": sources[0][..., 5:9]}
    h, final = op.channel("e61", apart, parameters, state, backend="reference")
    torch.testing.assert_close((y, last), (h, final))
    found = torch.autograd.grad(y.square().sum(), sources)
    torch.testing.assert_close(found, torch.autograd.grad(h.square().sum(), sources))
    assert (found[0][..., :5] == 0).all()
    assert (found[1][..., 7:] == 0).all()


@SOME
def test_arguments_stay_as_they_are(name) -> None:
    plan = PLANS[name](13)
    leaves = draw(plan, (3, 18, 13))
    before = {n: leaf.detach().clone() for n, leaf in leaves.items()}
    everything(plan, leaves, "cpu")
    identical({n: leaf.detach() for n, leaf in leaves.items()}, before)


@SOME
def test_a_nan_goes_through_its_own_channel_alone(name) -> None:
    plan = PLANS[name](21)
    leaves = draw(plan, (2, 20, 21), torch.float32)
    clean = call(plan, leaves, "cpu")[0].detach()
    source = leaves["source"].detach().clone()
    source[1, 18, 20] = torch.nan
    y, last = call(plan, leaves | {"source": source}, "cpu")
    assert y[1, 18:, 20].isnan().all()
    assert last[1, 20].isnan()
    if (
        plan.unit is None and not CELLS[plan.step].norm
    ):  # a norm carries it to every channel of its row
        y[1, 18:, 20] = clean[1, 18:, 20]
        torch.testing.assert_close(y, clean, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["e65", "mingru"])
def test_backward_keeps_the_source_and_every_sixteenth_state(name) -> None:
    plan, (b, t, c) = PLANS[name](32), (2, 40, 32)
    leaves = draw(plan, (b, t, c), torch.float32)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        call(plan, leaves, "cpu")
    parameters = len(CELLS[plan.step].parameters) * c
    assert sum(kept.values()) == leaves["source"].numel() + parameters + b * 3 * c


# ---- operators ----


def operands(name: str) -> tuple[Plan, Leaves, list[Tensor]]:
    plan = PLANS[name](5)
    leaves = draw(plan, (2, 18, 5), torch.float32)
    return plan, leaves, [leaves[p] for p in CELLS[plan.step].parameters]


@pytest.mark.parametrize("name", ["e59b", "e65", "mingru", "e74-tied-kq", "e74_ema_frobnorm"])
def test_opcheck(name) -> None:
    plan, leaves, parameters = operands(name)
    arguments = (plan.text, "cpu", [leaves["source"]], parameters, leaves["state"], None)
    torch.library.opcheck(custom_op.CHANNEL.operator, arguments)
    y, last, kept = (tensor.detach() for tensor in custom_op.CHANNEL.operator(*arguments))
    detached = [leaf.detach() for leaf in parameters]
    for dy, dlast in ((y, last), (None, last), (y, None)):
        given = (plan.text, "cpu", dy, dlast, [leaves["source"].detach()], detached, kept, None)
        torch.library.opcheck(custom_op.CHANNEL.backward_operator, given)


def test_autocast_keeps_the_engine_in_fp32() -> None:
    plan, leaves, parameters = operands("e65")
    rest = (parameters, leaves["state"], None)
    exact = custom_op.CHANNEL.operator(plan.text, "cpu", [leaves["source"]], *rest)
    narrow = leaves["source"].to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = custom_op.CHANNEL.operator(plan.text, "cpu", [narrow], *rest)
    assert {tensor.dtype for tensor in found} == {torch.float32}
    assert (found[0] - exact[0]).norm() < 1e-2 * exact[0].norm()


COMPILED = {
    "e59": ("E59", {"use_conv": True}),
    "e65": ("E65", {"use_conv": True}),
    "mingru": ("MinGRU", {"expansion": 1.5}),
    "e74_diagonal": ("E74Diagonal", {"n_state": 5, "projection": "tied_kq"}),
}


@pytest.mark.parametrize("case", COMPILED.values(), ids=COMPILED)
def test_torch_compile_takes_a_layer_as_one_graph(case) -> None:
    name, options = case
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(12, **options, backend="cpu")
    x = torch.randn(2, 9, 12)
    torch._dynamo.reset()
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for module in (layer, whole):
        y, state = module(x)
        y, _ = module(y, state)
        gradients = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
        results.append([y, *gradients])
    for found, eager in zip(*results, strict=True):
        torch.testing.assert_close(found, eager)


# ---- plans, and what has no kernel ----


@plans
def test_a_plan_survives_being_written_as_a_word(name) -> None:
    plan = PLANS[name](7)
    assert parse(plan.text) == plan


def test_what_has_no_kernel_says_so() -> None:
    inputs, state = {"key": torch.randn(1, 2, 3), "value": torch.randn(1, 2, 3)}, torch.zeros(1, 3)
    with pytest.raises(UserError, match=r"^kernels.backend=cpu: step e74_ghost has no kernel"):
        source.spec_for(Plan("e74_ghost", (("key", Slice(0, 0)),)), torch.float32)
    with pytest.raises(
        ValueError, match=r"^state of channel e74_delta_tanh: dtype bfloat16, expected float32$"
    ):
        op.channel("e74_delta_tanh", inputs, {}, state.bfloat16(), backend="cpu")
    plan = Plan("mingru", (("candidate", Slice(0, 0)), ("gate", Slice(0, 3))))
    with pytest.raises(UserError, match=r"^kernels.backend=cpu: computes in float32 and float64, "):
        source.spec_for(plan, torch.bfloat16)


@pytest.mark.parametrize("step", ["e74_delta_rmsnorm", "e74_simple_frobnorm"])
def test_a_state_of_zeros_has_no_direction(step) -> None:
    """The slope of its norm is taken as 0, as PyTorch does."""
    plan = PLANS[step](5)
    leaves = {n: torch.zeros_like(x).requires_grad_() for n, x in draw(plan, (2, 3, 5)).items()}
    found, exact = (everything(plan, leaves, backend) for backend in ("cpu", "reference"))
    assert found["d state"].abs().max() > 1e12  # 1e6 for every step
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["e59", "e59b", "e74_state_rmsnorm", "e74_simple_frobnorm"])
def test_a_norm_reads_every_channel_of_its_own_row_alone(name) -> None:
    plan = PLANS[name](21)
    leaves = draw(plan, (2, 4, 21), torch.float32)
    before = call(plan, leaves, "cpu")[0].detach()
    source = leaves["source"].detach().clone()
    source[1, 2] += 1
    y = call(plan, leaves | {"source": source}, "cpu")[0].detach()
    assert (y[1, 2:] != before[1, 2:]).all(-1).any()
    y[1, 2:] = before[1, 2:]
    torch.testing.assert_close(y, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("E59", {}),
        ("E59b", {}),
        ("E59c", {}),
        ("E74Diagonal", {"nonlinearity": "frobnorm", "n_state": 7}),
    ],
    ids=["e59", "e59b", "e59c", "e74-frobnorm"],
)
def test_layers_with_a_norm_over_the_channels_run_on_a_kernel(name, options) -> None:
    """They ran on the reference alone, a Python loop over time."""
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(8, **options, backend="cpu").double()
    plain = getattr(elman.layers, name)(8, **options, backend="reference").double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    gradients = []
    for module in (layer, plain):
        y, state = module(x)
        y, state = module(y, state)
        total = y.square().sum() + state["h"].square().mul(y.new_tensor(0.3)).sum()
        gradients.append(torch.autograd.grad(total, list(module.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_the_cells_of_the_engine_say_which_backends_they_have() -> None:
    cells = [cell for cell in registry.cells().values() if cell.engine == "channel"]
    own = [cell for cell in cells if cell.layer.startswith("elman.")]
    assert {cell.backends for cell in own} == {("reference", "cpu", "cuda")}
    assert not any(cell.reason for cell in own)
