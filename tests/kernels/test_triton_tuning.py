"""Variants of a package's kernels are compiled together before the first of them is timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elman.kernels import triton_choices, triton_tuning
from elman.kernels.triton_ahead import compile_ahead
from elman.kernels.triton_tuning import (
    choices_kept,
    tune_together,
    tuned_so_far,
    tuning_told_to,
)


@dataclass(eq=False)
class Variant:
    """Stands for ``triton.Config``."""

    warps: int

    def all_kwargs(self) -> dict[str, int]:
        return {"num_warps": self.warps}

    def __str__(self) -> str:
        return f"warps {self.warps}"


@dataclass(eq=False)
class JITFunction:
    """Stands for a compiled function: notes what is compiled and what is launched."""

    events: list[str] = field(default_factory=list)
    cache_key: str = "source"

    def warmup(self, *args: Any, **meta: Any) -> None:
        self.run(*args, **{**meta, "warmup": True})

    def run(self, *args: Any, grid: Any, num_warps: int, warmup: bool = False, **meta: Any) -> None:
        if not warmup:
            self.events.append(f"launch {num_warps}")
        elif f"compile {num_warps}" not in self.events:
            mode = active_mode.get()
            assert mode is not None, "compiled outside of the mode that compiles in the background"
            mode.submit(lambda: self.events.append(f"compile {num_warps}"))


class Autotuner:
    """Stands for Triton's: the parts that are used."""

    def __init__(self, fn: JITFunction, variants: list[Variant]) -> None:
        self.fn, self.configs, self.cache_results = fn, variants, False
        self.base_fn = type("scan_kernel", (), {})
        self.arg_names, self.keys = ["x", "size"], ["size"]
        self.cache: dict[Any, Variant] = {}
        self._do_bench: Callable[..., Any] = lambda call, quantiles: call()
        self.check_disk_cache: Callable[..., bool] = lambda key, variants, tune: tune() or False

    def prune_configs(self, meta: dict[str, Any]) -> list[Variant]:
        return [variant for variant in self.configs if variant.warps <= 4]

    def _bench(self, *args: Any, config: Variant, **meta: Any) -> Any:
        launch = {**meta, **config.all_kwargs()}
        return self._do_bench(lambda: self.fn.run(*args, **launch), quantiles=(0.5, 0.2, 0.8))

    def run(self, *args: Any, grid: Any, warmup: bool = False, **meta: Any) -> None:
        key, variants = (args[1],), self.prune_configs(meta)

        def tune() -> None:
            given = {**meta, "grid": grid, "warmup": warmup}
            times = {one: self._bench(*args, config=one, **given)[0] for one in variants}
            self.cache[key] = min(times, key=lambda one: abs(one.warps - 2))
            self.configs_timings = times

        if key not in self.cache:
            self.check_disk_cache(key, variants, tune)
        self.fn.run(*args, grid=grid, **meta, **self.cache[key].all_kwargs())

    def tune(self, size: int = 1) -> None:
        self.run(0, size, grid=(1,), warmup=False)


active_mode: ContextVar[Any] = ContextVar("mode", default=None)


class AsyncCompileMode:
    """Stands for Triton's."""

    def __init__(self, executor: Executor, *, ignore_errors: bool) -> None:
        assert ignore_errors
        self._executor = executor
        self.raw_futures: list[Future[Any]] = []

    def submit(self, compile_one: Callable[[], None]) -> None:
        self.raw_futures.append(self._executor.submit(compile_one))

    def __enter__(self) -> AsyncCompileMode:
        active_mode.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert all(one.result() is None for one in self.raw_futures)
        active_mode.set(None)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Autotuner:
    """Return the autotuner of a package's kernel, below a wrapper, with a Triton that stands in."""
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    monkeypatch.setattr(triton_tuning, "MACHINE", lambda: "a GPU")
    benched: list[dict[str, Any]] = []

    def do_bench(call: Callable[[], None], **settings: Any) -> list[float]:
        benched.append(settings)
        call()
        return [1.0, 1.0, 1.0]

    compiling = {"AsyncCompileMode": AsyncCompileMode, "active_mode": active_mode}
    parts = {
        "triton": {},
        "triton.runtime": {},
        "triton.runtime.autotuner": {"Autotuner": Autotuner},
        "triton.runtime.jit": {"JITFunction": JITFunction},
        "triton.runtime._async_compile": compiling,
        "triton.testing": {"do_bench": do_bench},
    }
    tuner = made()
    wrapper = type("Heuristics", (), {})()
    wrapper.fn = tuner
    parts |= {"pack": {}, "pack.ops": {"kernel": wrapper, "other": 1}, "package": {"kernel": 2}}
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    tuner.benched = benched  # type: ignore[attr-defined]
    return tuner


