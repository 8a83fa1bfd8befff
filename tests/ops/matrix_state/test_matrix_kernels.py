"""The matrix-state engine's CPU kernels: against the fp64 reference, and as operators of PyTorch.

Between them the layers below have every cell, map, epilogue, tie and kind of size, a kernel each.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.cells import registry
from elman.models.cells.declaration import Cell
from elman.ops.common.slices import Slice
from elman.ops.matrix_state import cpu, custom_op, op
from elman.ops.matrix_state.plan import Plan, parse
from elman.ops.matrix_state.recurrences import CELLS
from elman.ops.matrix_state.steps import ADAPTERS, STEPS
from tests.ops.whole import compile_matrix

DIM = 8
Case = tuple[str, dict[str, Any]]
LAYERS: dict[str, Case] = {
    "e14-rectangle": ("E14", {"n_state": 5, "expansion": 2.5}),
    "e70-n16": ("E70", {"n_state": 16}),
    "e70-linear-n9": ("E70", {"n_state": 9, "linear_state": True}),
    "e71-n20": ("E71", {"n_state": 20}),
    "e72-n7": ("E72", {"n_state": 7}),
    "e72-inverse-n1": ("E72", {"n_state": 1, "variant": "inverse"}),
    "e73-column-n33": ("E73", {"n_state": 33}),
    "e73-row-n12": ("E73", {"n_state": 12, "variant": "row", "z_activation": "tanh"}),
    "e73-full-n28": ("E73", {"n_state": 28, "variant": "full", "use_conv": True}),
    "e73-delta-n6": ("E73", {"n_state": 6, "rule": "delta", "variant": "full"}),
    "e73cp-n20": ("E73cp", {"n_state": 20}),
    "e74-state-n24": ("E74", {"n_state": 24, "gate": "state", "projection": "full"}),
    "e74-retain-n5": ("E74", {"n_state": 5, "gate": "retain", "nonlinearity": "linear"}),
    "e74-residual-n10": ("E74", {"n_state": 10, "update": "residual", "gate": "input"}),
    "e74-ntm-n18": ("E74", {"n_state": 18, "update": "ntm"}),
    "e74-retrieved-gate-n4": ("E74", {"n_state": 4, "update": "retrieved_gate"}),
    "e74-ema-tied-n11": ("E74", {"n_state": 11, "update": "ema", "projection": "tied_kvq"}),
    "e74-lowrank-n13": ("E74LowRank", {"n_state": 13, "rank": 3, "projection": "tied_kq"}),
    "e75-n32": ("E75", {"n_heads": 2, "n_state": 32}),
    "e75-post-n3": ("E75", {"n_heads": 3, "n_state": 3, "use_conv": True, "conv_mode": "post"}),
    "e88-n16": ("E88", {"n_heads": 3, "n_state": 16, "use_gate": True}),
    "e88-everything": (
        "E88",
        {
            "n_heads": 3,
            "n_state": 4,
            "expansion": 4.75,
            "use_conv": True,
            "decay_mode": "simple",
            "use_write_gate": True,
            "use_value_residual": True,
            "use_self_gate": True,
            "use_gate": True,
            "gate_activation": "silu",
            "head_mix": "input_weighted",
        },
    ),
    "e88-tied-constant-n64": (
        "E88",
        {
            "n_heads": 1,
            "n_state": 64,
            "tie_kv": True,
            "decay_mode": "constant",
            "use_l2_norm": False,
            "use_silu": False,
            "linear_state": True,
        },
    ),
}
LAYERS |= {
    "e97-everything": (
        "E97",
        {
            "n_heads": 2,
            "n_state": 12,
            "expansion": 0.5,
            "use_conv": True,
            "use_write_gate": True,
            "use_value_residual": True,
            "use_gate": True,
        },
    ),
    "e97-raw-linear-n16": (
        "E97",
        {"n_heads": 3, "n_state": 16, "edit": "raw", "linear_state": True, "use_write_gate": True},
    ),
}
# The vectors of fp32 are other code, and wider; what is not about them is checked in fp64 alone.
SINGLE = ("e14-rectangle", "e73-full-n28", "e74-ntm-n18", "e75-n32", "e88-n16", "e88-everything")
LARGE: dict[str, Case] = {"e88-n256": ("E88", {"n_heads": 1, "n_state": 256, "use_gate": True})}
# Rows and steps: one step, less than a segment, whole segments, and a rest.
SHAPES = {"one-step": (2, 1), "odd": (3, 19), "whole": (1, 64), "across": (2, 71)}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
CHECKED = [
    *(pytest.param(name, torch.float64, id=f"{name}-fp64") for name in LAYERS),
    *(pytest.param(name, torch.float32, id=f"{name}-fp32") for name in (*SINGLE, *LARGE)),
]
Tensors = dict[str, Tensor]


def build(case: Case, dtype: torch.dtype, backend: str = "cpu") -> Any:
    """Return a layer of a fixed seed in which nothing hides behind a zero."""
    name, options = case
    torch.manual_seed(2)
    layer = getattr(elman.layers, name)(DIM, **options, backend=backend, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            if not parameter.any():
                parameter.normal_(std=0.5)
        if name == "E74LowRank":
            layer.basis.mul_(50)
    return layer


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module, in as many pieces as can be compiled at once."""
    plans = [(build(case, torch.float64).plan, torch.float64) for case in LAYERS.values()]
    single = [*(LAYERS[name] for name in SINGLE), *LARGE.values()]
    plans += [(build(case, torch.float32).plan, torch.float32) for case in single]
    compile_matrix(plans, "matrix test")


