"""One call of the add-and-norm kernel on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, d model width, g blocks of a grid.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.add_norm.reference import EPS
from elman.ops.common.cuda_kernels import CudaKernels, Launching, multiprocessors
from elman.ops.common.native import CUDA_TYPES, words_of
from elman.ops.common.unit_text import unit_text_of

"""Dtypes that the kernel reads and writes beside the fp32 stream, with their C++ names."""
_VECTOR = 4  # numbers: 16 bytes of fp32
_NUMBERS = 8  # of a row that a thread holds
_MOST_WARPS = 16  # of a block; a longer row is read twice
_SLICES = 16  # as in csrc/cuda/add_norm/add_norm.cuh
_MOST_BLOCKS = 2**31 - 1
_POINTERS = ("stream", "branch", "gain", "sum", "normed", "rstd", "dsum", "dnormed", "dstream")
_MORE_POINTERS = ("dbranch", "partial", "dgain")


class AddNormArgs(ctypes.Structure):
    """One call, as csrc/cuda/add_norm/add_norm.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_MORE_POINTERS)),
        ("rows", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("eps", ctypes.c_double),
    )


_WORDS = words_of(AddNormArgs)
_NOTHING = array("q", bytes(AddNormArgs(eps=EPS)))  # points nowhere


@dataclass(frozen=True)
class TileConfig:
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
        """Blocks that a multiprocessor holds at a time, as in csrc/cuda/add_norm/add_norm.cuh."""
        return min(16, 32 // self.warps)


def forward(
    stream_btd: Tensor,
    branch_btd: Tensor | None,
    gain_d: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Compute sum, normed and rstd; all of them as the custom operator has them."""
    sum_btd, normed_btd, rstd_bt = outputs
    rows, branch = rstd_bt.numel(), normed_btd.dtype
    if not rows:
        return
    tensors = {
        "stream": stream_btd.contiguous(),
        "gain": gain_d.contiguous(),
        "normed": normed_btd,
        "rstd": rstd_bt,
    }
    if branch_btd is not None:
        branch = branch_btd.dtype
        tensors |= {"branch": branch_btd.contiguous(), "sum": sum_btd}
    words, aligned = _places(tensors)
    tile_config = tile_config_of(gain_d.shape[0], aligned, branch, normed_btd.dtype)
    # A block for every row: the multiprocessors take the next one as they finish.
    _run(tile_config, words, rows, min(rows, _MOST_BLOCKS), stream_btd.device, backward=False)


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
    tensors = {
        "dnormed": dnormed_btd.contiguous(),
        "sum": sum_btd.contiguous(),
        "rstd": rstd_bt,
        "gain": gain_d.contiguous(),
        "dstream": dstream_btd,
        "dgain": dgain_d,
    }
    if dsum_btd is not None:
        tensors["dsum"] = dsum_btd.contiguous()
    if dbranch_btd.numel():
        tensors["dbranch"] = dbranch_btd
    words, aligned = _places(tensors)
    tile_config = tile_config_of(gain_d.shape[0], aligned, dbranch_btd.dtype, dnormed_btd.dtype)
    # As many blocks as run at a time: the fewer they are, the fewer sums of dgain there are.
    blocks = min(rows, MULTIPROCESSORS(device) * tile_config.blocks)
    partial_gd = gain_d.new_empty(blocks, tile_config.width)
    words[_WORDS["partial"]] = partial_gd.data_ptr()
    _run(tile_config, words, rows, blocks, device, backward=True)


def _places(tensors: dict[str, Tensor]) -> tuple[array[int], bool]:
    """Return the words of arguments that point to tensors, and whether vectors can be moved."""
    words, bits = _NOTHING[:], 0
    for name, tensor in tensors.items():
        place = words[_WORDS[name]] = tensor.data_ptr()
        bits |= place
    # Nearly always all of them lie on vectors of fp32; otherwise each is asked for its own.
    return words, bits % (4 * _VECTOR) == 0 or all(
        tensor.data_ptr() % (_VECTOR * tensor.element_size()) == 0
        for name, tensor in tensors.items()
        if name != "rstd"
    )


@cache
def tile_config_of(width: int, aligned: bool, branch: torch.dtype, out: torch.dtype) -> TileConfig:
    """Return the tile config of rows of a width, whose tensors lie on vectors or do not."""
    return TileConfig(width, _VECTOR if aligned and width % _VECTOR == 0 else 1, branch, out)


def _run(
    tile_config: TileConfig,
    words: array[int],
    rows: int,
    blocks: int,
    device: torch.device,
    *,
    backward: bool,
) -> None:
    """Launch a pass."""
    words[_WORDS["rows"]], words[_WORDS["blocks"]] = rows, blocks
    wanted = _launches(tile_config, blocks, backward=backward)
    LAUNCH(unit_text(tile_config), wanted, AddNormArgs.from_buffer(words), device)


@cache
def _launches(tile_config: TileConfig, blocks: int, *, backward: bool) -> tuple[Launch, ...]:
    """Return the kernels of a pass; a block has two arrays of a number per warp."""
    threads, shared = 32 * tile_config.warps, math.ceil(2 * tile_config.warps / 4) * 16
    if not backward:
        return (Launch("add_norm_forward", blocks, threads, shared),)
    columns = math.ceil(tile_config.width / 32)
    return (
        Launch("add_norm_backward", blocks, threads, shared),
        Launch("add_norm_finish", columns, 32 * _SLICES, 128 * _SLICES),
    )


@cache
def unit_text(tile_config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, all passes in one.

    Args:
        tile_config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = tile_config
    numbers = f"{g.width}, {g.vector}, {_NUMBERS // g.vector}, {g.warps}"
    types = f"{CUDA_TYPES[g.branch]}, {CUDA_TYPES[g.out]}"
    return unit_text_of(
        "add_norm",
        f"elman::AddNormTileConfig<{types}, {numbers}>",
        AddNormArgs,
        {"BLOCKS": g.blocks, "SLICES": _SLICES},
        {
            "add_norm_forward": "G::THREADS, G::BLOCKS",
            "add_norm_backward": "G::THREADS, G::BLOCKS",
            "add_norm_finish": "32 * G::SLICES, 1",
        },
        device,
    )


# Nothing waits for the one root and quotient of a row: those of the CUDA library.
COMPILED: CudaKernels[str] = CudaKernels(str, "add and norm")
"""By the text of their translation unit."""
LAUNCH: Launching[str] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
MULTIPROCESSORS: Callable[[torch.device], int] = multiprocessors
"""Tells how many a device has; tests answer for the emulator."""
