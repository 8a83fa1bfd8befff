"""Faster autotuning of a package's Triton kernels: parallel compilation, short timing, a record.

A package tries every variant of a kernel at every new size. Triton compiles and times them one
after another, which takes minutes for a layer. Here all cores compile the variants in parallel,
each variant is timed for milliseconds, and the fastest is noted on disk. Triton's own notes leave
out every kernel that clears a tensor before it runs, as most of mamba-ssm's do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elman.base.cache import cached, put_file
from elman.kernels.forks import ForkingExecutor
from elman.kernels.triton_choices import from_table, kernel_of, size_of
from elman.kernels.triton_variants import without_twins

# Milliseconds to warm up and to time a variant; Triton's defaults are 25 and 100.
_WARM_UP, _TIMED = 5, 20
_listeners: list[Callable[[str], None]] = []
_keeps = False


@dataclass
class Tally:
    """What tuning has cost this process.

    Attributes:
        kernels: Kernels whose variants were timed.
        variants: Their variants.
        seconds: Time for compiling and timing them.
    """

    kernels: int = 0
    variants: int = 0
    seconds: float = 0.0

    def __sub__(self, before: Tally) -> Tally:
        return Tally(
            self.kernels - before.kernels,
            self.variants - before.variants,
            self.seconds - before.seconds,
        )

    def describe(self) -> str:
        """Return it in one line, for people."""
        if not self.kernels:
            return f"no kernel had to be tuned; all loaded in {self.seconds:.1f} s"
        return f"tuned {self.kernels} kernels ({self.variants} variants) in {self.seconds:.1f} s"


_tally = Tally()


def tuned_so_far() -> Tally:
    """Return a copy of what tuning has cost until now."""
    return Tally(_tally.kernels, _tally.variants, _tally.seconds)


def tune_together(root: str) -> None:
    """Change how a package's autotuned kernels are tuned; each kernel is changed only once.

    Args:
        root: Name of the package's root module. Only its loaded modules are searched.
    """
    from triton.runtime.autotuner import Autotuner

    names = [name for name in sys.modules if name == root or name.startswith(f"{root}.")]
    for name in names:
        for value in list(vars(sys.modules[name]).values()):
            tuner = _tuner_of(value, Autotuner)
            if tuner is not None and not isinstance(tuner._bench, _Together):
                tuner.configs = without_twins(tuner)
                tuner._bench = _Together(tuner)
                tuner._do_bench = _briefly
                tuner.cache_results = True
                tuner.check_disk_cache = _Record(tuner)


@contextmanager
def choices_kept() -> Iterator[None]:
    """Tune nothing here that was tuned for another size: take the variant that was chosen there.

    Packages count rows in some of their keys. A check with fewer rows than the training would then
    tune these kernels again, and would check other variants than those that train. A kernel without
    a choice is tuned as ever.
    """
    global _keeps
    before, _keeps = _keeps, True
    try:
        yield
    finally:
        _keeps = before


@contextmanager
def tuning_told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with one line whenever this process goes on with compiling or tuning.

    The call may come from the thread of a backward pass.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(line: str) -> None:
    """Tell everybody who listens."""
    for listener in list(_listeners):
        listener(line)


@contextmanager
def counted() -> Iterator[None]:
    """Add the time of what is done here to the tally."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _tally.seconds += time.perf_counter() - began


def wait_and_tell(futures: Sequence[Future[Any]], what: str) -> None:
    """Wait for compilations, and tell each second how many are done."""
    while True:
        waiting = wait(futures, timeout=1.0).not_done
        if not waiting:
            return
        tell(f"{what}: {len(futures) - len(waiting)} of {len(futures)} variants compiled")


class _Together:
    """Replaces ``Autotuner._bench``: times one variant, and before the first compiles all."""

    def __init__(self, tuner: Any) -> None:
        self._tuner, self._time = tuner, tuner._bench

    def __call__(self, *args: Any, config: Any, **meta: Any) -> Any:
        variants = self._tuner.prune_configs(meta)
        with counted():
            if config is variants[0]:
                self._compile(args, meta, variants)
            return self._time(*args, config=config, **meta)

    def _compile(self, args: Sequence[Any], meta: dict[str, Any], variants: Sequence[Any]) -> None:
        _tally.kernels += 1
        _tally.variants += len(variants)
        what = f"tuning {self._tuner.base_fn.__name__} ({len(variants)} variants)"
        tell(what)
        try:
            from triton.runtime._async_compile import AsyncCompileMode
        except ImportError:  # an older Triton cannot: then timing compiles them one by one
            return
        given = {name: value for name, value in meta.items() if name != "warmup"}
        # A variant that does not compile fails again when it is timed, and is skipped there.
        with (
            ForkingExecutor() as pool,
            AsyncCompileMode(pool, ignore_errors=True) as mode,
        ):
            for config in variants:
                self._tuner.fn.warmup(*args, **given, **config.all_kwargs())
            wait_and_tell(mode.raw_futures, what)


