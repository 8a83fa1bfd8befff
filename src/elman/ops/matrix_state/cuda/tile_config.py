"""How the CUDA kernels of a plan are mapped to threads, and what memory they take.

Mirrors csrc/cuda/matrix_state/tile_config.cuh and workspace.cuh; every kernel compares the sizes
when it is compiled (:func:`assertions`). Imports no torch.

Symbols: R value rows, N key columns, K steps between checkpoints, B batch, T time, H heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from elman.ops.common.abi_check import all_same
from elman.ops.matrix_state.plan import ROLES, Plan
from elman.ops.matrix_state.recurrences import CELLS

_COLUMNS = ("k", "q", "z", "read")
_HEAD = ("decay", "write")
_WARP, _BANKS = 32, 32
LEAST_ALIGN = 4
"""Bytes of the narrowest copy: what is less aligned is copied from the word in which it begins."""


@dataclass(frozen=True)
class Types:
    """C++ types of a kernel and their sizes in bytes.

    Args:
        io: Type of the sources and of the output.
        state: Type of the arithmetic and of everything else.
        checkpoint: Type of the states in checkpoints and in a recomputed segment.
    """

    io: str
    state: str
    checkpoint: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the sizes of io, state and checkpoint."""
        return _SIZES[self.io], _SIZES[self.state], _SIZES[self.checkpoint]


_SIZES = {"elman::bf16": 2, "elman::f16": 2, "float": 4, "double": 8}


