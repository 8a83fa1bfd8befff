"""Variants of an autotuned kernel that are equal, or too large to be any good, are not compiled."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elman.kernels.package_variants import RULES, leave_variants_out
from elman.kernels.triton_variants import at_most, prune, without_twins


@dataclass(eq=False)
class Variant:
    """Stands for ``triton.Config``."""

    num_warps: int
    num_stages: int
    tile: dict[str, int] = field(default_factory=dict)

    def all_kwargs(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages} | self.tile


@dataclass(eq=False)
class Function:
    """Stands for a Triton function: its text, and the Python function that it was made of."""

    src: str
    fn: Any = None


@dataclass(eq=False)
class Wrapped:
    """Stands for an autotuner, and for a wrapper around a function."""

    fn: Any
    configs: list[Variant] = field(default_factory=list)


VARIANTS = [Variant(warps, stages) for warps in (2, 4) for stages in (1, 2, 3)]


def function(text: str, **known: Any) -> Function:
    """Return a function of a text that knows some names."""
    exec("def made(): pass", known)
    return Function(text, known["made"])


def test_stages_of_a_kernel_without_a_loop_are_equal() -> None:
    tuner = Wrapped(Wrapped(function("def add(x, y):\n    return x + y  # for both\n")), VARIANTS)
    assert without_twins(tuner) == [VARIANTS[0], VARIANTS[3]]


@pytest.mark.parametrize("loop", ["for step in range(n):", "while x > 0:"])
def test_stages_of_a_kernel_with_a_loop_are_not(loop: str) -> None:
    text = f"def scan(x, n):\n    {loop}\n        x -= 1\n"
    assert without_twins(Wrapped(function(text), VARIANTS)) == VARIANTS
    calls = function("def kernel(x, n):\n    scan(x, n)\n", scan=function(text))
    assert without_twins(Wrapped(calls, VARIANTS)) == VARIANTS


def test_a_kernel_without_a_text_keeps_its_variants() -> None:
    assert without_twins(Wrapped(object(), VARIANTS)) == VARIANTS


def test_a_tile_fits_into_the_registers_of_its_warps() -> None:
    variants = [Variant(warps, 1, {"BT": rows}) for rows in (2, 8) for warps in (2, 8)]
    fitting = at_most(32, "BT", "BD")
    kept = fitting(variants, {"x": 0}, BD=1024)
    assert [(one.tile["BT"], one.num_warps) for one in kept] == [(2, 2), (2, 8), (8, 8)]
    assert fitting(variants, {"x": 0}, BD=1 << 20) == variants, "one at least must be left"


def test_a_tile_is_not_longer_than_a_head_and_has_work_for_its_threads() -> None:
    variants = [
        Variant(warps, 1, {"BK": side, "BV": 64}) for side in (32, 64, 128) for warps in (4, 32)
    ]
    kept = at_most(64, "BK", "BV", least=16, longest="K")(variants, {"K": 64})
    assert [(one.tile["BK"], one.num_warps) for one in kept] == [(32, 4), (64, 4)]


def test_variants_are_left_out_below_what_is_wrapped_around_the_tuner() -> None:
    tuner = SimpleNamespace(early_config_prune=None)
    keep = at_most(1, "BK")
    prune(SimpleNamespace(fn=tuner), keep)
    assert tuner.early_config_prune is keep


def test_a_kernel_that_is_not_tuned_or_not_there_stays_as_it_is() -> None:
    kernel = SimpleNamespace(fn=SimpleNamespace(fn=None))
    prune(kernel, at_most(1, "BK"))
    prune(None, at_most(1, "BK"))
    assert kernel == SimpleNamespace(fn=SimpleNamespace(fn=None))


def test_the_mixing_of_rwkv7_leaves_out_tiles_that_take_minutes() -> None:
    module = ModuleType("fused_addcmul")
    kernels = [SimpleNamespace(early_config_prune=None) for _ in range(2)]
    vars(module).update(fused_addcmul_fwd_kernel=kernels[0], addcmul_bwd_kernel1=kernels[1])
    leave_variants_out({"fla.ops.rwkv7.fused_addcmul": module})
    small, large = Variant(8, 1, {"BT": 4}), Variant(2, 1, {"BT": 8})
    for kernel in kernels:
        assert kernel.early_config_prune([small, large], {}, BD=2048) == [small]


def test_rules_reach_the_modules_that_are_loaded(monkeypatch) -> None:
    module, tuner = ModuleType("chunk"), SimpleNamespace(early_config_prune=None)
    vars(module)["chunk_gla_fwd_kernel_o"] = SimpleNamespace(fn=tuner)
    monkeypatch.setitem(sys.modules, "fla.ops.gla.chunk", module)
    leave_variants_out()
    assert tuner.early_config_prune is RULES["fla.ops.gla.chunk"]["chunk_gla_fwd_kernel_o"]
