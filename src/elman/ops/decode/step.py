"""Whole steps of a model of matrix-state layers in one kernel, many bytes in one launch.

csrc/cuda/decode/step.cuh says how. This file knows sizes, memory and launches, and no models.

Shape legend: l layers, b texts, k steps, d model width, v values, h heads, r rows and n columns of
a head's state, c channels, p taps - 1.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import torch
from torch import Tensor

from elman.kernels import driver
from elman.kernels.driver import Limits
from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions, same
from elman.ops.common.cuda_kernels import CudaKernels, Launching, approximate
from elman.ops.decode.draw import room
from elman.ops.decode.shares import Share
from elman.ops.matrix_state.abi import layouts
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import choose, forward_of, natural_align
from elman.ops.matrix_state.cuda.tile_config import LEAST_ALIGN, TileConfig
from elman.ops.matrix_state.plan import PARAMETERS, ROLES, Plan
from elman.ops.matrix_state.source import spec_source

MOST_ROWS = 4
"""Texts at a time; the products of more are PyTorch's, in an order of sums of its own."""
_FASTER_WIDTH, _FASTER_WIDTH_OF_SEVERAL = 2432, 1536  # the widest models that were measured
_MOST_WIDTH = 4096  # rows of a norm stay in registers up to here
SHAPES = ((12, 3), (12, 2), (8, 2), (8, 1))
"""Warps and slots for one text, the best first; tools/gpu/text.py measures others."""
SEVERAL_SHAPES = ((12, 4), (8, 2), (8, 1))
"""The same for several texts."""
BULK_SINCE = 9
"""The first compute capability whose copy engine brings rows, its first number. For several texts
lanes that copy are faster by 2 to 5 %."""
_HEAD_BYTES = 4 * 2 * 32  # two numbers of a head for each lane
_PASS_ROWS = (16, 8, 4)  # rows of a matrix in a pass; fewer for wide ones
_OF_ROWS = ("v", "g0", "g1", "gate")
_WARP, _HALF, _VECTOR = 32, 2, 8
_HEADERS = ("cuda/common/device.cuh", "cuda/common/cluster.cuh", "cuda/common/grid.cuh")


@dataclass(frozen=True)
class Sizes:
    """What a model of equal layers is, but for its weights.

    Args:
        plan: Its recurrence. Sources: the projection, or its convolved channels and the others.
        layers: Number of layers.
        width: D.
        channels: Of the recurrence's sources: rows of the input projection, or of the cell's own
            behind it.
        inner: Rows of the input projection where the cell has a projection of its own, else 0.
        activated: Whether silu stands between the two.
        convolved: First channels of the input projection, which pass a convolution; 0 without one.
        taps: Of the convolution; 0 without one.
        hidden: Channels of the MLP behind each layer; 0 without one.
        values: V.
    """

    plan: Plan
    layers: int
    width: int
    channels: int
    inner: int
    activated: bool
    convolved: int
    taps: int
    hidden: int
    values: int


