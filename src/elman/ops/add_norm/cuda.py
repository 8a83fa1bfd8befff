"""One call of the add-and-norm kernel on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, d model width, g blocks of a grid.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels import nvrtc
from elman.kernels.nvrtc import Loaded, Unit
from elman.ops.add_norm.reference import EPS
from elman.ops.native import pointer

IO = {torch.bfloat16: "elman::bf16", torch.float16: "elman::f16", torch.float32: "float"}
"""Dtypes that the kernel reads and writes beside the fp32 stream, with their C++ names."""
_VECTOR = 4  # numbers: 16 bytes of fp32
_NUMBERS = 8  # of a row that a thread holds
_MOST_WARPS = 16  # of a block; a longer row is read twice
_SLICES = 16  # as in csrc/cuda/add_norm.cuh
_MOST_BLOCKS = 2**31 - 1
_POINTERS = ("stream", "branch", "gain", "sum", "normed", "rstd", "dsum", "dnormed", "dstream")
_MORE_POINTERS = ("dbranch", "partial", "dgain")


class AddNormArgs(ctypes.Structure):
    """One call, as csrc/cuda/add_norm.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_MORE_POINTERS)),
        ("rows", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("eps", ctypes.c_double),
    )


@dataclass(frozen=True)
class Geometry:
    """How rows of one width are computed.

    Args:
        width: D.
        vector: Numbers that one access moves: 4, or 1 where D or an address does not permit it.
        branch: Dtype of the branch.
        out: Dtype of the normed sum.
    """

    width: int
    vector: int
    branch: torch.dtype
    out: torch.dtype

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return min(_MOST_WARPS, math.ceil(self.width / (32 * _NUMBERS)))

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds at a time, as in csrc/cuda/add_norm.cuh."""
        return min(16, 32 // self.warps)


@dataclass(frozen=True)
class Launch:
    """A kernel and its grid.

    Args:
        kernel: Its name.
        blocks: Blocks of the grid.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
    """

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int


def forward(
    stream_btd: Tensor,
    branch_btd: Tensor | None,
    gain_d: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Compute sum, normed and rstd; all of them as the custom operator has them."""
    sum_btd, normed_btd, rstd_bt = outputs
    tensors: dict[str, Tensor | None] = {
        "stream": stream_btd.contiguous(),
        "branch": None if branch_btd is None else branch_btd.contiguous(),
        "gain": gain_d.contiguous(),
        "sum": None if branch_btd is None else sum_btd,
        "normed": normed_btd,
        "rstd": rstd_bt,
    }
    rows = rstd_bt.numel()
    if not rows:
        return
    out = normed_btd.dtype
    geometry = geometry_of(tensors, out if branch_btd is None else branch_btd.dtype, out)
    # A block for every row: the multiprocessors take the next one as they finish.
    blocks = min(rows, _MOST_BLOCKS)
    launches = _launches(geometry, blocks, backward=False)
    LAUNCH(unit_text(geometry), launches, _arguments(tensors, rows, blocks), stream_btd.device)


