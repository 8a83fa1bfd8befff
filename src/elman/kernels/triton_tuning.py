"""Faster autotuning of a package's Triton kernels: parallel compilation, short timing, caching.

A package tries every variant of a kernel at every new size. Triton compiles and times them one
after another, which takes minutes for a layer. Here all cores compile the variants of a kernel in
parallel, each variant is timed for milliseconds, and Triton stores the timings on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from elman.kernels.threads import cpu_share

# Milliseconds to warm up and to time a variant; Triton's defaults are 25 and 100.
_WARM_UP, _TIMED = 5, 20
_listeners: list[Callable[[str], None]] = []


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
                tuner._bench = _Together(tuner)
                tuner._do_bench = _briefly
                tuner.cache_results = True


@contextmanager
def tuning_told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with one line whenever this process begins to tune a kernel.

    The call may come from the thread of a backward pass.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class _Together:
    """Replaces ``Autotuner._bench``: times one variant, and before the first compiles all."""

    def __init__(self, tuner: Any) -> None:
        self._tuner, self._time = tuner, tuner._bench

    def __call__(self, *args: Any, config: Any, **meta: Any) -> Any:
        variants = self._tuner.prune_configs(meta)
        if config is variants[0]:
            self._compile(args, meta, variants)
        return self._time(*args, config=config, **meta)

    def _compile(self, args: Sequence[Any], meta: dict[str, Any], variants: Sequence[Any]) -> None:
        for listener in list(_listeners):
            listener(f"tuning {self._tuner.base_fn.__name__} ({len(variants)} variants)")
        try:
            from triton.runtime._async_compile import AsyncCompileMode
        except ImportError:  # an older Triton cannot: then timing compiles them one by one
            return
        given = {name: value for name, value in meta.items() if name != "warmup"}
        # A variant that does not compile fails again when it is timed, and is skipped there.
        with ThreadPoolExecutor(cpu_share()) as pool, AsyncCompileMode(pool, ignore_errors=True):
            for config in variants:
                self._tuner.fn.warmup(*args, **given, **config.all_kwargs())


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