class _Record:
    """Replaces ``Autotuner.check_disk_cache``: looks up the fastest variant, or notes it."""

    def __init__(self, tuner: Any) -> None:
        self._tuner = tuner

    def __call__(self, key: Any, variants: Sequence[Any], tune: Callable[[], None]) -> bool:
        if (known := self.known(key, variants)) is not None:
            self._tuner.cache[key] = known
            return True
        tune()
        self._note(key, variants)
        return False

    def known(self, key: Any, variants: Sequence[Any]) -> Any | None:
        """Return the variant to take without timing any, or None.

        It was the fastest one on this machine at this size; or, under :func:`choices_kept`, at the
        most similar size of this process; or on another GPU of this kind.
        """
        place = self._place(key, variants)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            fastest = json.loads(place.read_text())["fastest"]
            return {str(variant): variant for variant in variants}[fastest]
        near = self._chosen_near(key, variants) if _keeps else None
        return near or from_table(self._tuner, key, variants)

    def _chosen_near(self, key: Any, variants: Sequence[Any]) -> Any | None:
        """Return what was chosen for the size that has most in common with ``key``, or None."""
        sizes = [size for size, variant in self._tuner.cache.items() if variant in variants]
        return self._tuner.cache[max(sizes, key=partial(_in_common, key))] if sizes else None

    def _note(self, key: Any, variants: Sequence[Any]) -> None:
        """Write down the fastest variant; if that fails, the next process tunes again."""
        times = getattr(self._tuner, "configs_timings", {})
        text = json.dumps(
            {
                "kernel": kernel_of(self._tuner),
                "size": size_of(self._tuner, key),
                "key": str(key),
                "fastest": str(self._tuner.cache[key]),
                "ms": {str(variant): found for variant, found in times.items()},
            },
            indent=1,
        )
        place = self._place(key, variants)
        with contextlib.suppress(OSError):
            put_file(place, text)

    def _place(self, key: Any, variants: Sequence[Any]) -> Path:
        """Return the file of a kernel at a size; its name has all that the fastest depends on."""
        function = self._tuner.fn
        while hasattr(function, "fn") and not hasattr(function, "cache_key"):
            function = function.fn
        parts = [MACHINE(), function.cache_key, str(key), *map(str, variants)]
        name = re.sub(r"\W", "-", self._tuner.base_fn.__name__)[:80]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
        return cached("kernels", f"triton-tuning/{name}-{digest}.json")


def _in_common(key: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many parts of two keys are equal."""
    return sum(a == b for a, b in zip(key, other, strict=False))


def _machine() -> str:
    """Return the GPU, its driver's compiler and Triton, in words."""
    import torch
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key
    from triton.runtime.driver import driver

    backend = make_backend(driver.active.get_current_target())
    return f"{torch.cuda.get_device_name()} {backend.hash()} {triton_key()}"


MACHINE: Callable[[], str] = _machine
"""Names the machine; tests answer for one without a GPU."""


def record_of(tuner: Any) -> _Record | None:
    """Return a changed autotuner's record on disk, or None."""
    found = vars(tuner).get("check_disk_cache")
    return found if isinstance(found, _Record) else None


def _briefly(call: Callable[[], None], quantiles: Sequence[float]) -> Any:
    from triton.testing import do_bench

    return do_bench(call, warmup=_WARM_UP, rep=_TIMED, quantiles=quantiles)


def _tuner_of(value: Any, kind: type) -> Any | None:
    """Return the autotuner among the wrappers around a kernel, or None."""
    while value is not None and not isinstance(value, type):
        if isinstance(value, kind):
            return value
        value = vars(value).get("fn") if hasattr(value, "__dict__") else None
    return None