def made() -> Autotuner:
    """Return an autotuner of four variants, one of which no size takes."""
    return Autotuner(JITFunction(), [Variant(1), Variant(2), Variant(4), Variant(8)])


def another_process(monkeypatch: pytest.MonkeyPatch) -> Autotuner:
    """Return the same kernel as a process has it that begins now."""
    fresh = made()
    monkeypatch.setattr(sys.modules["pack.ops"], "kernel", fresh)
    tune_together("pack")
    return fresh


def test_all_variants_are_compiled_before_the_first_is_timed(tuner) -> None:
    tune_together("pack")
    tuner.tune()
    events = tuner.fn.events
    assert sorted(events[:3]) == ["compile 1", "compile 2", "compile 4"]
    assert events[3:] == ["launch 1", "launch 2", "launch 4", "launch 2"]


@pytest.fixture
def table(monkeypatch) -> dict[str, str]:
    """Return the table's variants by size, of the kernel of these tests on this kind of GPU."""
    sizes: dict[str, str] = {}
    kernel = f"{__name__}.scan_kernel"
    monkeypatch.setattr(triton_choices, "_table", lambda: {"sm_90": {kernel: sizes}})
    monkeypatch.setattr(triton_choices, "ARCHITECTURE", lambda: "sm_90")
    return sizes


def test_a_size_of_the_table_is_neither_tuned_nor_compiled_for_tuning(tuner, table) -> None:
    table["size=512"] = "warps 4"
    tune_together("pack")
    compile_ahead(lambda: tuner.tune(512))
    tuner.tune(512)
    assert tuner.fn.events == ["compile 4", "launch 4"]


@pytest.mark.parametrize("named", ["of another size", "of no variant", "of another GPU"])
def test_what_the_table_does_not_know_is_tuned(tuner, table, named: str, monkeypatch) -> None:
    table["size=16" if named == "of another size" else "size=512"] = "warps 4"
    if named == "of no variant":
        table["size=512"] = "warps 3"
    elif named == "of another GPU":
        monkeypatch.setattr(triton_choices, "ARCHITECTURE", lambda: "sm_80")
    tune_together("pack")
    tuner.tune(512)
    assert [e for e in tuner.fn.events if e.startswith("launch")][:3] == [
        "launch 1",
        "launch 2",
        "launch 4",
    ]


def test_what_this_machine_has_timed_comes_before_the_table(tuner, table, monkeypatch) -> None:
    tune_together("pack")
    tuner.tune(512)
    table["size=512"] = "warps 4"
    again = another_process(monkeypatch)
    again.tune(512)
    assert again.fn.events == ["launch 2"]


def test_numbers_of_rows_and_heads_are_no_size(tuner) -> None:
    tuner.keys = ["B", "H", "K", "num_warps", "BT"]
    assert triton_choices.size_of(tuner, (8, 6, 128, 64, "torch.bfloat16")) == (
        "K=128 BT=64 bfloat16"
    )


def test_the_table_names_variants_as_triton_does() -> None:
    named = [
        variant
        for kernels in json.loads(triton_choices.TABLE.read_text()).values()
        for sizes in kernels.values()
        for variant in sizes.values()
    ]
    assert named
    assert all("num_warps: " in variant and "num_stages: " in variant for variant in named)


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
    tuner.tune(2)
    assert heard == ["tuning scan_kernel (3 variants)"]


def test_a_triton_that_cannot_compile_together_tunes_as_ever(tuner, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "triton.runtime._async_compile")
    tune_together("pack")
    tuner.tune()
    assert tuner.fn.events == ["launch 1", "launch 2", "launch 4", "launch 2"]
    compile_ahead(lambda: tuner.fn.events.append("not called"))
    assert "not called" not in tuner.fn.events