def draw(layer: Any, shape: tuple[int, int], first: bool) -> tuple[Tensor, Tensors]:
    """Return an input and, if asked for, a first state."""
    generator = torch.Generator().manual_seed(5)
    dtype = next(layer.parameters()).dtype

    def normal(*sizes: int) -> Tensor:
        drawn = torch.randn(*sizes, dtype=torch.float64, generator=generator)
        return drawn.to(dtype).requires_grad_()

    x = normal(*shape, DIM)
    with torch.no_grad():
        state = layer(x)[1]
    return x, {name: normal(*part.shape) for name, part in state.items()} if first else {}


def everything(layer: Any, x: Tensor, state: Tensors, reached: str = "both") -> Tensors:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    y, last = layer(x, state or None)
    outputs = {"y": y, "S": last["S"]}
    pulled = {"both": ("y", "S"), "output": ("y",), "last": ("S",)}[reached]
    generator = torch.Generator().manual_seed(7)
    pulls = {
        name: torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for name, out in outputs.items()
    }
    leaves = {
        "x": x,
        **{f"first {n}": s for n, s in state.items()},
        **dict(layer.named_parameters()),
    }
    gradients = torch.autograd.grad(
        [outputs[name] for name in pulled],
        list(leaves.values()),
        [pulls[name] for name in pulled],
        allow_unused=True,
    )
    found = {
        f"d {name}": torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }
    return {name: out.detach() for name, out in outputs.items()} | found


def assert_equal(found: Tensors, wanted: Tensors, tolerance: float) -> None:
    """Compare all tensors by their relative L2 distance."""
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        right = wanted[name].double()
        distance, size = (tensor.double() - right).norm(), right.norm()
        assert distance <= tolerance * size, f"{name}: {distance / size:.1e}"


def case_of(name: str) -> Case:
    return (LAYERS | LARGE)[name]


def right(case: Case, dtype: torch.dtype, x: Tensor, state: Tensors, reached: str) -> Tensors:
    """Return what the fp64 reference finds for the same numbers."""
    reference = build(case, dtype, "reference").double()
    wide = {name: part.detach().double().requires_grad_() for name, part in state.items()}
    return everything(reference, x.detach().double().requires_grad_(), wide, reached)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("name", "dtype"), CHECKED)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name, dtype, shape) -> None:
    case = case_of(name)
    layer = build(case, dtype)
    # An absent first state once, a given one everywhere else.
    x, state = draw(layer, shape, first=shape != SHAPES["odd"])
    found = everything(layer, x, state)
    assert_equal(found, right(case, dtype, x, state, "both"), TOLERANCE[dtype])


