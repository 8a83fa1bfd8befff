"""Writes docs/registers.md: the registers of the CUDA kernels on every architecture.

Run it after a change to csrc/cuda: ``python tools/docs/make_registers.py``. It needs no GPU. It
compiles everything with the NVRTC version that registers-compiler.txt pins, installed in a separate
folder, because the user's NVRTC and the one of torch's CUDA builds may have other versions. A test
requests the rows one by one (``--rows``) and compares them.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from elman.kernels.driver import Limits
from elman.kernels.nvrtc import Resources, Unit, nvrtc_version
from elman.ops.channel import recurrences as channel_cells
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.channel.cuda.tile_config import Tuning
from elman.ops.channel.plan import Plan as ChannelPlan
from elman.ops.common.slices import row_blocks
from elman.ops.dense import recurrences as dense_cells
from elman.ops.dense.cuda import cluster as dense_cluster
from elman.ops.dense.cuda import forms as dense_forms
from elman.ops.dense.cuda import groups as dense_groups
from elman.ops.dense.cuda import stepwise as dense_step
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import H200, choose, forward_of
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from elman.ops.tape import recurrences as tape_cells
from elman.ops.tape.cuda import cluster as tape_cluster
from elman.ops.tape.cuda import cluster_config as tape_config
from elman.ops.tape.cuda import stepwise as tape_step
from elman.report.markdown import table

PAGE = Path(__file__).parents[2] / "docs" / "registers.md"
PINNED = Path(__file__).parents[2] / "docs" / "registers-compiler.txt"
COMPILER = Path(sys.prefix) / "registers-compiler"
"""Where ``make test`` installs what is pinned."""
_KIB = 1024
ARCHITECTURES = {
    "sm_80": Limits(108, 163 * _KIB, 164 * _KIB, 8),
    "sm_90": H200,
    "sm_100": Limits(148, 227 * _KIB, 228 * _KIB, 10),
    "sm_120": Limits(170, 99 * _KIB, 100 * _KIB, 12),
}
SIZES = (16, 20, 32, 64, 128)
TUNED = channel_cuda.TUNING
NORM_CHANNELS = 1536
"""For the steps of the channel engine that have a norm over them."""
# Models by the cell that they run, what stands around it, and heads of a batch of 32.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "E70": ("decayed", E70, 32),
    "E75": ("row_gated_delta", E75, 256),
    "E88": ("delta", DELTA, 1024),
}


@dataclass(frozen=True)
class Kernel:
    """A pair of kernels, forward and backward, on one architecture.

    Args:
        name: The model, or the cell.
        plan: What is computed.
        heads: Heads of all sequences of a batch.
        dtype: Of the sources: bfloat16 or float32.
        architecture: As NVRTC names it.
    """

    name: str
    plan: Plan
    heads: int
    dtype: torch.dtype
    architecture: str

    @property
    def label(self) -> str:
        """The kernel in one word."""
        dtype = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        return f"{self.name}-n{self.plan.columns}-{dtype}-{self.architecture}"

    @property
    def tile_configs(self) -> tuple[TileConfig, TileConfig]:
        """How the engine runs its forward and its backward pass."""
        device = ARCHITECTURES[self.architecture]
        chosen = choose(self.plan, kernels.types(self.plan, self.dtype), self.heads, device)
        return forward_of(chosen, self.heads, device), chosen

    def row(self) -> list[str]:
        """Compile both kernels and return their row of the page."""
        pair, fast = self.tile_configs, self.dtype == torch.bfloat16
        used = [
            kernels.unit_of(pair[backward], backward, self.architecture, fast=fast).resources()[
                name
            ]
            for backward, name in ((False, "matrix_forward"), (True, "matrix_backward"))
        ]
        *sizes, shared = self.sizes()
        return [
            *sizes,
            " / ".join(str(one.registers) for one in used),
            " / ".join(str(one.spilled) for one in used),
            shared,
        ]

    def sizes(self) -> list[str]:
        """Return the row but for what the compiler says: registers and spilled bytes."""
        pair = self.tile_configs
        shared = (pair[0].forward_bytes, pair[1].backward_bytes)
        threads = (pair[0].forward_threads, pair[1].backward_threads)
        return [
            self.name,
            str(self.plan.columns),
            "bf16" if self.dtype == torch.bfloat16 else "fp32",
            self.architecture,
            " / ".join(f"{one.lanes} x {one.tall} x {one.columns}" for one in pair),
            " / ".join(f"{n} x {one.row_tiles}" for n, one in zip(threads, pair, strict=True)),
            str(pair[1].steps),
            " / ".join(f"{n_bytes / _KIB:.1f}" for n_bytes in shared),
        ]


def models() -> Iterator[Kernel]:
    """Yield E70, E75 and E88 in every size: bf16 on every architecture, fp32 on sm_90."""
    for name, (cell, options, heads) in MODELS.items():
        for n in SIZES:
            plan = stacked_plan(cell, 1, n, n, **options)
            for architecture in ARCHITECTURES:
                yield Kernel(name, plan, heads, torch.bfloat16, architecture)
            yield Kernel(name, plan, heads, torch.float32, "sm_90")


def cells() -> Iterator[Kernel]:
    """Yield every cell at n = 32 on sm_90, with the smallest plan that it runs with."""
    for name, needs in CELLS.items():
        if needs.type is not None:
            plan = stacked_plan(name, 1, 32, 32)
            yield Kernel(name, plan, 256, torch.bfloat16, "sm_90")


@dataclass(frozen=True)
class ChannelKernel:
    """The kernels of a step of the channel engine, bf16 on sm_90.

    Args:
        step: Its name.
    """

    step: str

    @property
    def label(self) -> str:
        """The kernel in one word."""
        return f"channel-{self.step}"

    def row(self) -> list[str]:
        """Compile the kernels and return their row of the page."""
        inputs = channel_cells.CELLS[self.step].inputs
        unit = "key" if "key" in inputs else None
        places = row_blocks(dict.fromkeys(inputs, 64))
        plan = ChannelPlan(self.step, tuple(places.items()), unit=unit, self_gate=True)
        tile_config = channel_cuda.tile_config_for(
            plan, torch.bfloat16, torch.float32, Tuning(), 16, NORM_CHANNELS
        )
        text = channel_cuda.unit_text(tile_config)
        used = Unit(text, self.step, "sm_90", True).resources()
        both = [used[f"channel_{name}"] for name in ("forward", "backward")]
        return [
            self.step,
            " / ".join(str(one.registers) for one in both),
            " / ".join(str(one.spilled) for one in both),
        ]


def channels() -> Iterator[ChannelKernel]:
    """Yield every step of the channel engine."""
    for step in channel_cells.CELLS:
        yield ChannelKernel(step)


# Of the dense engine: form, step and channels, 0 for any. Clusters and groups as an H200 runs 32
# rows.
DENSE = (
    *(("stepwise", step, 0) for step in dense_cells.CELLS),
    *(("cluster", "tanh", 1280), ("cluster", "gru", 768), ("cluster", "gru_reset_after", 768)),
    *(("cluster", "lstm", 768), ("cluster", "slstm", 1152)),
    ("cluster", "normalized_scalar", 1280),
    *(("groups", "tanh", 2048), ("groups", "lstm", 1024)),
)
HEADS = {"slstm": 4}  # steps whose matrix is block-diagonal, in the clusters of the page
# Of the tape engine: form, write and channels, with 8 slots.
TAPE = (("stepwise", "full", 768), ("cluster", "full", 768))
SLOTS = 8
# The kernels of a form, in the order in which a row names them.
PASSES = ("forward", "backward", "gates", "candidate", "first", "replay")


@dataclass(frozen=True)
class SequenceKernel:
    """The kernels of a form of the dense or the tape engine, bf16 on sm_90.

    Args:
        engine: ``dense`` or ``tape``.
        form: ``stepwise``, ``cluster`` or ``groups``.
        step: What is computed.
        channels: Channels of the state; 0 is any number.
    """

    engine: str
    form: str
    step: str
    channels: int

    @property
    def label(self) -> str:
        """The kernel in one word."""
        return f"{self.engine}-{self.form}-{self.step}"

    def row(self) -> list[str]:
        """Compile the kernels and return their row of the page."""
        used: dict[str, Resources] = {}
        for text in self._texts():
            used |= Unit(text, self.step, "sm_90", True).resources()
        found = {name.rpartition("_")[2]: one for name, one in used.items()}
        inner = [found[name] for name in PASSES if name in found]
        assert len(inner) == len(used), used
        shared = [f"{config.shared_bytes / _KIB:.1f}" for config in self._configs()]
        return [
            self.step,
            self.form,
            str(self.channels or "any"),
            " / ".join(str(one.registers) for one in inner),
            " / ".join(str(one.spilled) for one in inner),
            " / ".join(shared) or "-",
        ]

    def _texts(self) -> list[str]:
        io, state = torch.bfloat16, torch.float32
        if self.form == "stepwise" and self.engine == "dense":
            return [dense_step.unit_text(dense_step.StepConfig(self.step, io, state, 2))]
        if self.form == "stepwise":
            return [tape_step.unit_text(tape_step.StepConfig(self.step, io, state, 2, 512))]
        unit_text: Any = {"dense": dense_cluster, "tape": tape_cluster}[self.engine].unit_text
        if self.form == "groups":
            unit_text = dense_groups.unit_text
        return [unit_text(config) for config in self._configs()]

    def _configs(self) -> list[Any]:
        """Return how both passes run, where one launch runs a whole sequence."""
        both, batch = (False, True), 32
        if self.form == "stepwise":
            return []
        if self.engine == "tape":
            cell, size = tape_cells.CELLS[self.step], (self.channels, SLOTS, batch)
            return [tape_config.choose(cell, *size, back=back) for back in both]
        shape = dense_forms.Shape(self.step, "bf16", batch, self.channels, 0, (9, 0), 132)
        shape = replace(shape, heads=HEADS.get(self.step, 1))
        if self.form == "groups":
            return [dense_forms.group_config(shape, back=back) for back in both]
        return [dense_forms.cluster_config(shape, back=back) for back in both]


def sequences(engine: str) -> Iterator[SequenceKernel]:
    """Yield the kernels of the dense or the tape engine."""
    for form, step, width in {"dense": DENSE, "tape": TAPE}[engine]:
        yield SequenceKernel(engine, form, step, width)


HEAD = [
    "kernel",
    "n",
    "dtype",
    "architecture",
    "lanes x rows x columns",
    "threads x row tiles",
    "K",
    "registers",
    "spilled bytes",
    "shared KiB",
]


def compiler_problem() -> str | None:
    """Return that the pinned compiler is missing, with the command that installs it, or None."""
    if _libraries():
        return None
    install = f"pip install --no-deps --upgrade --target {COMPILER} --requirement {PINNED}"
    return f"the compiler of {PINNED.name} is not in {COMPILER}; {install}"


def _libraries() -> list[Path]:
    """Return NVRTC's libraries, in the order in which they are loaded."""
    folders = sorted(COMPILER.glob("nvidia/*/lib"))
    patterns = ("libnvrtc-builtins.so.*", "libnvrtc.so.*")
    found = [sorted(folder.glob(pattern)) for folder in folders for pattern in patterns]
    return [paths[0] for paths in found if paths]