def test_the_fastest_variant_is_found_once_a_machine(tuner, monkeypatch) -> None:
    tune_together("pack")
    tuner.tune()
    again = another_process(monkeypatch)
    again.tune()
    assert again.fn.events == ["launch 2"]
    again.tune(size=7)
    assert "launch 4" in again.fn.events


@pytest.mark.parametrize("changed", ["machine", "source", "variants", "damaged"])
def test_what_was_tuned_for_something_else_is_tuned_anew(
    tuner, changed, monkeypatch, tmp_path
) -> None:
    tune_together("pack")
    tuner.tune()
    again = another_process(monkeypatch)
    if changed == "machine":
        monkeypatch.setattr(triton_tuning, "MACHINE", lambda: "another GPU")
    elif changed == "source":
        again.fn.cache_key = "another source"
    elif changed == "variants":
        again.configs = again.configs[1:]
    else:
        (record,) = (tmp_path / "triton-tuning").iterdir()
        record.write_text("{")
    again.tune()
    assert "launch 4" in again.fn.events


def test_a_call_is_compiled_whole_before_anything_is_launched(tuner) -> None:
    tune_together("pack")
    heard: list[str] = []
    with tuning_told_to(heard.append):
        compile_ahead(tuner.tune)
    assert sorted(tuner.fn.events) == ["compile 1", "compile 2", "compile 4"]
    assert heard == ["compiling kernels: 3 variants begun"]
    before = tuned_so_far()
    tuner.tune()
    assert tuner.fn.events[3:] == ["launch 1", "launch 2", "launch 4", "launch 2"]
    assert (tuned_so_far() - before).describe().startswith("tuned 1 kernels (3 variants) in ")


def test_what_was_tuned_before_is_compiled_alone(tuner, monkeypatch) -> None:
    tune_together("pack")
    tuner.tune()
    again, before = another_process(monkeypatch), tuned_so_far()
    compile_ahead(again.tune)
    again.tune()
    assert again.fn.events == ["compile 2", "launch 2"]
    assert (tuned_so_far() - before).describe().startswith("no kernel had to be tuned; ")


def test_a_call_that_fails_without_its_kernels_is_told(tuner) -> None:
    def call() -> None:
        tuner.tune()
        raise ValueError("no numbers")

    heard: list[str] = []
    with tuning_told_to(heard.append):
        compile_ahead(call)
    assert heard[-1] == "kernels are compiled one after another: ValueError: no numbers"
    assert JITFunction.run.__qualname__ == "JITFunction.run"
    assert Autotuner.run.__qualname__ == "Autotuner.run"


def test_a_choice_holds_for_the_fewer_rows_of_a_check(tuner) -> None:
    tune_together("pack")
    tuner.tune(size=512)
    before, chosen = len(tuner.fn.events), tuner.cache[512,]
    with choices_kept():
        compile_ahead(lambda: tuner.tune(size=16))
        tuner.tune(size=16)
    assert tuner.cache[16,] is chosen
    assert tuner.fn.events[before:] == ["launch 2"]


def test_a_choice_is_that_of_the_most_similar_size(tuner) -> None:
    tune_together("pack")
    tuner.keys = ["x", "size"]
    tuner.cache = {(1, 512): tuner.configs[0], (0, 512): tuner.configs[2]}
    record = tuner.check_disk_cache
    with choices_kept():
        assert record.known((0, 16), tuner.configs) is tuner.configs[2]
        assert record.known((1, 16), tuner.configs) is tuner.configs[0]
        assert record.known((0, 16), tuner.configs[:1]) is tuner.configs[0]


def test_a_kernel_without_a_choice_is_tuned_for_a_check(tuner, tmp_path) -> None:
    tune_together("pack")
    with choices_kept():
        tuner.tune(size=16)
    assert "launch 4" in tuner.fn.events
    assert len(list((tmp_path / "triton-tuning").iterdir())) == 1


def test_choices_of_other_sizes_end_with_the_check(tuner) -> None:
    tune_together("pack")
    tuner.tune(size=512)
    with choices_kept():
        pass
    tuner.tune(size=16)
    assert tuner.fn.events.count("launch 4") == 2