def backward(
    dsum_btd: Tensor | None,
    dnormed_btd: Tensor,
    sum_btd: Tensor,
    rstd_bt: Tensor,
    gain_d: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Compute the gradients of stream, branch and gain, as the custom operator has them."""
    dstream_btd, dbranch_btd, dgain_d = gradients
    rows, device = rstd_bt.numel(), sum_btd.device
    if not rows:
        dgain_d.zero_()
        return
    tensors: dict[str, Tensor | None] = {
        "dsum": None if dsum_btd is None else dsum_btd.contiguous(),
        "dnormed": dnormed_btd.contiguous(),
        "sum": sum_btd.contiguous(),
        "rstd": rstd_bt,
        "gain": gain_d.contiguous(),
        "dstream": dstream_btd,
        "dbranch": dbranch_btd if dbranch_btd.numel() else None,
        "dgain": dgain_d,
    }
    geometry = geometry_of(tensors, dbranch_btd.dtype, dnormed_btd.dtype)
    # As many blocks as run at a time: the fewer they are, the fewer sums of dgain there are.
    blocks = min(rows, MULTIPROCESSORS(device) * geometry.blocks)
    tensors["partial"] = gain_d.new_empty(blocks, geometry.width)
    launches = _launches(geometry, blocks, backward=True)
    LAUNCH(unit_text(geometry), launches, _arguments(tensors, rows, blocks), device)


def geometry_of(
    tensors: dict[str, Tensor | None], branch: torch.dtype, out: torch.dtype
) -> Geometry:
    """Return the geometry that the alignment of a call's tensors permits."""
    there = [tensor for name, tensor in tensors.items() if tensor is not None and name != "rstd"]
    width = there[0].shape[-1]
    aligned = all(t.data_ptr() % (_VECTOR * t.element_size()) == 0 for t in there)
    return Geometry(width, _VECTOR if aligned and width % _VECTOR == 0 else 1, branch, out)


def _arguments(tensors: dict[str, Tensor | None], rows: int, blocks: int) -> AddNormArgs:
    places = {name: pointer(tensor) for name, tensor in tensors.items()}
    return AddNormArgs(**places, rows=rows, blocks=blocks, eps=EPS)


@cache
def _launches(geometry: Geometry, blocks: int, *, backward: bool) -> tuple[Launch, ...]:
    """Return the kernels of a pass; a block has two arrays of a number per warp."""
    threads, shared = 32 * geometry.warps, math.ceil(2 * geometry.warps / 4) * 16
    if not backward:
        return (Launch("add_norm_forward", blocks, threads, shared),)
    columns = math.ceil(geometry.width / 32)
    return (
        Launch("add_norm_backward", blocks, threads, shared),
        Launch("add_norm_finish", columns, 32 * _SLICES, 128 * _SLICES),
    )


@cache
def unit_text(geometry: Geometry, device: str = "cuda/device.cuh") -> str:
    """Return the text of a geometry's translation unit, all passes in one.

    Args:
        geometry: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = geometry
    numbers = f"{g.width}, {g.vector}, {_NUMBERS // g.vector}, {g.warps}"
    size = ctypes.sizeof(AddNormArgs)
    kernels = {
        "forward": "G::THREADS, G::BLOCKS",
        "backward": "G::THREADS, G::BLOCKS",
        "finish": "32 * G::SLICES, 1",
    }
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/add_norm.cuh"',
            f"using G = elman::AddNormGeometry<{IO[g.branch]}, {IO[g.out]}, {numbers}>;",
            f'static_assert(sizeof(elman::AddNormArgs) == {size}, "cuda.py");',
            f'static_assert(G::BLOCKS == {g.blocks} && G::SLICES == {_SLICES}, "cuda.py");',
            *(
                f"ELMAN_KERNEL(add_norm_{name}, {bounds}, elman::AddNormArgs, "
                f"elman::add_norm_{name}<G>(a))"
                for name, bounds in kernels.items()
            ),
            "",
        ]
    )


def _launch(text: str, wanted: Sequence[Launch], args: AddNormArgs, device: torch.device) -> None:
    """Launch kernels on the current stream of the tensors' device."""
    with torch.cuda.device(device):
        kernels = _loaded(text, device.index)
        stream = torch.cuda.current_stream(device).cuda_stream
        for one in wanted:
            kernels.launch(
                one.kernel,
                blocks=one.blocks,
                threads=one.threads,
                shared_bytes=one.shared_bytes,
                arguments=args,
                device=device.index,
                stream=stream,
            )


@cache
def _loaded(text: str, index: int) -> Loaded:
    """Return the kernels of a translation unit, for the GPU of an index."""
    major, minor = torch.cuda.get_device_capability(index)
    # Nothing waits for the one root and quotient of a row: those of the CUDA library.
    return nvrtc.load(Unit(text, "add and norm", f"sm_{major}{minor}", fast=False))


def _multiprocessors(device: torch.device) -> int:
    return nvrtc.device_limits(device.index).multiprocessors


LAUNCH: Callable[[str, Sequence[Launch], AddNormArgs, torch.device], None] = _launch
"""Runs kernels; tests put the emulator here."""
MULTIPROCESSORS: Callable[[torch.device], int] = _multiprocessors
"""Tells how many a device has; tests answer for the emulator."""
