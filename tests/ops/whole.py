"""Compiles CPU kernels of an engine as one library, the same one for every test that needs any.

A library of all kernels takes as long as a few of them each by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from elman.kernels import build
from elman.ops.channel import cpu as channel_cpu
from elman.ops.channel import source as channel
from elman.ops.channel.plan import Plan
from elman.ops.common.cpu_kernels import StepKernels
from elman.ops.dense import cpu as dense_cpu
from elman.ops.dense import source as dense
from elman.ops.dense.recurrences import CELLS as DENSE
from elman.ops.matrix_state import cpu as matrix
from elman.ops.matrix_state.plan import Plan as MatrixPlan
from elman.ops.tape import cpu as tape_cpu
from elman.ops.tape import source as tape
from elman.ops.tape.recurrences import CELLS as TAPE

STEPS: dict[str, tuple[StepKernels, Iterable[str]]] = {
    "dense": (dense.KERNELS, tuple(DENSE)),
    "tape": (tape.KERNELS, tuple(TAPE)),
}


def compile_steps(engine: str, dtype: torch.dtype, *, resets: bool = False) -> None:
    """Load the kernels of all steps of ``dense`` or of ``tape``."""
    table, steps = STEPS[engine]

    def prepare() -> None:
        with optimized(dtype):
            table.prepare_steps(steps, dtype, f"{engine} {dtype}", resets=resets)

    _load_together(table.loaded, [(step, dtype, resets) for step in steps], prepare)


def compile_channel(dtype: torch.dtype, *, resets: bool = False) -> None:
    """Load the kernels of all plans of ``tests/ops/channel``."""
    from tests.ops.channel.test_channel_kernels import PLANS

    made = (channel.spec_for(make(8), dtype, resets=resets) for make in PLANS.values())
    specs = list(dict.fromkeys(made))

    def prepare() -> None:
        with optimized(dtype):
            channel.KERNELS.prepare(specs, f"channel {dtype}")

    _load_together(channel.KERNELS.loaded, specs, prepare)


def compile_matrix(
    plans: Iterable[tuple[MatrixPlan, torch.dtype]], label: str, *, resets: bool = False
) -> None:
    """Load kernels of the matrix-state engine, two libraries of each dtype side by side."""
    wanted = list(plans)

    def prepare(part: list[tuple[MatrixPlan, torch.dtype]]) -> None:
        matrix.prepare(part, label, resets=resets)

    for dtype in dict.fromkeys(dtype for _, dtype in wanted):
        of_dtype = [one for one in wanted if one[1] == dtype]
        with optimized(dtype), ThreadPoolExecutor(2) as pool:
            list(pool.map(prepare, (of_dtype[::2], of_dtype[1::2])))


@contextmanager
def optimized(dtype: torch.dtype) -> Iterator[None]:
    """Compile kernels of fp64 with -O1, in half the time, and others as users have them.

    In fp64 the equations are proved, whose numbers do not depend on it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if dtype == torch.float64:
            flags = tuple("-O1" if flag == "-O3" else flag for flag in build._FLAGS)
            patch.setattr(build, "_FLAGS", flags)
        yield


def _load_together(
    loaded: dict[Any, Any], wanted: Iterable[Any], prepare: Callable[[], None]
) -> None:
    """Load kernels as one library, whichever of them were loaded before: its text is the same."""
    if any(one not in loaded for one in wanted):
        for one in wanted:
            loaded.pop(one, None)
        prepare()


def compile_together(patch: pytest.MonkeyPatch) -> None:
    """Let whoever asks for one kernel of these engines get it with all the others."""
    patch.setattr(dense_cpu, "kernel_for", functools.partial(_kernel_of_a_step, "dense"))
    patch.setattr(tape_cpu, "kernel_for", functools.partial(_kernel_of_a_step, "tape"))
    patch.setattr(channel_cpu, "kernel_for", _kernel_of_a_plan)


def _kernel_of_a_step(engine: str, step: str, dtype: torch.dtype, *, resets: bool = False) -> Any:
    table, _ = STEPS[engine]
    if (step, dtype, resets) not in table.loaded:
        compile_steps(engine, dtype, resets=resets)
    return table.kernel_for(step, dtype, resets=resets)


def _kernel_of_a_plan(plan: Plan, dtype: torch.dtype, *, resets: bool) -> Any:
    if channel.spec_for(plan, dtype, resets=resets) not in channel.KERNELS.loaded:
        compile_channel(dtype, resets=resets)
    return channel.kernel_for(plan, dtype, resets=resets)
