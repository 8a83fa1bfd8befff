"""The matrix-state engine's kernels for the CPU: compiled at first use, called by pointer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

from elman.kernels.build import load_library
from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import Kernel, functions
from elman.ops.common.native import C_TYPES, require_cpu_dtype
from elman.ops.matrix_state.abi import Call, MatrixArgs, layouts
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.source import spec_source

# By the text that was compiled, and by plan, dtype and whether there are resets: building the text
# takes longer than a step.
_loaded: dict[str, Kernel] = {}
_found: dict[tuple[str, torch.dtype, bool], Kernel] = {}
_NAME = "Spec"
_LARGE = 2048


def segment(plan: Plan, batch: int, dtype: torch.dtype) -> int:
    """Return the steps between two checkpoints, a segment that the backward pass recomputes.

    The checkpoints then take a 32nd of the memory of all states, or a 64th where a state is larger
    than a step's sequences. From 16 to 128 steps the time is the same.
    """
    return 32 if plan.rows * plan.columns <= _LARGE else 64


def checkpoint_dtype(plan: Plan, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the checkpoints: that of every other number."""
    return dtype


def launch(call: Call, *, backward: bool) -> None:
    """Run a call, forward or backward.

    Raises:
        UserError: the tensors do not lie on the CPU, or the kernel cannot be compiled.
    """
    require_cpu(call.like)
    kernel = _kernel(call.plan, call.like.dtype, call.resets)
    call.args.threads = kernel_threads(torch.get_num_threads())
    call.give_workspace(kernel.workspace(call.args, backward))
    (kernel.backward if backward else kernel.forward)(call.args)


def prepare(plans: Iterable[tuple[Plan, torch.dtype]], label: str, *, resets: bool = False) -> None:
    """Compile and load kernels that are not loaded yet, all as one library.

    Args:
        plans: What to compile, each for float32 or float64.
        label: What they are, for people.
        resets: Whether they read masks of resets.

    Raises:
        UserError: they cannot be compiled.
    """
    specs = dict.fromkeys(_spec(plan, dtype, resets) for plan, dtype in plans)
    missing = [spec for spec in specs if spec not in _loaded]
    if not missing:
        return
    parts = ['#include "cpu/matrix_state/engine.h"\n', layouts()]
    for number, spec in enumerate(missing):
        name = f"matrix_{number}"
        parts.append(spec.replace(f"struct {_NAME} ", f"struct {_NAME}_{name} "))
        parts.append(f"ELMAN_MATRIX({name}, elman::{_NAME}_{name})\n")
    library = load_library("\n".join(parts), label)
    for number, spec in enumerate(missing):
        _loaded[spec] = functions(library, f"matrix_{number}", MatrixArgs, ctypes.c_int64)


def _kernel(plan: Plan, dtype: torch.dtype, resets: bool) -> Kernel:
    key = plan.text, dtype, resets
    if key not in _found:
        label = f"{plan.label} {C_TYPES.get(dtype, '')}{' with resets' if resets else ''}"
        prepare([(plan, dtype)], label, resets=resets)
        _found[key] = _loaded[_spec(plan, dtype, resets)]
    return _found[key]


def _spec(plan: Plan, dtype: torch.dtype, resets: bool) -> str:
    require_cpu_dtype(dtype)
    number = C_TYPES[dtype]
    return spec_source(plan, _NAME, io=number, state=number, hidden=True, resets=resets)