@dataclass(frozen=True)
class StepConfig:
    """How a model writes so many texts.

    Args:
        sizes: The model.
        rows: Texts.
        tile: How a warp holds the state.
        blocks: Blocks of the grid.
        warps: Of a block, that compute.
        slots: Passes of products whose weights are in shared memory or on their way.
        bulk: Whether the copy engine brings the weights, or each lane its own.
        pass_rows: Most rows of a matrix that a block multiplies in a pass.
    """

    sizes: Sizes
    rows: int
    tile: TileConfig
    blocks: int
    warps: int
    slots: int
    bulk: bool = True
    pass_rows: int = _PASS_ROWS[0]

    @property
    def threads(self) -> int:
        """Threads of a block: of the warps that compute, and of one that brings weights."""
        return _WARP * (self.warps + self.bulk)

    @property
    def mixed(self) -> int:
        """Channels that the output projection reads."""
        return self.sizes.plan.heads * self.sizes.plan.rows

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Outputs and inputs of a layer's products, in order."""
        one = self.sizes
        found = [(one.channels, one.inner or one.width), (one.width, self.mixed)]
        if one.inner:
            found.insert(0, (one.inner, one.width))
        if one.hidden:
            found += [(2 * one.hidden, one.width), (one.width, one.hidden)]
        return found

    @property
    def shares(self) -> list[Share]:
        """How blocks share a layer's products, and the last one."""
        at_once = 2 if self.rows == 1 else 1
        products = [(*sizes, at_once) for sizes in self.matrices]
        products.append((self.sizes.values, self.sizes.width, 1))
        return [
            Share(outputs, inputs, self.rows, together, self.blocks, self.pass_rows)
            for outputs, inputs, together in products
        ]

    @property
    def in_step(self) -> bool:
        """Whether the copy that begins behind a pass is that of the same pass, layers ahead.

        Then a step takes 3 to 10 % longer on an H100 (docs/performance.md, 2026-11-28).
        """
        return self.slots % sum(share.passes for share in self.shares[:-1]) == 0

    @property
    def posts(self) -> int:
        """Words for what blocks post: numbers of two outputs, or of two texts, each.

        Two layers have words of their own, and then others have them again. The first word of
        everything is an even one.
        """
        one, pairs = self.sizes, math.ceil(self.rows / 2)
        reads = self.rows * self.mixed // (2 if self.tile.staged_vector % 2 == 0 else 1)
        outputs = (outputs for outputs, _ in self.matrices)
        of_layer = reads + sum(
            _round(math.ceil(count / 2) if self.rows == 1 else count, 2) * pairs
            for count in outputs
        )
        return 2 * of_layer + _round(one.values, 2) * pairs

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, as DecodeConfig has it."""
        one, rows, plan = self.sizes, self.rows, self.sizes.plan
        inner = max(inputs for _, inputs in self.matrices)
        tile = 4 * sum(_round(self._raw(name), 4) for name, _ in plan.roles)
        slot = max(share.slot_bytes for share in self.shares)
        arrays = [
            8 * (one.layers * len(self.matrices) + 1),
            ctypes.sizeof(DecodeLayer) * one.layers,
            4 * rows,
            _HALF * rows * inner,
            max(share.partial_bytes for share in self.shares),
            8 * 2 * self.slots if self.bulk else 0,
            4 * rows * math.ceil(one.width / 256),
            4 * rows * max(one.inner, 2 * one.hidden),
            4 * rows * one.values,
            slot * self.slots,
        ]
        tiles = self.warps * (_round(tile, 16) + self.tile.step_bytes + _HEAD_BYTES)
        return sum(_round(size, 16) for size in arrays) + room(one.values) + tiles

    def _raw(self, role: str) -> int:
        """Return the raw inputs of a role that a row tile reads."""
        width = self.sizes.plan.width(role)
        return min(self.tile.rows, width) if role in _OF_ROWS else width


def _round(size: int, unit: int) -> int:
    return math.ceil(size / unit) * unit


def why_not(sizes: Sizes, rows: int) -> str:
    """Return in words why no kernel takes whole steps of a model; empty if one may."""
    plan = sizes.plan
    vectors = (sizes.width, sizes.inner, sizes.hidden, plan.heads * plan.rows)
    if rows > MOST_ROWS:
        return f"{rows} texts at a time, and it writes at most {MOST_ROWS}"
    if plan.kernel_problem:
        return plan.kernel_problem
    if sizes.width > _MOST_WIDTH or any(size % _VECTOR for size in vectors):
        return f"widths are no multiples of {_VECTOR}, or above {_MOST_WIDTH}"
    if sizes.convolved % 2:
        return "an odd number of channels is convolved"
    return ""


def why_slower(sizes: Sizes, rows: int) -> str:
    """Return in words why the kernel is not taken unless it is requested; empty if it is.

    What it brings was measured on an H100 and an H200 (docs/performance.md, 2026-11-28).
    """
    widest = _FASTER_WIDTH if rows == 1 else _FASTER_WIDTH_OF_SEVERAL
    if sizes.inner or sizes.hidden or sizes.width > widest:
        texts = f" and {rows} texts" if rows > 1 else ""
        return f"whether it is faster than a graph was not measured for such layers{texts}"
    return ""


def choose_config(sizes: Sizes, rows: int, device: Limits) -> StepConfig | None:
    """Return how a GPU writes so many texts; None if a block has no room for it."""
    plan = sizes.plan
    types = kernels.types(plan, torch.bfloat16)
    found = forward_of(choose(plan, types, rows * plan.heads, device), rows * plan.heads, device)
    tile = replace(found, steps=1, warps=1, producers=False, shares=1, scratch=False)
    # As the kernel of a single step has it, so that sums are in one order.
    tile = replace(tile, align=_align(found, sizes))
    blocks = min(device.multiprocessors, sizes.values, sizes.channels, sizes.width)
    bulk = rows == 1 and device.major >= BULK_SINCE
    shapes = product(_PASS_ROWS, SHAPES if rows == 1 else SEVERAL_SHAPES)
    configs = [StepConfig(sizes, rows, tile, blocks, *one, bulk, most) for most, one in shapes]
    for config in sorted(configs, key=lambda config: bulk and config.in_step):
        if config.shared_bytes <= device.shared_bytes and _WARP * config.warps >= sizes.values:
            return config
    return None


def _align(found: TileConfig, sizes: Sizes) -> int:
    """Return the bytes that the sources of a step taken alone are a multiple of."""
    plan, bits = sizes.plan, natural_align(found)
    wide = {place for name, place in plan.roles if plan.width(name) > 1}
    for place in wide:
        convolved = sizes.convolved and not sizes.inner and place.source == 0
        start = place.start + (sizes.convolved if place.source else 0)
        bits |= start * _HALF | (sizes.convolved if convolved else sizes.channels) * _HALF
    return max(LEAST_ALIGN, bits & -bits)


# --------------------------------------------------------------------------------- the kernel


class DecodeLayer(ctypes.Structure):
    """Tensors of a layer, as csrc/cuda/decode/step.cuh declares them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "in_proj", "out_proj", "cell_proj")),
        *((name, ctypes.c_void_p) for name in ("conv", "conv_bias")),
        *((name, ctypes.c_void_p) for name in ("mlp_norm", "mlp_in", "mlp_out")),
        ("param", ctypes.c_void_p * len(PARAMETERS)),
    )