@pytest.mark.parametrize("reached", ["output", "last"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_one_output_alone(name, reached) -> None:
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, (2, 35), first=True)
    found = everything(layer, x, state, reached)
    assert_equal(found, right(LAYERS[name], torch.float64, x, state, reached), 1e-9)


def test_every_cell_has_a_reference_and_every_kernel_is_checked_here() -> None:
    # A recurrence is a step of its own name, or an adapter says which step computes it.
    assert STEPS.keys() | ADAPTERS.keys() == CELLS.keys() | {"e63m", "m2rnn"}
    relatives = {
        "forgetting",
        "column_gated",
        "averaged",
        "row_gated_delta",
        "split_edit",
        "gated_write",
    }
    relatives |= {
        name for name in CELLS if name.startswith(("row_gated_", "full_gated_", "scaled_read"))
    }
    assert CELLS.keys() - STEPS.keys() == relatives
    checked = {CELLS[build(case, torch.float64).plan.cell].type for case in LAYERS.values()}
    structures = {cell.type.split("<")[0] for cell in CELLS.values() if cell.type}
    assert {name.split("<")[0] for name in checked} == structures


def test_every_choice_of_a_plan_is_checked_here() -> None:
    plans = [build(case, torch.float64).plan for case in LAYERS.values()]
    chosen = {
        name: {getattr(plan, name) for plan in plans}
        for name in ("decay", "write", "key", "gate_act", "z_act", "q_act", "v_act", "nonlinearity")
    }
    assert chosen == {
        "decay": {"none", "parameter", "sigmoid", "mamba"},
        "write": {"none", "sigmoid"},
        "key": {"k", "zk", "read"},
        "gate_act": {"none", "sigmoid", "silu"},
        "z_act": {"none", "sigmoid"},
        "q_act": {"none", "silu"},
        "v_act": {"none", "silu", "tanh"},
        "nonlinearity": {"tanh", "linear"},
    }
    for name in ("q_unit", "k_unit", "z_bias", "residual", "self_gate", "gate_bias"):
        assert {getattr(plan, name) for plan in plans} == {False, True}, name
    assert {tie for plan in plans for tie in plan.ties()} > {-1}


def not_default(cell: Cell, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that differ: naming one that nothing reads is an error."""
    return {n: value for n, value in options.items() if value != cell.options[n].default}


OF_THIS_ENGINE = [
    name
    for name, cell in registry.cells().items()
    if cell.engine == "matrix_state" and "cpu" in cell.backends
]
# What no kernel sees: initial values, frozen parameters.
NOT_SEEN = ("mamba2_init", "qkv_init", "phantom_norm_gain", "projection_norm", "learned_decay")


def pairs_of_choices(name: str) -> Iterator[dict[str, Any]]:
    """Yield options of a cell such that every pair of choices that is possible comes up."""
    cell = registry.cell(name)
    free = {
        option: list(declared.choices or (False, True))
        for option, declared in cell.options.items()
        if (declared.choices or isinstance(declared.default, bool)) and option not in NOT_SEEN
    }
    products = list(itertools.product(*free.values()))
    random.Random(0).shuffle(products)
    covered: set[tuple[tuple[str, Any], ...]] = set()
    for values in products:
        chosen = dict(zip(free, values, strict=True))
        pairs = set(itertools.combinations(chosen.items(), min(2, len(free))))
        options = not_default(cell, chosen)
        try:
            given = cell.parse_options(DIM, options | {"n_state": 8}, frozenset(options))
        except UserError:
            continue
        if pairs <= covered or cell.limit(given):
            continue
        covered |= pairs
        yield options


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OF_THIS_ENGINE if n != "e63m"])
def test_every_pair_of_choices(name) -> None:
    cell = registry.cell(name)
    sizes = {"n_state": 5, "n_heads": 2, "rank": 3}
    if name == "e74_blockdiag":
        sizes = {"n_state": 16}
    sizes = {option: value for option, value in sizes.items() if option in cell.options}
    for options in pairs_of_choices(name):
        case = (cell.layer.split(":")[1], sizes | options)
        x, state = draw(build(case, torch.float64), (2, 35), first=True)
        found = everything(build(case, torch.float64), x, state)
        assert_equal(found, right(case, torch.float64, x, state, "both"), 1e-9)


# ---- threads, memory, numbers that are not finite ----

# Steps enough for three threads, of which each has some rows of the one head.
SPLIT = {"e73-column-n33": 90, "e74-ntm-n18": 300, "e74-state-n24": 170, "e73cp-n20": 250}
SPLIT |= {"e88-tied-constant-n64": 35}


@pytest.mark.parametrize(("name", "steps"), SPLIT.items(), ids=SPLIT)
def test_rows_of_a_head_shared_by_threads(name, steps, monkeypatch) -> None:
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, (1, steps), first=True)
    alone = everything(layer, x, state)
    monkeypatch.setattr(cpu, "kernel_threads", lambda torch_threads: 3)
    shared = everything(layer, x, state)
    assert_equal(shared, alone, 1e-13)
    # Sums have a fixed order, whichever thread is first.
    for _ in range(3):
        assert_equal(everything(layer, x, state), shared, 0.0)


@pytest.mark.parametrize("name", ["e88-n16", "e75-n32"])
def test_threads_do_not_change_a_result_where_heads_are_enough(name, monkeypatch) -> None:
    layer = build(LAYERS[name], torch.float32)
    x, state = draw(layer, (3, 71), first=True)
    alone = everything(layer, x, state)
    monkeypatch.setattr(cpu, "kernel_threads", lambda torch_threads: 4)
    assert_equal(everything(layer, x, state), alone, 0.0)


@pytest.mark.parametrize("shape", [(2, 1), (2, 35)], ids=["one-step", "segments"])
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_uninitialized_is_read_or_returned(name, shape, monkeypatch) -> None:
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, shape, first=True)
    wanted = everything(layer, x, state)
    for make in ("empty", "empty_like"):
        monkeypatch.setattr(torch, make, _poisoned(getattr(torch, make)))
    assert torch.empty(3).isnan().all()
    assert_equal(everything(layer, x, state), wanted, 0.0)


def _poisoned(make: Any) -> Any:
    return lambda *given, **named: make(*given, **named).fill_(torch.nan)


def test_nan_reaches_output_state_and_gradients() -> None:
    layer = build(LAYERS["e88-n16"], torch.float32)
    x, state = draw(layer, (2, 40), first=True)
    with torch.no_grad():
        x[0, 20, 3] = torch.nan
    found = everything(layer, x, state)
    assert found["y"][0, 20:].isnan().all()
    assert found["S"][0].isnan().all()
    assert found["d x"][0].isnan().all()
    for name in ("y", "S", "d x"):
        assert found[name][1].isfinite().all()
    assert found["y"][0, :20].isfinite().all()


def test_denormal_numbers_are_flushed_inside_alone() -> None:
    """A library linked with -ffast-math flushes them in the whole process."""
    layer = build(LAYERS["e70-n16"], torch.float64)
    x = torch.full((1, 40, DIM), 1e-160, dtype=torch.float64, requires_grad=True)
    y, last = layer(x)
    y.sum().backward()
    assert last["S"].isfinite().all()
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    assert (tiny * 0.5 > 0).all()


def test_tanh_is_as_exact_as_stated() -> None:
    """A step that adds nothing applies tanh to the first state: csrc/cells/math.h states 4e-7."""
    plan = build(LAYERS["e88-n16"], torch.float32).plan
    size = (1, plan.heads, plan.rows, plan.columns)
    exponents = torch.linspace(-30, 5, size[1] * size[2] * size[3] // 2)
    first = torch.cat([2**exponents, -(2**exponents)]).reshape(size)
    sources = [torch.zeros(1, 1, 1024)]
    # A_log and dt_bias so small that the decay is 1.
    numbers = {name: torch.full((plan.heads,), -80.0) for name in plan.parameter_names}
    _, last = op.run(plan, sources, numbers, first, backend="cpu")
    assert ((last.double() / first.double().tanh() - 1).abs() <= 4.2e-7).all()
    assert (last.abs() <= 1).all()


# ---- where the numbers lie ----


def op_leaves(name: str) -> tuple[Plan, list[Tensor], Tensors, Tensor]:
    """Return a plan with sources, parameters and a first state for it."""
    plan = build(LAYERS[name], torch.float64).plan
    generator = torch.Generator().manual_seed(3)

    def normal(*sizes: int) -> Tensor:
        drawn = torch.randn(*sizes, dtype=torch.float64, generator=generator)
        return drawn.requires_grad_()

    widths: dict[int, int] = {}
    for role, place in plan.roles:
        end = place.start + plan.heads * plan.width(role)
        widths[place.source] = max(end, widths.get(place.source, 0))
    sources = [normal(2, 35, width) for _, width in sorted(widths.items())]
    parameters = {n: normal(*plan.parameter_shape(n)) for n in plan.parameter_names}
    return plan, sources, parameters, normal(2, plan.heads, plan.rows, plan.columns)


def gradients_of(plan: Plan, sources: list[Tensor], parameters: Tensors, first: Tensor) -> Tensors:
    out, last = op.run(plan, sources, parameters, first, backend="cpu")
    leaves = [*sources, *parameters.values(), first]
    pulls = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).reshape(t.shape) for t in (out, last)]
    found = torch.autograd.grad([out, last], leaves, pulls)
    return {str(i): t for i, t in enumerate((out.detach(), last.detach(), *found))}


def gaps(x: Tensor) -> Tensor:
    """Return equal numbers with room between rows and steps."""
    room = torch.full((x.shape[0], x.shape[1] * 2, x.shape[2] + 5), torch.nan, dtype=x.dtype)
    view = room[:, ::2, 3:-2]
    view.copy_(x)
    return view


@pytest.mark.parametrize(
    "lay",
    [
        gaps,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    ],
    ids=["gaps", "channels-apart", "time-first"],
)
@pytest.mark.parametrize("name", ["e88-everything", "e73-full-n28"])
def test_sources_are_read_where_they_lie(name, lay) -> None:
    plan, sources, parameters, first = op_leaves(name)
    wanted = gradients_of(plan, sources, parameters, first)
    views = [lay(source.detach()).requires_grad_() for source in sources]
    assert not any(view.is_contiguous() for view in views)
    assert_equal(gradients_of(plan, views, parameters, first), wanted, 0.0)


def test_columns_that_no_role_reads_have_gradient_zero() -> None:
    plan, sources, parameters, first = op_leaves("e75-n32")
    wide = [torch.cat([source, source[..., :3]], -1) for source in sources]
    wide = [source.detach().requires_grad_() for source in wide]
    found = gradients_of(plan, wide, parameters, first)
    wanted = gradients_of(plan, sources, parameters, first)
    assert (found["2"][..., -3:] == 0).all()
    assert_equal({"d": found["2"][..., :-3]}, {"d": wanted["2"]}, 0.0)


@pytest.mark.parametrize("expanded", [True, False], ids=["one-number", "batch-last"])
def test_the_outputs_gradient_may_be_a_view(expanded) -> None:
    plan, sources, parameters, first = op_leaves("e88-n16")
    out, _ = op.run(plan, sources, parameters, first, backend="cpu")
    if expanded:
        pull = torch.ones((), dtype=out.dtype).expand(out.shape)
    else:
        pull = torch.randn(*out.shape[::-1], dtype=out.dtype).permute(3, 2, 1, 0)
    found, wanted = (
        torch.autograd.grad(out, sources, one, retain_graph=True)
        for one in (pull, pull.contiguous())
    )
    assert_equal({"d": found[0]}, {"d": wanted[0]}, 0.0)


def test_only_sources_parameters_and_few_states_are_saved() -> None:
    plan, sources, parameters, first = op_leaves("e88-n16")
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        op.run(plan, sources, parameters, first, backend="cpu")
    given = {t.data_ptr() for t in (*sources, *parameters.values(), first)}
    (kept,) = (t for t in saved if t.numel() and t.data_ptr() not in given)
    assert kept.numel() == first.numel() * ((35 - 1) // 32)


@pytest.mark.parametrize("why", ["no-grad", "nothing-needs-one"])
def test_no_states_are_kept_without_a_backward_pass(why, monkeypatch) -> None:
    plan, sources, parameters, first = op_leaves("e88-n16")
    kept: list[bool] = []
    run = custom_op.MATRIX_STATE.forward
    monkeypatch.setattr(
        custom_op.MATRIX_STATE, "forward", lambda call: kept.append(call.keep) or run(call)
    )
    op.run(plan, sources, parameters, first, backend="cpu")
    if why == "no-grad":
        with torch.no_grad():
            op.run(plan, sources, parameters, first, backend="cpu")
    else:
        plain = [t.detach() for t in sources]
        detached = {n: p.detach() for n, p in parameters.items()}
        op.run(plan, plain, detached, first.detach(), backend="cpu")
    assert kept == [True, False]


# ---- what PyTorch asks of an operator ----


@pytest.mark.parametrize("given", [True, False], ids=["first-state", "from-zeros"])
@pytest.mark.parametrize("name", ["e88-everything", "e14-rectangle"])
def test_opcheck(name, given) -> None:
    plan, sources, parameters, first = op_leaves(name)
    ordered = [parameters[n] for n in plan.parameter_names]
    state = first if given else None
    arguments = (plan.text, "cpu", True, sources, ordered, state, None)
    torch.library.opcheck(torch.ops.elman.matrix_state.default, arguments)
    with torch.no_grad():
        out, last, *kept = torch.ops.elman.matrix_state(*arguments)
        arguments = (plan.text, "cpu", out, last, sources, ordered, state, *kept, None)
        torch.library.opcheck(torch.ops.elman.matrix_state_backward.default, arguments)


@pytest.mark.parametrize("name", ["e88-n16", "e75-n32", "e14-rectangle", "e73-full-n28"])
def test_torch_compile_takes_a_layer_as_one_graph(name) -> None:
    layer = build(LAYERS[name], torch.float64)
    x, state = draw(layer, (2, 19), first=True)
    wanted = everything(layer, x, state)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_equal(everything_compiled(compiled, layer, x, state), wanted, 1e-12)


def everything_compiled(compiled: Any, layer: Any, x: Tensor, state: Tensors) -> Tensors:
    """As :func:`everything`, with the original's names of parameters."""

    class Named:
        def __call__(self, *given: Any) -> Any:
            return compiled(*given)

        def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
            return layer.named_parameters()

    return everything(Named(), x, state)


def test_autocast_widens_what_it_narrowed() -> None:
    layer = build(LAYERS["e88-n16"], torch.float32)
    x, _ = draw(layer, (2, 35), first=False)
    wanted, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert state["S"].dtype == torch.float32
    assert (y.float() - wanted).norm() < 0.03 * wanted.norm()
    assert all(p.grad.isfinite().all() and p.grad.dtype == p.dtype for p in layer.parameters())


def test_the_operators_autocast_rule_is_fp32() -> None:
    plan = build(LAYERS["e75-n32"], torch.float32).plan
    source, parameter = torch.randn(2, 5, 256), torch.randn(2, 32)
    run = partial(custom_op.MATRIX_STATE.operator, plan.text, "cpu", False)
    wanted, *_ = run([source], [parameter], None, None)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = source.bfloat16()
        out, last, *_ = run([narrow], [parameter], None, None)
    assert out.dtype == last.dtype == torch.float32
    assert 0 < (out - wanted).norm() < 0.03 * wanted.norm()


# ---- what is refused ----


def test_a_plan_is_a_word_and_back() -> None:
    for case in LAYERS.values():
        plan = build(case, torch.float64).plan
        assert parse(plan.text) == plan


def test_a_dtype_without_kernel_is_one_line() -> None:
    plan = build(LAYERS["e75-n32"], torch.float32).plan
    source, parameter = torch.zeros(1, 1, 256, dtype=torch.half), torch.zeros(2, 32)
    with pytest.raises(UserError, match=r"^kernels\.backend=cpu: computes in float32 and float64"):
        custom_op.MATRIX_STATE.operator(plan.text, "cpu", False, [source], [parameter], None, None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"nonlinearity": "rmsnorm"}, "model.nonlinearity=rmsnorm looks at the whole state"),
        ({"update": "retrieved_gate", "error_gate": True}, "model.error_gate=true looks at all"),
    ],
    ids=["norm", "error-gate"],
)
def test_options_without_kernel_run_the_reference_or_say_so(options, reason) -> None:
    layer = elman.layers.E74(DIM, n_state=3, **options)
    assert layer.backend_for(torch.zeros(1)) == "reference"
    assert layer(torch.zeros(1, 2, DIM))[0].shape == (1, 2, DIM)
    with pytest.raises(UserError) as caught:
        elman.layers.E74(DIM, n_state=3, **options, backend="cpu")
    assert f"kernels.backend=cpu: cell e74 has only reference ({reason}" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(
        UserError, match=r"kernels\.backend=cpu: .*; use kernels\.backend=reference"
    ):
        op.run(layer.plan, [torch.zeros(1, 1, 12)], {}, None, backend="cpu")


def test_a_cells_limit_is_its_plans() -> None:
    cell = registry.cell("e74")
    declared = cell.options
    names = ("update", "gate", "nonlinearity", "error_gate")
    values = [declared[name].choices or (False, True) for name in names]
    for chosen in itertools.product(*values):
        options = {"n_state": 2, **not_default(cell, dict(zip(names, chosen, strict=True)))}
        try:
            given = cell.parse_options(DIM, options)
        except UserError:
            continue
        plan = elman.layers.E74(DIM, **options, device="meta").plan
        assert bool(cell.limit(given)) == bool(plan.kernel_problem), options


@pytest.mark.parametrize(
    "change",
    [
        {"roles": (("k", Slice(0, 0)), ("q", Slice(0, 4)))},
        {"key": "read"},
        {"gate_act": "silu"},
        {"z_bias": True},
    ],
    ids=["no-value", "no-read", "no-gate", "no-z"],
)
def test_a_plan_that_does_not_fit_together_is_refused(change) -> None:
    plan = Plan("delta", 1, 4, 4, tuple((r, Slice(0, 4 * i)) for i, r in enumerate("kqv")))
    with pytest.raises(AssertionError):
        replace(plan, **change)
