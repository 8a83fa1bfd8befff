"""Runs kernels under the address and undefined-behaviour sanitizers, in a process of its own.

    LD_PRELOAD=$(g++ -print-file-name=libasan.so) python -m tests.emulation.sanitized ENGINE ...

For every engine prints "clean ENGINE" when its kernels have run as they are, forward and back. With
--planted first a fault is planted in each, in a forked process that the sanitizer has to end, and
"noticed ENGINE" is printed. Launches of emulated kernels may touch all memory here: what the
emulator itself would see is left to the sanitizer.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import elman.kernels.build
from elman.kernels.compiler import BASE_FLAGS
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.channel import op as channel_op
from elman.ops.channel.recurrences import CELLS
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS as DENSE
from elman.ops.matrix_state import op as matrix_op
from elman.ops.matrix_state.stacked import stacked_plan
from elman.ops.tape.op import dual_memory
from elman.ops.tape.recurrences import CELLS as TAPE
from tests.emulation import channel_faults, emulator, matrix_faults, stretches
from tests.emulation.test_add_norm_emulation import BF16, draw, emulate, everything

# Sources under csrc, old text, new text: reads or writes beside a tensor.
FAULTS = {
    "matrix": (
        "cuda/matrix_state/smem_staging.cuh",
        "(step - first) * stride",
        "(step - first + 1) * stride",
    ),
    "channel": ("cuda/channel/passes.cuh", "if (exists) store_one", "store_one"),
    "add_norm": ("cuda/add_norm/add_norm.cuh", "if (at < G::D) store", "store"),
    "cpu_matrix": ("cpu/matrix_state/places.h", "+ t * x.grad_time", "+ (t + 1) * x.grad_time"),
    "cpu_dense": ("cpu/dense/engine.h", "extra_size() + rows_size() +", "extra_size() +"),
    "cpu_tape": ("cpu/tape/engine.h", "take(is_backward() ? a.batch * products() : 0)", "take(0)"),
    "cpu_channel": ("cpu/channel/lanes.h", "(to, &v, n * sizeof", "(to, &v, (n + 1) * sizeof"),
}
Library = emulator.Library


def matrix(library: Library, thorough: bool) -> None:
    """Run plans with padding and several row tiles."""
    for plan in matrix_faults.PLANS if thorough else ("e88",):
        for case in matrix_faults.CASES if thorough else matrix_faults.CASES[:1]:
            matrix_faults.results(plan, case, 10, library, seed=1, frame=0)


def channel(library: Library, thorough: bool) -> None:
    """Run a width with lanes that have no channel, from numbers in the middle of a word too."""
    for case in channel_faults.CASES if thorough else ("odd",):
        for plan in (channel_faults.PLAN, channel_faults.ROWS):
            channel_faults.results(case, library, plan)


def add_norm(library: Library, thorough: bool) -> None:
    """Run rows that are no whole vectors."""
    norm_cuda.LAUNCH = lambda text, wanted, args, _: emulate(library, text, wanted, args)
    norm_cuda.MULTIPROCESSORS = lambda device: 2
    for shape in ((2, 4, 37), (1, 3, 601), (1, 5, 4100), (3, 3, 8)) if thorough else ((2, 4, 37),):
        everything(draw(shape, BF16), BF16, "cuda")


def cpu_matrix(library: Library, thorough: bool) -> None:
    """Run rows and columns that are no whole vectors, and steps that are no whole segment."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    for name in matrix_faults.PLANS if thorough else ("e88",):
        cell, options = matrix_faults.PLANS[name]
        for n, time, batch in ((5, 33, 3), (20, 7, 1), (37, 40, 2)) if thorough else ((5, 33, 3),):
            plan = stacked_plan(cell, 3, n, n, **options)
            end = max(place.start + 3 * plan.width(role) for role, place in plan.roles)
            source = torch.randn(batch, time, end, generator=generator).requires_grad_()
            parameters = {
                name: torch.randn(plan.parameter_shape(name), generator=generator).requires_grad_()
                for name in plan.parameter_names
            }
            first = torch.randn(batch, 3, n, n, generator=generator).requires_grad_()
            pull(matrix_op.run(plan, [source], parameters, first, backend="cpu"))