@dataclass(frozen=True)
class TileConfig:
    """One way to run a plan's kernel; csrc/cuda/matrix_state/tile_config.cuh explains the numbers.

    Args:
        plan: What is computed.
        types: C++ types.
        lanes: Lanes of a warp that share rows of the state.
        warps: Warps of a block.
        vector: Neighboring columns that a lane reads at once.
        steps: K.
        align: Bytes that every slice and stride of sources and gradients is a multiple of.
        scratch: Whether the recomputed states stand in global memory.
        producers: Whether other warps of a block prepare and finish segments; in the backward pass
            they recompute them, too.
        tall: Rows that lanes share.
        shares: How many blocks of the forward pass share one of the GPU's.
        resets: Whether the kernels read a mask of resets.
    """

    plan: Plan
    types: Types
    lanes: int
    warps: int
    vector: int
    steps: int
    align: int
    scratch: bool = False
    producers: bool = False
    tall: int = 1
    shares: int = 1
    resets: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.warps

    @property
    def forward_threads(self) -> int:
        """Threads of a block of the forward pass."""
        return self.threads + _WARP * min(self.warps, 4) * self.producers

    @property
    def backward_threads(self) -> int:
        """Threads of a block of the backward pass."""
        return self.threads * (1 + self.recomputed)

    @property
    def recomputed(self) -> bool:
        """Whether producer warps recompute segments, in the backward pass."""
        return self.producers and not self.scratch

    @property
    def columns(self) -> int:
        """Columns that a lane holds."""
        return _round(math.ceil(self.plan.columns / self.lanes), self.vector)

    @property
    def width(self) -> int:
        """Columns of a row with padding."""
        return self.columns * self.lanes

    @property
    def rows(self) -> int:
        """Rows of a row tile."""
        return _WARP // self.lanes * self.tall * self.warps

    @property
    def row_tiles(self) -> int:
        """Row tiles, hence blocks, of a head."""
        return math.ceil(self.plan.rows / self.rows)

    @property
    def copies(self) -> int:
        """Copies of the vectors over columns in the backward pass."""
        if self.columns & (self.columns - 1):
            return 1
        swaps = min(_log2(_WARP // self.lanes), _log2(self.columns))
        return max(1, self.vector // (self.columns >> swaps))

    @property
    def history(self) -> int:
        """Numbers of the states of a recomputed segment, of a block."""
        piece = self.tall * self.columns
        numbers = _round(piece, 2) if self.types.sizes[2] == 2 else piece
        return (self.steps + self.recomputed) * numbers * self.threads

    # ---- shared memory

    def staging_bytes(self, backward: bool) -> int:
        """Return the bytes of one buffer of raw inputs."""
        names = [name for name, _ in self.plan.roles] + (["dout"] if backward else [])
        return sum(_round(self.steps * self._staged_row(name), 16) for name in names)

    def _staged_row(self, name: str) -> int:
        io = self.types.sizes[0]
        unit = max(io, 4) if name in _HEAD else self.align
        width = 1 if name in _HEAD else min(self.rows, self.plan.rows)
        if name in _COLUMNS:
            width = self.plan.columns
        shifts = io == 2 and unit == 4
        return _round((width + shifts) * io, unit)

    def _input_bytes(self, backward: bool) -> int:
        cell = CELLS[self.plan.cell]
        vectors = 2 + self._own_key + cell.column
        pad = 0 if self.lanes > 4 else 16 if self.lanes > 2 else 8
        numbers = self._ahead * self.width
        if backward:
            numbers += (self.copies - 1) * (self.steps * self.width + pad)
        decay, write = self.plan.decay != "none", self.plan.write != "none"
        return (
            vectors * self._bytes(numbers)
            + (1 + cell.gates) * self._bytes(self._ahead * self.rows)
            + (decay + write) * self._bytes(self._ahead)
            + (4 + 2 * decay) * backward * self._bytes(self.steps)
        )

    @property
    def forward_bytes(self) -> int:
        """Shared memory of the forward pass."""
        after = self.plan.gate_act != "none" or self.plan.residual
        buffers, sets = (4 if after else 2, 2) if self.producers else (2, 1)
        inputs = sets * (self._input_bytes(False) + self._reads_bytes)
        return buffers * self.staging_bytes(False) + inputs + 64 * self.producers

    @property
    def step_bytes(self) -> int:
        """Shared memory of one forward step whose raw inputs stand elsewhere."""
        return self._input_bytes(False) + self._reads_bytes

    @property
    def staged_vector(self) -> int:
        """Numbers that are read from raw inputs, and written to outputs, at once."""
        return self._staged_vector

    @property
    def backward_bytes(self) -> int:
        """Shared memory of the backward pass."""
        plan, cell = self.plan, CELLS[self.plan.cell]
        gate = plan.gate_act != "none"
        needs_y = gate or plan.self_gate
        rows = 1 + cell.energy + needs_y + cell.gates + gate
        sums = 2 + self._own_key + cell.column
        decay, write = self._decay_terms, plan.write != "none"
        buffers, sets = (3, 2) if self.recomputed else (2, 1)
        of_set = (
            self._input_bytes(True)
            + rows * self._bytes(self.steps * self.rows)
            + self._bytes(self.steps * self.warps * sums * self.width)
            + (self._bytes(self.steps * (decay + 4)) if decay else 0)
            + (self._bytes(self.steps * (self.rows + 4)) if write else 0)
            + (0 if self.scratch else _round(self.history * self.types.sizes[2], 16))
        )
        staging = buffers * self.staging_bytes(True)
        return staging + sets * of_set + needs_y * self._reads_bytes + 96 * self.recomputed

    @property
    def _reads_bytes(self) -> int:
        return self._bytes(self._ahead * self._parts)

    @property
    def _parts(self) -> int:
        """Numbers from one step's parts of the reads to the next one's."""
        vector = self._staged_vector
        warp = _WARP * self.tall
        if self.warps > 1:
            rows = self.rows // self.warps
            warp = _above(warp, warp // min(vector, rows & -rows))
        group = _power_above(math.ceil(min(self.rows, self.plan.rows) / vector))
        return _above(self.warps * warp, 4 if self.lanes > 4 else self.lanes * group)

    @property
    def _staged_vector(self) -> int:
        """Numbers that are read from raw inputs at once."""
        io = self.types.sizes[0]
        return 1 if io == 2 and self.align == LEAST_ALIGN else max(1, min(4, self.align // io))

    @property
    def _ahead(self) -> int:
        return self.steps + 1

    def _bytes(self, count: int) -> int:
        return _round(count * self.types.sizes[1], 16)

    @property
    def _own_key(self) -> bool:
        return self.plan.key != "k"

    @property
    def _decay_terms(self) -> int:
        cell = CELLS[self.plan.cell]
        if self.plan.decay == "none" or cell.keeps:
            return 0
        plain = not (cell.gates or cell.parameters or cell.element)
        by_lane = plain and self.warps <= 4
        return self.threads if by_lane else self.rows

    # ---- global memory

    def checkpoint_numbers(self, batch: int, time: int) -> int:
        """Return how many numbers of type ``types.checkpoint`` the checkpoints of a call hold."""
        states = batch * self.plan.heads * ((time - 1) // self.steps)
        return states * self.plan.rows * self.plan.columns

    @property
    def param_terms(self) -> int:
        """Numbers of a block in the sums of the parameters' gradients."""
        widths = {"z_bias": self.plan.columns, "decay": 1, "dt_bias": 1}
        return sum(widths.get(name, self.rows) for name in self.plan.parameter_names)

    @property
    def row_tile_numbers(self) -> int:
        """Numbers per row tile, step and head that the row tiles of a head leave to be summed."""
        return sum(self._row_tiles)

    @property
    def _row_tiles(self) -> list[int]:
        """Widths of the slices that every row tile of a head adds to."""
        if self.row_tiles == 1:
            return []
        slices = {place: name for name, place in reversed(self._ordered_roles())}
        wide = {place for name, place in self.plan.roles if name in _COLUMNS}
        return [
            self.plan.columns if place in wide else int(name in _HEAD)
            for place, name in slices.items()
        ]

    def _ordered_roles(self) -> list[tuple[str, object]]:
        return sorted(self.plan.roles, key=lambda role: ROLES.index(role[0]))

    def workspace_bytes(self, batch: int, time: int) -> int:
        """Return the bytes of the backward pass's workspace."""
        heads = batch * self.plan.heads
        numbers = _round(heads * self.row_tiles * self.param_terms, 4)
        numbers += _round(self.row_tile_numbers * self.row_tiles * heads * time, 4)
        scratch = heads * self.row_tiles * self.history if self.scratch else 0
        return numbers * self.types.sizes[1] + scratch * self.types.sizes[2]

    def finish_threads(self, batch: int, time: int) -> int:
        """Return how many threads sum over blocks after the backward pass."""
        widths = {"z_bias": self.plan.columns, "decay": 1, "dt_bias": 1}
        params = sum(widths.get(name, self.plan.rows) for name in self.plan.parameter_names)
        vectors = sum(
            width if width == 1 else width // self._staged_vector for width in self._row_tiles
        )
        return self.plan.heads * (params + batch * time * vectors)

    def type_text(self) -> str:
        """Return the C++ type, for a translation unit with ``elman::Spec``."""
        numbers = (self.lanes, self.tall, self.warps, self.vector, self.steps, self.align)
        switches = f"{self.scratch}, {self.producers}".lower()
        inner = ", ".join(map(str, numbers))
        return f"elman::TileConfig<elman::Spec, {self.types.checkpoint}, {inner}, {switches}>"

    def assertions(self, backward: bool) -> str:
        """Return C++ text that refuses to compile a pass where this mirror is wrong."""
        mirrored = {"G::ROW_TILES": self.row_tiles, "G::THREADS": self.threads}
        mirrored["G::FORWARD_BYTES"] = self.forward_bytes
        if not backward:
            mirrored["G::FORWARD_THREADS"] = self.forward_threads
        else:
            mirrored["G::BACKWARD_THREADS"] = self.backward_threads
            mirrored["G::HISTORY"] = self.history
            mirrored["G::PARAM_TERMS"] = self.param_terms
            mirrored["elman::row_tile_offset<G>(elman::ROLES)"] = self.row_tile_numbers
            mirrored["G::BACKWARD_BYTES"] = self.backward_bytes
        return all_same(mirrored, "tile_config.py", self.plan.label)


def _round(number: int, unit: int) -> int:
    return math.ceil(number / unit) * unit


def _above(number: int, remainder: int) -> int:
    return number + (remainder - number) % _BANKS


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _log2(power: int) -> int:
    return power.bit_length() - 1
