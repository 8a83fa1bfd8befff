"""Compares the dense engine's kernels with fp64, and to the bit with themselves.

Shape legend: b batch, t time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.kernels.nvrtc import Unit
from elman.ops.dense.cuda import forms, groups, stepwise
from elman.ops.dense.cuda.group_config import GroupConfig
from elman.ops.dense.recurrences import CELLS
from tools.gpu.dense_calls import REASONS, all_of, guarded, leaves_of, shape_of
from tools.gpu.instruments import distance, equal, on_late_stream, poisoned, replayed_late
from tools.gpu.job import Job

LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Compared with fp64: batch, steps, channels, rank. One channel of a thread, then two; then more
# channels than a block has, and factors; then more than a cluster has room for, with several
# launches.
SHAPES = ((3, 7, 35, 0), (1, 1, 6, 0), (32, 9, 512, 0), (5, 4, 1290, 0), (4, 9, 128, 32))
RESET_SHAPES = ((5, 7, 34, 0), (32, 9, 512, 0))  # compared once more, with resets
LARGE, LARGE_STEPS = ((33, 5, 2050, 0), (70, 4, 3584, 0)), ("tanh", "mix", "lstm")
# Steps of the checks to the bit.
BITS = ("tanh", "gru", "gru_reset_after", "lstm", "slstm", "normalized_scalar")


def checks(job: Job, names: list[str], steps: list[str]) -> None:
    """Compare every step and form with fp64, then to the bit with itself."""
    if job.device == "cuda" and "stepwise" in names:
        compile_stepwise(steps)
    if job.device == "cuda" and "groups" in names:
        compile_groups(steps)
    dtypes = LIMITS if job.device == "cuda" else [torch.float32]
    for form, step, dtype in itertools.product(names, steps, dtypes):
        row = {"what": "fp64", "form": form, "step": step, "dtype": str(dtype)}
        guarded(job, row, form, partial(compared, form, step, dtype, job.device))
        call = partial(compared, form, step, dtype, job.device, resets=True)
        guarded(job, row | {"resets": True}, form, call)
    for form, step in itertools.product(names, [s for s in steps if s in BITS]):
        row = {"what": "bits", "form": form, "step": step}
        guarded(job, row, form, partial(to_the_bit, form, step, job.device))


def compile_stepwise(steps: list[str]) -> None:
    """Compile kernels side by side."""
    major, minor = torch.cuda.get_device_capability()
    configs = [
        stepwise.StepConfig(step, dtype, torch.float32, vector)
        for step, dtype, vector in itertools.product(steps, LIMITS, (1, 2))
    ]

    def compiled(one: stepwise.StepConfig) -> None:
        fast = one.io == torch.bfloat16
        text = stepwise.unit_text(one)
        Unit(text, f"dense {one.step}", f"sm_{major}{minor}", fast).cubin()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, configs))


def compile_groups(steps: list[str]) -> None:
    """Compile kernels side by side."""
    major, minor = torch.cuda.get_device_capability()
    shapes = [
        shape_of(step, torch.bfloat16, batch, channels, rank, "cuda")
        for step in steps
        for batch, _, channels, rank in shapes_of(step)
    ]
    configs = {
        config
        for shape, back in itertools.product(shapes, (False, True))
        if REASONS["groups"](shape) is None and (config := forms.group_config(shape, back=back))
    }

    def compiled(one: GroupConfig) -> None:
        step = next(name for name, cell in CELLS.items() if cell == one.cell)
        label = f"dense {step} {'backward' if one.back else 'forward'} groups"
        Unit(groups.unit_text(one), label, f"sm_{major}{minor}", fast=True).cubin()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, configs))


def shapes_of(step: str) -> tuple[tuple[int, int, int, int], ...]:
    """Return the shapes in which a step is checked: batch, steps, channels, rank."""
    return SHAPES + (LARGE if step in LARGE_STEPS else ())


def compared(
    form: str, step: str, dtype: torch.dtype, device: str, *, resets: bool = False
) -> dict[str, Any]:
    """Return the largest relative L2 error of outputs and gradients, by shape."""
    errors: dict[str, Any] = {}
    worst = 0.0
    for batch, steps, channels, rank in RESET_SHAPES if resets else shapes_of(step):
        name = f"{batch}x{steps}x{channels} rank {rank}"
        shape = shape_of(step, dtype, batch, channels, rank, device)
        against = REASONS[form](replace(shape, resets=resets))
        if against is not None:
            errors[name] = f"not run: {against}"
            continue
        narrow = leaves_of(step, (batch, steps, channels, rank), dtype, device)
        wide = {n: leaf.detach().double().requires_grad_() for n, leaf in narrow.items()}
        resets_bt = torch.rand(batch, steps, device=device) < 0.3 if resets else None
        with poisoned():
            backend = "cuda" if device == "cuda" else "cpu"
            found = all_of(step, narrow, backend, resets_bt=resets_bt)
        exact = all_of(step, wide, "reference", dtype, resets_bt)
        by_name = {n: distance(found[n], exact[n], size_of(exact, n)) for n in exact}
        largest = max(by_name, key=lambda n: by_name[n])
        errors[name] = f"{by_name[largest]:.1e} of {largest}"
        worst = max(worst, by_name[largest])
    return {"errors": errors, "worst": worst, "passed": worst <= LIMITS[dtype]}


def size_of(exact: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the norm that an error is relative to.

    The gradient of a single number is a sum of terms that may cancel. Its rounding is that of the
    terms, which are about as large as the gradients of the pre-activations.
    """
    norm = exact[name].norm()
    return norm if exact[name].numel() > 1 else torch.maximum(norm, exact["d input 0"].norm())


def to_the_bit(form: str, step: str, device: str) -> dict[str, Any]:
    """Compare a call with its repeat, with one on another stream and with a replayed graph."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = (32, 9, 512, 0)
    against = REASONS[form](shape_of(step, dtype, size[0], size[2], 0, device))
    if against is not None:
        return {"not run": against}
    leaves = leaves_of(step, size, dtype, device)
    backend = "cuda" if device == "cuda" else "cpu"
    call = partial(all_of, step, backend=backend)
    first = call(leaves)
    same = {"repeat": equal(first, call(leaves))}
    if device == "cuda":
        same["stream"] = equal(first, on_late_stream(call, leaves))
        same["graph"] = equal(first, replayed_late(call, leaves))
    return {"same": same, "passed": all(same.values())}