def cpu_channel(library: Library, thorough: bool) -> None:
    """Run channels that are no whole vectors."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    plan = channel_faults.PLAN
    for width, time in ((37, 35), (3, 1), (29, 64)) if thorough else ((37, 35),):
        source = torch.randn(3, time, 80 + width, generator=generator).requires_grad_()
        parameters = {
            name: torch.randn(width, generator=generator).requires_grad_()
            for name in CELLS[plan.step].parameters
        }
        state = torch.randn(3, width, generator=generator).requires_grad_()
        pull(channel_op.run(plan, [source], parameters, state, backend="cpu"))


def cpu_dense(library: Library, thorough: bool) -> None:
    """Run channels that are no whole vectors, with one matrix and with two factors."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    for step, cell in DENSE.items() if thorough else (("tanh", DENSE["tanh"]),):
        for width, rank in ((37, 0), (19, 5)) if thorough else ((37, 0),):
            rows = cell.blocks * width
            sizes = [(3, 4, rows), *[(3, 4, width)] * cell.others]
            matrices = [(rows, rank), (rank, width)] if rank else [(rows, width)]
            own = [(1,)] if cell.scale else [(width, width)] if cell.extra else []
            inputs, recurrent, parameters, state = (
                [torch.randn(size, generator=generator).requires_grad_() for size in group]
                for group in (sizes, matrices, own, [(3, width)] * cell.states)
            )
            given = {"parameters": parameters, "backend": "cpu"}
            y, last = dense_recurrence(step, inputs, recurrent, state, **given)
            pull((y, *last))


def cpu_tape(library: Library, thorough: bool) -> None:
    """Run channels that are no whole vectors, and steps that are no whole segment."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    for write, cell in TAPE.items() if thorough else (("full", TAPE["full"]),):
        for width, steps, slots in (
            ((37, 5, 3), (19, 1, 1), (8, 12, 13)) if thorough else ((37, 5, 3),)
        ):
            sizes = [(3, steps, width), *[(width, width)] * cell.blocks]
            sizes += [(3, slots, width), (3, width)]
            x, *matrices, tape, state = (
                torch.randn(size, generator=generator).requires_grad_() for size in sizes
            )
            first, second = matrices if cell.blocks == 2 else (matrices[0], None)
            pull(dual_memory(x, first, second, tape, state, write=write, backend="cpu"))


def pull(outputs: tuple[Tensor, ...]) -> None:
    """Run the backward pass."""
    sum(out.sum() for out in outputs).backward()  # type: ignore[union-attr]


CPU_ENGINES = (cpu_matrix, cpu_channel, cpu_dense, cpu_tape)
ENGINES = {f.__name__: f for f in (matrix, channel, add_norm, *CPU_ENGINES)}


def planted(engine: str) -> bool:
    """Return whether an engine with its fault is ended by the sanitizer."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        with tempfile.TemporaryDirectory() as folder:
            run_planted(engine, Path(folder))
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def run_planted(engine: str, folder: Path) -> None:
    """Run an engine over faulty sources."""
    file, old, new = FAULTS[engine]

    def edit(whole: str) -> str:
        return whole.replace(old, new)

    if engine.startswith("cpu"):
        emulator.plant_in_cpu_engines(folder, file, edit)
    flags = emulator.SANITIZED
    library = functools.partial(emulator.planted, folder / "x", file, edit, flags=flags)
    (folder / "x").mkdir()
    ENGINES[engine](library, False)


def lines(engines: list[str], thorough: bool) -> Iterator[str]:
    """Run engines; yield what was seen."""
    library = functools.partial(emulator.loaded, flags=emulator.SANITIZED)
    for engine in engines:
        if thorough and planted(engine):
            yield f"noticed {engine}"
        ENGINES[engine](library, thorough)
        yield f"clean {engine}"


if __name__ == "__main__":
    stretches.declare_everything()
    elman.kernels.build._FLAGS = (*BASE_FLAGS, "-Wno-psabi", *emulator.SANITIZED)
    for line in lines(
        [name for name in sys.argv[1:] if name != "--planted"], "--planted" in sys.argv
    ):
        print(line, flush=True)
