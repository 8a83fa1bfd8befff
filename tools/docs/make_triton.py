"""Writes docs/triton-registers.md: what the Triton kernels take on every kind of GPU.

Run it after a change to the Triton kernels: ``python tools/docs/make_triton.py``. It needs no GPU:
Triton brings the assemblers of both vendors. A test requests some rows (``--rows``), of which each
is compiled anew, and compares them. The version of Triton is the one that constraints-dev.txt pins.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.kernels.triton_version import triton_version
from elman.ops.matrix_state.abi import Call, kept_dtype
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.row_mix import launch as row_mix
from elman.ops.matrix_state.row_mix.launch import MixCall
from elman.ops.matrix_state.row_mix.spec import STEPS
from elman.ops.matrix_state.stacked import DELTA, E70, stacked_plan
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.launch import Launch
from elman.ops.matrix_state.triton.tiles import Tile, reads_are_kept, tile_of
from elman.report.markdown import table

PAGE = Path(__file__).parents[2] / "docs" / "triton-registers.md"
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "gfx942": ("hip", "gfx942", 64),
}
SIZES = (16, 32, 64, 128)
_LINEAR = {"nonlinearity": "linear", "self_gate": True}
_Z = {"z_act": "sigmoid", "z_bias": True, "self_gate": True}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "E70": ("decayed", E70),
    "E71": ("read_gated", _LINEAR),
    "E72": ("value_gated", _LINEAR),
    "E73": ("column_gated", _Z),
    "E73cp": ("delta", _Z | {"z_act": "none", "key": "zk", "k_unit": True}),
    "E88": ("delta", DELTA),
}
HEADS_OF_E88 = 8  # its tiles are those of many heads; the other models have one
M2RNN = "M2RNN"
MIX_SIZES = ((16, 16), (32, 32), (16, 64))  # value rows and key columns; the last is the paper's
MIX_HEADS = 40  # of conf/model/m2rnn.yaml
HEAD = [
    "kernel",
    "n",
    "dtype",
    "GPU",
    "rows x warps x tiles",
    "registers",
    "spilled bytes",
    "shared bytes",
]
_BATCH, _STEPS = 2, 64


class Target:
    """Stands for the driver of a GPU that is not there: Triton asks it what to compile for."""

    def __init__(self, name: str) -> None:
        from triton.backends.compiler import GPUTarget

        self._target, self._number = GPUTarget(*TARGETS[name]), list(TARGETS).index(name)

    def get_current_target(self) -> Any:
        """Return the GPU to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the number of the GPU, by which Triton remembers what it compiled."""
        return self._number

    def get_current_stream(self, device: int) -> int:
        """Return the stream of the GPU."""
        return 0


@dataclass(frozen=True)
class Kernel:
    """A pair of kernels, forward and backward, on one kind of GPU.

    Args:
        name: The model.
        rows: Rows of the state.
        columns: Its columns.
        dtype: Of the sources.
        target: A key of :data:`TARGETS`.
        everything: Of M2RNN, whether there are resets and a gradient of the last state.
    """

    name: str
    rows: int
    columns: int
    dtype: torch.dtype
    target: str
    everything: bool = False

    @property
    def label(self) -> str:
        """The kernel in one word."""
        words = [self.name, f"n{self._size}", self._dtype, self.target]
        return "-".join([*words, "everything"] if self.everything else words)

    @property
    def _size(self) -> str:
        return str(self.rows) if self.rows == self.columns else f"{self.rows}x{self.columns}"

    @property
    def _dtype(self) -> str:
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"

    def row(self) -> list[str]:
        """Compile both kernels and return their row of the page."""
        passes = [self._pass(backward=backward) for backward in (False, True)]
        used = [self._compiled(one) for one, _ in passes]
        sizes = " / ".join(f"{t.rows} x {t.warps} x {t.row_tiles}" for _, t in passes)
        columns = [" / ".join(map(str, pair)) for pair in zip(*used, strict=True)]
        return [self.name, self._size, self._dtype, self.target, sizes, *columns]

    def _pass(self, *, backward: bool) -> tuple[Launch, Tile]:
        """Return the launch of a pass, and what a program of it holds."""
        from triton.runtime import driver

        driver.set_active(Target(self.target))
        fast = self.dtype == torch.bfloat16 and not self.target.startswith("gfx")
        if self.name == M2RNN:
            return self._row_mix_pass(backward=backward, fast=fast)
        cell, options = CELLS[self.name]
        heads = HEADS_OF_E88 if self.name == "E88" else 1
        plan = stacked_plan(cell, heads, self.rows, self.columns, **options)
        call = call_of(plan, self.dtype, backward)
        found = launch.launches(call, backward=backward, fast=fast)
        (one,) = (one for one in found if one.kernel.__name__.startswith("matrix_"))
        for small in found:
            if small is not one:
                self._compiled(small)  # which is to compile; the page does not list it
        return one, tile_of(plan, backward=backward)

    def _row_mix_pass(self, *, backward: bool, fast: bool) -> tuple[Launch, Tile]:
        """Return the launch of a pass of M2RNN on tensors without memory, and its tile."""
        rows, columns, dtype = self.rows, self.columns, self.dtype
        lead, state = (_BATCH, _STEPS, MIX_HEADS), (_BATCH, MIX_HEADS, rows, columns)
        widths = {"q": columns, "k": columns, "v": rows, "gate": rows}
        sequences = {name: room(*lead, width, of=dtype) for name, width in widths.items()}
        sequences["decay"] = room(*lead)
        kept = torch.float16 if dtype == torch.bfloat16 else torch.float32
        checkpoints = room((_STEPS - 1) // STEPS, *state, of=kept)
        mix, residual = room(MIX_HEADS, rows, rows), room(MIX_HEADS, rows)
        first, out = room(*state), room(*lead, rows, of=dtype)
        resets_bt = room(_BATCH, _STEPS, of=torch.bool) if self.everything else None
        call = MixCall(sequences, mix, residual, first, checkpoints, resets_bt)
        if not backward:
            one = row_mix.forward_launch(call, out, first, fast=fast)
        else:
            shares = (room(_BATCH, *mix.shape), room(_BATCH, *residual.shape))
            given = (out, first if self.everything else None, sequences, first, shares)
            one = row_mix.backward_launch(call, *given, fast=fast)
        tile = one.arguments[-1]
        assert isinstance(tile, Tile)
        return one, tile

    def _compiled(self, one: Launch) -> tuple[int, int, int]:
        """Return the registers, spilled bytes and shared bytes of a pass."""
        found = one.kernel.warmup(*one.arguments, grid=one.programs, **one.options)
        usage = _of_amd if self.target.startswith("gfx") else _of_nvidia
        return (*usage(found.asm), int(found.metadata.shared))


def room(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor without memory."""
    return torch.empty(*shape, dtype=of, device="meta")


