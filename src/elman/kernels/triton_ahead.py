"""Compiles all Triton kernels of a call before the call, by all cores at once.

A layer runs twenty kernels one after another, and tuning compiles the variants of one while the
next one waits. The slowest variant of each then sets the time: a minute or more. Here the call is
made once without launching any Triton kernel. Each launch only asks for the compilation of all
variants, so that all cores have work until the last one is done. What such a call computes is
nothing that anybody may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from elman.kernels.forks import ForkingExecutor
from elman.kernels.triton_tuning import counted, record_of, tell, wait_and_tell


def compile_ahead(call: Callable[[], None]) -> None:
    """Compile what a call will launch: every variant, or those that an earlier run found fastest.

    Args:
        call: Makes the call. Its Triton kernels do not run, so memory has any numbers; every
            other operation does.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode, active_mode
    except ImportError:  # an older Triton compiles one kernel after another
        return
    with counted(), ForkingExecutor() as pool:
        mode = AsyncCompileMode(pool, ignore_errors=True)
        try:
            try:
                with _only_compiling(mode, active_mode):
                    call()
            except Exception as error:
                tell(f"kernels are compiled one after another: {type(error).__name__}: {error}")
            wait_and_tell(mode.raw_futures, "compiling kernels")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        mode.__exit__(None, None, None)


@contextmanager
def _only_compiling(mode: Any, active_mode: Any) -> Iterator[None]:
    """Let every launch of a Triton kernel, in any thread, ask for its compilation alone."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launch, tune = JITFunction.run, Autotuner.run

    def compiled(self: Any, *args: Any, **given: Any) -> Any:
        # The backward pass has a thread of its own, which does not see the mode of this one.
        before = active_mode.set(mode)
        try:
            return launch(self, *args, **given | {"warmup": True})
        finally:
            active_mode.reset(before)

    def all_variants(self: Any, *args: Any, **given: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        variants = _variants(self, args, given)
        for variant in variants:
            self.fn.run(*args, **given, **variant.all_kwargs())
        self.nargs, self.best_config = None, variants[0]
        tell(f"compiling kernels: {len(mode.raw_futures)} variants begun")

    JITFunction.run, Autotuner.run = compiled, all_variants
    try:
        yield
    finally:
        JITFunction.run, Autotuner.run = launch, tune


def _variants(tuner: Any, args: tuple[Any, ...], given: dict[str, Any]) -> list[Any]:
    """Return the variants of an autotuned kernel that may be launched."""
    if len(tuner.configs) < 2:
        return list(tuner.configs)
    key = _key(tuner, args, given)
    if key in tuner.cache:
        return [tuner.cache[key]]
    variants = list(tuner.prune_configs(given))
    record = record_of(tuner)
    known = record.known(key, variants) if record is not None else None
    return variants if known is None else [known]


def _key(tuner: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, ...]:
    """Return what ``Autotuner.run`` knows a size by."""
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **given}
    named = {name: value for name, value in named.items() if name in tuner.arg_names}
    sizes = [named[name] for name in tuner.keys if name in named]
    return (*sizes, *(str(one.dtype) for one in named.values() if hasattr(one, "dtype")))