class DecodeArgs(ctypes.Structure):
    """One launch, as csrc/cuda/decode/step.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layers", "embedding", "head", "final_norm")),
        *((name, ctypes.c_void_p) for name in ("first", "first_past")),
        ("states", ctypes.c_void_p * 2),
        ("pasts", ctypes.c_void_p * 2),
        *((name, ctypes.c_void_p) for name in ("uniform", "last", "drawn", "posts")),
        *((name, ctypes.c_int64) for name in ("steps", "turn", "top_k")),
        *((name, ctypes.c_float) for name in ("temperature", "top_p", "eps")),
    )


@cache
def unit_text(config: StepConfig, headers: tuple[str, ...] = ()) -> str:
    """Return the text of a translation unit.

    Args:
        config: What is computed, and how it runs.
        headers: Headers that say what the kernel asks of the machine; none: a GPU's.
    """
    one, tile = config.sizes, config.tile
    places = dict(one.plan.roles)
    starts = [
        places[role].start + (one.convolved if places[role].source else 0) if role in places else 0
        for role in ROLES
    ]
    constants = {
        "ROWS": config.rows,
        "BLOCKS": config.blocks,
        "WARPS": config.warps,
        "PASS_ROWS": config.pass_rows,
        "BULK": int(config.bulk),
        "SLOTS": config.slots,
        "LAYERS": one.layers,
        "WIDTH": one.width,
        "CHANNELS": one.channels,
        "INNER": one.inner,
        "ACTIVATED": int(one.activated),
        "CONVOLVED": one.convolved,
        "TAPS": one.taps,
        "HIDDEN": one.hidden,
        "VALUES": one.values,
        "HEADS": one.plan.heads,
    }
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers or _HEADERS),
            '#include "cuda/decode/step.cuh"',
            spec_source(one.plan, "Spec", io=tile.types.io, state=tile.types.state),
            "struct Model {",
            *(f"  static constexpr int {name} = {number};" for name, number in constants.items()),
            "  HD static constexpr int start(int role) {",
            f"    constexpr int starts[] = {{{', '.join(map(str, starts))}}};",
            "    return starts[role];",
            "  }",
            "};",
            f"using D = elman::DecodeConfig<{tile.type_text()}, Model>;",
            layouts()
            + layout_assertions("elman::DecodeLayer", DecodeLayer)
            + same("sizeof(elman::DecodeArgs)", ctypes.sizeof(DecodeArgs), "step.py: DecodeArgs")
            + same("D::SHARED_BYTES", config.shared_bytes, "step.py: shared memory of decode"),
            "ELMAN_GRID_KERNEL(decode, D::ALL_THREADS, elman::DecodeArgs, elman::decode<D>(a))",
            "",
        ]
    )


def limits(device: torch.device) -> Limits:
    """Return what a GPU has."""
    return driver.device_limits(device.index)


COMPILED: CudaKernels[StepConfig] = CudaKernels(unit_text, "text", fast=approximate)
"""By their config."""
LAUNCH: Launching[StepConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
LIMITS: Callable[[torch.device], Limits] = limits
"""Tells what a device has; tests answer for the emulator."""


# --------------------------------------------------------------------------------- a launch


@dataclass
class LayerTensors:
    """The weights of a layer: matrices in bf16, everything else in fp32, all contiguous.

    Args:
        norm: Gain of the norm before it [d].
        in_proj: Input projection [c, d].
        out_proj: Output projection [d, h * r].
        parameters: Of the recurrence, by the plan's names.
        cell_proj: The cell's own projection [c, i] behind the input projection, or None.
        conv: Taps [convolved, taps], or None.
        conv_bias: Its bias, or None.
        mlp: Gain of the MLP's norm and its two matrices, or None.
    """

    norm: Tensor
    in_proj: Tensor
    out_proj: Tensor
    parameters: Mapping[str, Tensor]
    cell_proj: Tensor | None = None
    conv: Tensor | None = None
    conv_bias: Tensor | None = None
    mlp: tuple[Tensor, Tensor, Tensor] | None = None

    def pointers(self) -> DecodeLayer:
        """Return where they are."""
        mlp = self.mlp or (None, None, None)
        behind = (self.cell_proj, self.conv, self.conv_bias)
        parts = (self.norm, self.in_proj, self.out_proj, *behind, *mlp)
        given = [self.parameters.get(name) for name in PARAMETERS]
        assert all(one is None or one.is_contiguous() for one in (*parts, *given))
        places = [0 if one is None else one.data_ptr() for one in (*parts, *given)]
        return DecodeLayer(
            *places[: len(parts)], (ctypes.c_void_p * len(given))(*places[len(parts) :])
        )


@dataclass
class ModelTensors:
    """The weights of a model.

    Args:
        embedding: [v, d], fp32.
        head: The same in bf16.
        final_norm: Gain [d], fp32.
        layers: One of each layer.
        eps: Of all norms.
    """

    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    layers: Sequence[LayerTensors]
    eps: float

    def by_dtype(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return what has to be in fp32, and what in bf16."""
        wide, narrow = [self.embedding, self.final_norm], [self.head]
        for one in self.layers:
            wide += [one.norm, *one.parameters.values()]
            wide += [part for part in (one.conv, one.conv_bias) if part is not None]
            narrow += [one.in_proj, one.out_proj]
            narrow += [] if one.cell_proj is None else [one.cell_proj]
            if one.mlp is not None:
                wide.append(one.mlp[0])
                narrow += one.mlp[1:]
        return wide, narrow