def call_of(plan: Plan, dtype: torch.dtype, backward: bool) -> Call:
    """Return a call of a pass on tensors without memory."""
    sources = [room(_BATCH, _STEPS, channels, of=dtype) for channels in plan.channels]
    parameters = [room(*shape) for shape in plan.parameter_shapes.values()]
    segment = launch.segment(plan, _BATCH, dtype)
    call = Call(plan, sources, parameters, segment)
    state = (_BATCH, plan.heads, plan.rows, plan.columns)
    output = room(_BATCH, _STEPS, plan.heads, plan.rows, of=dtype)
    checkpoints = room((_STEPS - 1) // segment, *state, of=kept_dtype(plan, dtype))
    call.point(checkpoints=checkpoints)
    if reads_are_kept(plan):
        call.keep_reads(room(*output.shape))
    if backward:
        call.point_gradients([room(*x.shape, of=dtype) for x in sources], parameters)
        call.point_output_gradient(output)
    else:
        call.point(out=output, last=room(*state))
    return call


def _of_nvidia(assembled: Any) -> tuple[int, int]:
    """Return the registers and the spilled bytes of a thread."""
    from triton.backends import nvidia

    program = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(assembled["cubin"])
        file.flush()
        command = [str(program), "-res-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ((registers, stack, local),) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", report)
    return int(registers), int(stack) + int(local)


def _of_amd(assembled: Any) -> tuple[int, int]:
    text = assembled["amdgcn"]
    (registers,), (scratch,) = (
        re.findall(rf"\.{name}:\s+(\d+)", text)
        for name in ("vgpr_count", "private_segment_fixed_size")
    )
    return int(registers), int(scratch)


def kernels() -> Iterator[Kernel]:
    """Yield every cell in every size: bf16 on every GPU, fp32 on sm_90 in one or two."""
    for name in CELLS:
        for n in SIZES:
            for target in TARGETS:
                yield Kernel(name, n, n, torch.bfloat16, target)
            if n == 64:
                yield Kernel(name, n, n, torch.float32, "sm_90")
    for size in MIX_SIZES:
        for target in TARGETS:
            yield Kernel(M2RNN, *size, torch.bfloat16, target)
        yield Kernel(M2RNN, *size, torch.float32, "sm_90")


def unlisted() -> Iterator[Kernel]:
    """Yield kernels that compile, too, and are not on the page: M2RNN with everything."""
    for dtype in (torch.bfloat16, torch.float32):
        yield Kernel(M2RNN, 16, 16, dtype, "sm_90", everything=True)
    yield Kernel(M2RNN, 20, 33, torch.bfloat16, "gfx942", everything=True)


def answer() -> None:
    """Compile what standard input names, a label a line, and print each row as JSON."""
    known = {kernel.label: kernel for kernel in (*kernels(), *unlisted())}
    for line in sys.stdin:
        print(json.dumps(known[line.strip()].row()), flush=True)


def page() -> str:
    """Compile everything and return the page."""
    rows = [kernel.row() for kernel in kernels()]
    return f"""\
# Registers and shared memory of the Triton kernels

`tools/docs/make_triton.py` writes this page with Triton {triton_version()}, without a GPU; of two
values with a slash, the first is of the forward kernel and the second of the backward kernel.
[triton.md](triton.md) explains the kernels.

- **rows x warps x tiles**: the rows of the state that a program holds, the warps that it has, and
  the programs of a head.
- **registers**: of a thread. On gfx942 these are vector registers, of 512.
- **spilled bytes**: of a thread, in local memory: hardly any, or a step would be slow. E88 with
  n = 64 has more going back. Few of its instructions load them, and in bf16 it was timed so.

The small kernels before and behind the loop over time are not listed. E88 has 8 heads here, the
other models have one. E73 is its column variant.

M2RNN has a state of 16 value rows and 16 key columns in its suites; a
program holds all of it. Other versions of Triton give other numbers.

{table(HEAD, rows)}
"""


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        sys.exit("make_triton: the interpreter compiles nothing; unset TRITON_INTERPRET")
    if sys.argv[1:] == ["--rows"]:
        answer()
    else:
        PAGE.write_text(page())
