"""Calls of the Triton kernels on Triton's interpreter, and what the fp64 reference finds for them.

Shape legend: b batch, t time, c channels, h heads, v state rows, n state columns.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.ops.matrix_state import op
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.stacked import DELTA, E70, stacked_plan
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.tiles import tile_of

Tensors = dict[str, Tensor]
FP32, BF16 = torch.float32, torch.bfloat16
TOLERANCE = {FP32: 1e-4, BF16: 1.5e-2}
STEPS, GROUP = 2, 2
_Z = {"z_act": "sigmoid", "z_bias": True}
_ZK = {"key": "zk", "k_unit": True, "self_gate": True}
# Cell, heads, rows, columns and what stands around it.
CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "e70-n16": ("decayed", 1, 16, 16, E70),
    "e70-linear-n20": ("decayed", 3, 20, 20, E70 | {"nonlinearity": "linear"}),
    "e71-n16": ("read_gated", 1, 16, 16, {"nonlinearity": "linear", "self_gate": True}),
    "e72-n24": ("value_gated", 1, 24, 24, {"nonlinearity": "linear", "self_gate": True}),
    "e72-inverse-n16": ("value_gated_inverse", 1, 16, 16, {"nonlinearity": "linear"}),
    "e73-column-n16": ("column_gated", 1, 16, 16, {"self_gate": True} | _Z),
    "e73-row-n16": ("row_gated_tanh", 1, 16, 16, {"self_gate": True}),
    "e73-full-n16": ("full_gated_sigmoid", 1, 16, 16, {"self_gate": True} | _Z),
    "e73cp-column-n20": ("delta", 1, 20, 20, _ZK | _Z | {"z_act": "none"}),
    "e73cp-row-n16": ("scaled_read_delta_none", 1, 16, 16, {"k_unit": True, "self_gate": True}),
    "e73cp-full-n16": ("scaled_read_delta_tanh", 1, 16, 16, _ZK | _Z | {"z_act": "tanh"}),
    "e88-n16": ("delta", 3, 16, 16, DELTA),
    "e88-many-heads": ("delta", 5, 16, 16, DELTA),  # which keep no reads
    "e88-everything": (
        "delta",
        1,
        40,
        16,
        DELTA
        | {"decay": "sigmoid", "write": "sigmoid", "residual": True, "self_gate": True}
        | {"gate_act": "silu", "gate_bias": True, "v_act": "tanh"},
    ),
    "e88-read": ("delta", 1, 16, 12, {"key": "read", "decay": "parameter", "gate_act": "sigmoid"}),
}


def plan_of(name: str) -> Plan:
    """Return a case's plan."""
    cell, heads, rows, columns, options = CASES[name]
    return stacked_plan(cell, heads, rows, columns, **options)


def tied(plan: Plan) -> Plan:
    """Return a plan whose values are its keys, as in E88 with tie_kv."""
    places = dict(plan.roles)
    return replace(plan, roles=tuple({**places, "v": places["k"]}.items()))


def use_tiles(
    monkeypatch: pytest.MonkeyPatch,
    *,
    rows: int | None = None,
    steps: int = STEPS,
    group: int = GROUP,
    overlapped: bool = True,
    folds: int = 1,
) -> None:
    """Let programs hold so many rows of a state, and checkpoints stand so many steps apart.

    Without ``rows``, a program holds all of them: the interpreter takes as long for few. The
    backward pass does two segments at once if ``overlapped``. The forward pass has the columns in
    so many parts.
    """

    def tiny(plan: Plan, *, backward: bool) -> Any:
        held = rows if rows is not None else 1 << (plan.rows - 1).bit_length()
        found = replace(tile_of(plan, backward=backward), steps=steps, group=group)
        tiles = -(-plan.rows // held)
        found = replace(found, rows=held, row_tiles=tiles, overlapped=backward and overlapped)
        if backward or folds == 1:
            return replace(found, folds=1)
        return replace(found, spread=True, folds=folds)

    monkeypatch.setattr(launch, "tile_of", tiny)
    launch._tile.cache_clear()


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter replace the language's functions once a launch, and not at every call.

    All of these kernels' functions see one ``tl``, which a launch has replaced before they run.
    """
    from triton.runtime.interpreter import InterpretedFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "__call__", call)


def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every new tensor be NaN until something is written to it."""
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *given, _make=make, **named: _make(*given, **named).fill_(torch.nan)
        )
    assert torch.empty(3).isnan().all()


def plant(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    modules: Iterable[str],
    module: str,
    old: str,
    new: str,
    beside: ModuleType = launch,
) -> None:
    """Load kernels anew, with a change in one of their files; ``beside`` lies in their folder."""
    assert beside.__file__ is not None
    for name in modules:
        text = (Path(beside.__file__).parent / f"{name}.py").read_text()
        if name == module:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"{beside.__package__}.{name}", path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, loaded)
        spec.loader.exec_module(loaded)


def drawn(plan: Plan, batch: int, steps: int, dtype: torch.dtype, first: bool) -> Tensors:
    """Return the tensors of a call by name: sources, parameters, and a first state if asked for."""
    generator = torch.Generator().manual_seed(5)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    found = {
        f"source {number}": normal(batch, steps, channels).to(dtype)
        for number, channels in enumerate(plan.channels)
    }
    for name, shape in plan.parameter_shapes.items():
        found[name] = torch.rand(shape, generator=generator) * 0.8
    if first:
        found["first"] = normal(batch, plan.heads, plan.rows, plan.columns) / 2
    return found


def everything(
    plan: Plan,
    given: Tensors,
    backend: str,
    resets_bt: Tensor | None = None,
    reached: str = "both",
) -> Tensors:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    out_bthv, last_bhvn = op.run(
        plan,
        [leaf for name, leaf in leaves.items() if name.startswith("source")],
        {name: leaves[name] for name in plan.parameter_names},
        leaves.get("first"),
        backend=backend,
        resets_bt=resets_bt,
    )
    return differentiated({"out": out_bthv, "last": last_bhvn}, leaves, reached)


def differentiated(outputs: Tensors, leaves: Tensors, reached: str) -> Tensors:
    """Return outputs and the gradients of all leaves by name, for a random pull on the outputs."""
    generator = torch.Generator().manual_seed(7)
    pulls = {
        name: torch.randn(one.shape, generator=generator).to(BF16).to(one.dtype)
        for name, one in outputs.items()
    }
    pulled = ("out", "last") if reached == "both" else (reached,)
    gradients = torch.autograd.grad(
        [outputs[name] for name in pulled],
        list(leaves.values()),
        [pulls[name] for name in pulled],
        materialize_grads=True,
    )
    named = {f"d {name}": one for name, one in zip(leaves, gradients, strict=True)}
    return {name: one.detach() for name, one in (outputs | named).items()}


def right(
    plan: Plan, given: Tensors, resets_bt: Tensor | None = None, reached: str = "both"
) -> Tensors:
    """Return what the fp64 reference finds for the same numbers."""
    wide = {name: tensor.double() for name, tensor in given.items()}
    return everything(plan, wide, "reference", resets_bt, reached)


def wrong(found: Tensors, wanted: Tensors, tolerance: float) -> list[str]:
    """Return the tensors that are too far from the right ones, by their relative L2 distance."""
    assert found.keys() == wanted.keys()
    far = []
    for name, tensor in found.items():
        distance = (tensor.double() - wanted[name].double()).norm()
        if not distance <= tolerance * wanted[name].double().norm():
            far.append(f"{name}: {distance / wanted[name].double().norm():.1e}")
    return far