@dataclass
class TextKernel:
    """Takes steps of some texts, and holds their states.

    Args:
        config: How it runs.
        model: The weights, which stay where they are.

    Attributes:
        states_lbhrn: States after the last step, fp32.
        pasts_lbpc: Inputs of the convolutions before the next step, fp32; None without one.
    """

    config: StepConfig
    model: ModelTensors
    _states: list[Tensor] = field(init=False)
    _pasts: list[Tensor] | None = field(init=False)
    _turn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        config, one, like = self.config, self.config.sizes, self.model.embedding
        plan = one.plan
        shape = (one.layers, config.rows, plan.heads, plan.rows, plan.columns)
        # The states of a launch's first step, and two that its steps write in turn.
        self._states = [like.new_empty(shape, dtype=torch.float32) for _ in range(3)]
        past = (one.layers, config.rows, one.taps - 1, one.convolved)
        self._pasts = (
            [like.new_empty(past, dtype=torch.float32) for _ in range(3)] if one.taps else None
        )
        words = b"".join(bytes(layer.pointers()) for layer in self.model.layers)
        self._layers = torch.frombuffer(bytearray(words), dtype=torch.int64).to(like.device)
        self._posts = torch.zeros(config.posts, dtype=torch.int64, device=like.device)

    @property
    def states_lbhrn(self) -> Tensor:
        """Return the states after the last step."""
        return self._states[0]

    @property
    def pasts_lbpc(self) -> Tensor | None:
        """Return the inputs of the convolutions before the next step."""
        return None if self._pasts is None else self._pasts[0]

    def write(
        self,
        uniform_kb: Tensor,
        last_b: Tensor,
        drawn_kb: Tensor,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
    ) -> None:
        """Take as many steps as ``uniform_kb`` has rows.

        Args:
            uniform_kb: Numbers of [0, 1), fp32.
            last_b: The byte before the first one, int64.
            drawn_kb: Takes the bytes, int64.
            temperature: As :func:`elman.ops.decode.reference.draw` has it, and so the others.
            top_k: As there.
            top_p: As there.
        """
        steps = len(uniform_kb)
        assert uniform_kb.is_contiguous()
        assert drawn_kb.is_contiguous()
        assert last_b.is_contiguous()
        model, states, pasts = self.model, self._states, self._pasts
        tensors = (self._layers, model.embedding, model.head, model.final_norm, states[0])
        args = DecodeArgs(
            *(tensor.data_ptr() for tensor in tensors),
            pasts[0].data_ptr() if pasts else 0,
            _two(states),
            _two(pasts),
            *(tensor.data_ptr() for tensor in (uniform_kb, last_b, drawn_kb, self._posts)),
            *(steps, self._turn, top_k, temperature, top_p, model.eps),
        )
        config = self.config
        wanted = Launch("decode", config.blocks, config.threads, config.shared_bytes, together=True)
        LAUNCH(config, [wanted], args, model.embedding.device)
        self._turn += steps
        place = 1 + (steps - 1) % 2  # where the last step left the states
        for kept in (states, pasts or []):
            if kept:
                kept[0], kept[place] = kept[place], kept[0]


def _two(tensors: Sequence[Tensor] | None) -> ctypes.Array[ctypes.c_void_p]:
    places = [0, 0] if tensors is None else [tensor.data_ptr() for tensor in tensors[1:]]
    return (ctypes.c_void_p * 2)(*places)
