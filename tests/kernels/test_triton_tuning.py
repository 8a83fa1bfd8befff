"""Variants of a package's kernels are compiled together before the first of them is timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from elman.kernels.triton_tuning import tune_together, tuning_told_to


@dataclass(eq=False)
class Variant:
    """Stands for ``triton.Config``."""

    warps: int

    def all_kwargs(self) -> dict[str, int]:
        return {"num_warps": self.warps}


@dataclass(eq=False)
class Kernel:
    """Stands for a compiled function: notes what is compiled and what is launched."""

    events: list[str] = field(default_factory=list)

    def warmup(self, *args: Any, grid: Any, num_warps: int, **meta: Any) -> None:
        assert "warmup" not in meta
        assert active, "compiled outside of the mode that compiles in the background"
        active[-1].submit(self.events.append, f"compile {num_warps}")

    def run(self, *args: Any, grid: Any, num_warps: int, **meta: Any) -> None:
        self.events.append(f"launch {num_warps}")


class Autotuner:
    """Stands for Triton's: the parts that are used."""

    def __init__(self, fn: Kernel, variants: list[Variant]) -> None:
        self.fn, self.configs, self.cache_results = fn, variants, False
        self.base_fn = type("scan_kernel", (), {})
        self._do_bench: Callable[..., Any] = lambda call, quantiles: call()

    def prune_configs(self, meta: dict[str, Any]) -> list[Variant]:
        return [variant for variant in self.configs if variant.warps <= 4]

    def _bench(self, *args: Any, config: Variant, **meta: Any) -> Any:
        launch = {**meta, **config.all_kwargs()}
        return self._do_bench(lambda: self.fn.run(*args, **launch), quantiles=(0.5, 0.2, 0.8))

    def tune(self) -> None:
        for variant in self.prune_configs({}):
            self._bench(1, config=variant, grid=(1,), warmup=False)


active: list[Executor] = []


class AsyncCompileMode:
    """Stands for Triton's."""

    def __init__(self, executor: Executor, *, ignore_errors: bool) -> None:
        assert ignore_errors
        self._executor = executor

    def __enter__(self) -> None:
        active.append(self._executor)

    def __exit__(self, *error: object) -> None:
        active.pop()


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Autotuner:
    """Return the autotuner of a package's kernel, below a wrapper, with a Triton that stands in."""
    benched: list[dict[str, Any]] = []

    def do_bench(call: Callable[[], None], **settings: Any) -> list[float]:
        benched.append(settings)
        call()
        return [1.0, 1.0, 1.0]

    parts = {
        "triton": {},
        "triton.runtime": {},
        "triton.runtime.autotuner": {"Autotuner": Autotuner},
        "triton.runtime._async_compile": {"AsyncCompileMode": AsyncCompileMode},
        "triton.testing": {"do_bench": do_bench},
    }
    tuner = Autotuner(Kernel(), [Variant(1), Variant(2), Variant(4), Variant(8)])
    wrapper = type("Heuristics", (), {})()
    wrapper.fn = tuner
    parts |= {"pack": {}, "pack.ops": {"kernel": wrapper, "other": 1}, "package": {"kernel": 2}}
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    tuner.benched = benched  # type: ignore[attr-defined]
    return tuner


def test_all_variants_are_compiled_before_the_first_is_timed(tuner) -> None:
    tune_together("pack")
    tuner.tune()
    events = tuner.fn.events
    assert sorted(events[:3]) == ["compile 1", "compile 2", "compile 4"]
    assert events[3:] == ["launch 1", "launch 2", "launch 4"]


def test_timings_are_short_and_kept(tuner) -> None:
    tune_together("pack")
    tuner.tune()
    assert tuner.cache_results
    assert [(one["warmup"], one["rep"]) for one in tuner.benched] == [(5, 20)] * 3


def test_a_kernel_is_changed_once(tuner) -> None:
    tune_together("pack")
    tune_together("pack")
    tuner.tune()
    assert tuner.fn.events.count("compile 1") == 1


def test_the_wait_is_told_while_somebody_listens(tuner) -> None:
    tune_together("pack")
    heard: list[str] = []
    with tuning_told_to(heard.append):
        tuner.tune()
    tuner.tune()
    assert heard == ["tuning scan_kernel (3 variants)"]


def test_a_triton_that_cannot_compile_together_tunes_as_ever(tuner, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "triton.runtime._async_compile")
    tune_together("pack")
    tuner.tune()
    assert tuner.fn.events == ["launch 1", "launch 2", "launch 4"]