def take_pinned_compiler() -> None:
    """Load the pinned NVRTC into this process, where the bindings then find it.

    Raises:
        SystemExit: it is not installed, or another version is.
    """
    if problem := compiler_problem():
        sys.exit(f"make_registers: {problem}")
    for library in _libraries():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    pin = re.search(r"nvrtc==(\d+\.\d+)\.", PINNED.read_text())
    assert pin, PINNED
    if nvrtc_version() != pin[1]:
        sys.exit(f"make_registers: {COMPILER} holds NVRTC {nvrtc_version()}, not {pin[1]}")


def answer() -> None:
    """Compile what standard input names, a label a line, and print each row as JSON."""
    every: list[Kernel | ChannelKernel | SequenceKernel] = [*models(), *cells(), *channels()]
    every += [*sequences("dense"), *sequences("tape")]
    known = {kernel.label: kernel for kernel in every}
    for line in sys.stdin:
        print(json.dumps(known[line.strip()].row()), flush=True)


def page() -> str:
    """Compile everything and return the page."""
    with ThreadPoolExecutor(2) as pool:
        rows = [list(pool.map(Kernel.row, kernels)) for kernels in (models(), cells())]
        steps = list(pool.map(ChannelKernel.row, channels()))
        dense, tape = (
            list(pool.map(SequenceKernel.row, sequences(engine))) for engine in ("dense", "tape")
        )
    head = ["step", "form", "channels", "registers", "spilled bytes", "shared KiB"]
    return f"""\
# Registers and shared memory of the CUDA kernels

`tools/docs/make_registers.py` writes this page with NVRTC {nvrtc_version()}; of two values with a
slash, the first is of the forward kernel and the second of the backward kernel.

- **lanes x rows x columns**: how many lanes (threads of a warp) share rows of the state, how many
  rows they share, and how many columns of a row each lane holds.
- **threads x row tiles**: the threads of a block, and the blocks of a head. Each block holds one
  row tile, which is a part of the rows of a head's state.
- **K**: the steps between two checkpoints of the state.

The sizes are those that the engine chooses for a batch of 32 sequences; E70 has one head, E75 has 8
and E88 has 32. Inputs whose rows are not aligned take a little more shared memory. bf16 kernels use
the GPU's own tanh, fp32 kernels that of the CUDA library. Other versions of NVRTC give other
numbers. torch's CUDA builds bring their own version (torch 2.13: NVRTC 13.0).

## Models

{table(HEAD, rows[0])}

## Every cell

{table(HEAD, rows[1])}

## Channel engine

All kernels are for bf16 and sm_90. A block has {TUNED.warps} warps, with one thread per channel.
Shared memory holds {TUNED.stages} tiles, each with {TUNED.steps} steps of every input sequence.

{table(["step", "registers", "spilled bytes"], steps)}

## Dense engine

All kernels are for bf16 and sm_90. Clusters and groups are those that the engine chooses for 32
rows on an H200. A step of two products has two more kernels in the stepwise form: gates and
candidate.

{table(head, dense)}

## Tape engine

All kernels are for bf16, sm_90 and {SLOTS} slots. The stepwise form has two more kernels: first
reads the first tape, and replay computes tapes again.

{table(["write", *head[1:]], tape)}
"""


if __name__ == "__main__":
    take_pinned_compiler()
    if sys.argv[1:] == ["--rows"]:
        answer()
    else:
        PAGE.write_text(page())
