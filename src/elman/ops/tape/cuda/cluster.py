"""The cluster form of the tape engine: one launch runs the recurrence over a whole sequence.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, k blocks of the matrices.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache

from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.cuda.clusters import MULTIPROCESSORS
from elman.ops.common.cuda.machine import machine
from elman.ops.common.cuda.tensors import aligned, padded
from elman.ops.common.cuda_kernels import CudaKernels, approximate
from elman.ops.common.native import Arguments
from elman.ops.common.precision import cast, no_autocast
from elman.ops.tape import passes
from elman.ops.tape.cuda.cluster_config import ClusterConfig, choose
from elman.ops.tape.cuda.stepwise import of_matrices
from elman.ops.tape.passes import Call, Gradients, Results, Saved
from elman.ops.tape.recurrences import CELLS, compiled_cell

_NAMES = ("tape_cluster_forward", "tape_cluster_backward")
_POINTERS = (
    *("x", "dy", "dx", "y", "matrix", "first", "last", "dlast", "dfirst", "tape", "last_tape"),
    *("dlast_tape", "dtape", "weights", "values", "dvalues", "checkpoints", "replayed"),
)
_NUMBERS = ("batch", "steps", "channels", "interval")


class TapeClusterArgs(ctypes.Structure):
    """One call, as csrc/abi/tape_cluster.h declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


def forward(call: Call) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.cuda.kernels.forward`."""
    assert call.resets_bt is None, "forms.py takes another form"
    with no_autocast(call.state_bi):
        results = passes.room(call)
        kernel = _KernelCall(call, results, back=False)
        kernel.point(x=call.input_bti, last_tape=results.tape_bni, last=results.state_bi)
        kernel.run()
    return results


def backward(saved: Saved) -> Gradients:
    """Return the gradients of what a forward pass read."""
    assert saved.resets_bt is None, "forms.py takes another form"
    with no_autocast(saved.state_bi):
        kernel = _KernelCall(saved, saved, back=True)
        dinput_bti = saved.y_bti.new_empty(saved.y_bti.shape)
        dvalues_bti = saved.values_bti.new_empty(saved.values_bti.shape)
        dtape = saved.tape_bni.new_empty(saved.tape_bni.shape)
        dstate = saved.state_bi.new_empty(saved.state_bi.shape)
        kernel.point(dx=dinput_bti, dvalues=dvalues_bti, dtape=dtape, dfirst=dstate)
        dy_bti = None if saved.dy_bti is None else cast(saved.dy_bti, saved.y_bti.dtype)
        kernel.point(dy=dy_bti, dlast_tape=saved.dtape_bni, dlast=saved.dstate_bi)
        kernel.point(replayed=dtape.new_empty(2 * (kernel.args.interval - 1), *dtape.shape))
        kernel.run()
        dmatrix_pi = of_matrices(saved, dinput_bti, dvalues_bti)
    return Gradients(dinput_bti, dmatrix_pi, dtape, dstate)


class _KernelCall(Arguments[TapeClusterArgs]):
    """The arguments of one pass, and the tensors that they point to.

    Args:
        call: What is read.
        results: What the forward pass leaves or left.
        back: Which pass.

    Attributes:
        config: How the pass runs.
        like: A tensor of the call.
    """

    def __init__(self, call: Call | Saved, results: Results | Saved, *, back: bool) -> None:
        batch, steps, channels = results.y_bti.shape
        multiprocessors = machine(call.state_bi.device.index).multiprocessors or MULTIPROCESSORS
        slots = call.tape_bni.shape[1]
        config = CHOOSE(call.write, channels, slots, batch, multiprocessors, back)
        assert config is not None, call.write
        self.config, self.like = config, call.state_bi
        super().__init__(TapeClusterArgs(batch=batch, steps=steps, channels=channels))
        self.args.interval = passes.interval(steps)
        matrix_pi = cast(call.matrix_pi, results.y_bti.dtype)
        self.point(matrix=padded(matrix_pi, config.channels, transposed=back))
        self.point(first=call.state_bi, tape=call.tape_bni, y=results.y_bti)
        self.point(weights=results.weights_btan, values=results.values_bti)
        self.point(checkpoints=results.checkpoints_cbni)

    def point(self, **tensors: Tensor | None) -> None:
        """Set arguments, as loads of 16 bytes can begin at."""
        super().point(**{name: aligned(one) for name, one in tensors.items() if one is not None})

    def run(self) -> None:
        """Launch the pass."""
        config = self.config
        blocks = math.ceil(self.args.batch / config.rows) * config.cluster
        name = _NAMES[config.back]
        size = (config.threads, config.shared_bytes)
        LAUNCH(config, Launch(name, blocks, *size, cluster=config.cluster), self)


def _choose(
    write: str, channels: int, slots: int, batch: int, multiprocessors: int, back: bool
) -> ClusterConfig | None:
    return choose(compiled_cell(write), channels, slots, batch, multiprocessors, back=back)


@cache
def unit_text(config: ClusterConfig, headers: tuple[str, ...] = ()) -> str:
    """Return the text of a pass's translation unit.

    Args:
        config: What is computed, and how it runs.
        headers: Headers that say what the kernels ask of the machine; none: a GPU's.
    """
    headers = headers or ("cuda/common/device.cuh", "cuda/common/cluster.cuh")
    name, cell = _NAMES[config.back], config.cell
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers),
            '#include "cuda/tape/cluster_passes.cuh"',
            "namespace elman {\nstruct ClusterSpec {",
            f"    using Cell = {cell.type};",
            f"{cell.assertions(cell.type)}}};\n}}  // namespace elman",
            f"using G = {config.type};",
            layout_assertions("elman::TapeClusterArgs", TapeClusterArgs) + config.static_checks(),
            f"ELMAN_CLUSTER_KERNEL({name}, G::CLUSTER, G::THREADS, 1, elman::TapeClusterArgs, "
            f"elman::{name}<G>(a))",
            "",
        ]
    )


def _label(config: ClusterConfig) -> str:
    name = next(name for name, one in CELLS.items() if one == config.cell)
    return f"tape {name} {'backward' if config.back else 'forward'}"


COMPILED: CudaKernels[ClusterConfig] = CudaKernels(unit_text, _label, fast=approximate)


def _launch(config: ClusterConfig, wanted: Launch, call: _KernelCall) -> None:
    """Launch a kernel on the current stream of the call's device."""
    COMPILED.launch(config, [wanted], call.args, call.like.device)


CHOOSE: Callable[[str, int, int, int, int, bool], ClusterConfig | None] = _choose
"""Returns how a pass runs; tests put other configs here."""

LAUNCH: Callable[[ClusterConfig, Launch, _KernelCall], None] = _launch
"""Runs the kernel of a pass; tests put the emulator here."""
