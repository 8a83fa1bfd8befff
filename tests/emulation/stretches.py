"""What a launch may touch: its tensors as csrc/emulation/stretches.h knows them.

The emulator reports every access to global memory outside of what is declared here, by name.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from elman.ops.add_norm.cuda import AddNormArgs
from elman.ops.channel.abi import ChannelArgs, ChannelSequence
from elman.ops.channel.cuda.tile_config import TileConfig as ChannelTileConfig
from elman.ops.channel.recurrences import compiled_cell
from elman.ops.dense.abi import DenseArgs, DenseSequence
from elman.ops.dense.cuda.calls import PassConfig
from elman.ops.dense.cuda.cluster_config import ClusterConfig
from elman.ops.dense.cuda.group_config import FLAG_STRIDE, GroupConfig
from elman.ops.dense.cuda.groups import DenseGroupArgs
from elman.ops.dense.cuda.stepwise import DenseStepArgs, StepConfig
from elman.ops.dense.recurrences import compiled_cell as dense_cell
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.plan import PARAMETERS, ROLES
from elman.ops.matrix_state.slots.abi import SlotsArgs
from elman.ops.tape.cuda.cluster import TapeClusterArgs
from elman.ops.tape.cuda.cluster_config import ClusterConfig as TapeClusterConfig
from elman.ops.tape.cuda.stepwise import StepConfig as TapeStepConfig
from elman.ops.tape.cuda.stepwise import TapeStepArgs
from elman.ops.tape.recurrences import compiled_cell as tape_cell

GLOBAL, SHARED = 0, 1
EVERYBODY = -1


class Stretch(ctypes.Structure):
    """Rows of bytes at two distances; csrc/emulation/stretches.h declares it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("first", ctypes.c_uint64),
        ("row", ctypes.c_int64),
        ("counts", ctypes.c_int64 * 2),
        ("strides", ctypes.c_int64 * 2),
        ("space", ctypes.c_int),
        ("writable", ctypes.c_int),
        ("owner", ctypes.c_int64),
        ("freed", ctypes.c_int),
        ("settled", ctypes.c_int),
        ("unwatched", ctypes.c_int),
        ("exchanged", ctypes.c_int),
    )


def rows(
    name: str,
    address: int | None,
    row_bytes: int,
    counts: tuple[int, int] = (1, 1),
    strides: tuple[int, int] = (0, 0),
    *,
    writable: bool = False,
    settled: bool = False,
    exchanged: bool = False,
) -> Stretch | None:
    """Return a stretch of rows.

    Args:
        name: What messages call it.
        address: Of its first byte; none, and there is no such tensor.
        row_bytes: Bytes of a row.
        counts: Rows in either direction.
        strides: Bytes from one row to the next.
        writable: Whether the launch may write to it.
        settled: Whether no kernel writes it that may still run when this one begins.
        exchanged: Whether threads of a block, or blocks that run at the same time, hand it over.
    """
    if not address:
        return None
    # The emulator takes the larger distance first.
    (a, one), (b, other) = sorted(zip(strides, counts, strict=True), reverse=True)
    pair = ctypes.c_int64 * 2
    counted = pair(one, other), pair(a, b)
    whose = GLOBAL, writable, EVERYBODY, 0, settled, 0, exchanged
    return Stretch(name.encode(), address, row_bytes, *counted, *whose)


def declare_everything() -> None:
    """Let all launches of this process touch anything: another checker watches them."""
    anything = rows("anything", 1, 2**62, writable=True)
    assert anything is not None
    anything.unwatched = True
    _everything.append(anything)


_everything: list[Stretch] = []


def declare(library: ctypes.CDLL, given: Iterable[Stretch | None]) -> None:
    """Let the next launch of a library touch these stretches and nothing else."""
    there = [stretch for stretch in given if stretch is not None]
    if _everything:
        there = _everything
    declared = library.elman_declare
    declared.restype = None
    array = (Stretch * len(there))(*there)
    declared(array, ctypes.c_int(len(there)))
    _declared[id(library)] = there


# The emulator keeps pointers to the names.
_declared: dict[int, list[Stretch]] = {}


# ---- the engines


def of_matrix(call: Call, chosen: TileConfig, *, backward: bool) -> list[Stretch | None]:
    """Return the tensors of a pass of the matrix-state engine."""
    a, plan = call.args, call.plan
    io, number, kept = chosen.types.sizes
    found: list[Stretch | None] = []
    for name, _ in plan.roles:
        role, width = a.role[ROLES.index(name)], plan.heads * plan.width(name) * io
        found.append(
            rows(f"role {name}", role.data, width, (a.B, a.T), (role.batch * io, role.time * io))
        )
        if backward:
            strides = (role.grad_batch * io, role.grad_time * io)
            what = f"gradient of role {name}"
            found.append(rows(what, role.grad, width, (a.B, a.T), strides, writable=True))
    for name in plan.parameter_names:
        parameter = a.param[PARAMETERS.index(name)]
        size = torch.Size(plan.parameter_shape(name)).numel() * number
        found.append(rows(f"parameter {name}", parameter.data, size))
        if backward:
            what = f"gradient of parameter {name}"
            found.append(rows(what, parameter.grad, size, writable=True))
    state = a.B * a.H * a.R * a.N * number
    checkpoints = a.B * a.H * ((a.T - 1) // a.K) * a.R * a.N * kept
    found += [
        rows("first state", a.first, state),
        rows("checkpoints", a.checkpoints, checkpoints, writable=not backward),
        rows("resets", a.resets, a.B * a.T),
    ]
    row = a.H * a.R * io
    if not backward:
        out = rows("output", a.out, a.B * a.T * row, writable=True)
        return [*found, out, rows("last state", a.last, state, writable=True)]
    strides = (a.dout_batch * io, a.dout_time * io)
    return [
        *found,
        rows("gradient of the output", a.dout, row, (a.B, a.T), strides),
        rows("gradient of the last state", a.dlast, state),
        rows("gradient of the first state", a.dfirst, state, writable=True),
        *_matrix_workspace(call, chosen),
    ]


def _matrix_workspace(call: Call, chosen: TileConfig) -> list[Stretch | None]:
    """Return the parts of the workspace, as csrc/cuda/matrix_state/workspace.cuh lays them out."""
    a, number = call.args, chosen.types.sizes[1]
    sums = a.B * a.H * chosen.row_tiles * chosen.param_terms
    parts = chosen.row_tile_numbers * chosen.row_tiles * a.B * a.H * a.T
    at = a.workspace or 0
    behind_sums = at + (sums + -sums % 4) * number
    behind_parts = behind_sums + (parts + -parts % 4) * number
    scratch = at + chosen.workspace_bytes(a.B, a.T) - behind_parts
    places = {
        "sums of parameters": (at, sums * number),
        "parts of slices": (behind_sums, parts * number),
        "recomputed states": (behind_parts, scratch),
    }
    return [rows(f"workspace: {n}", *place, writable=True) for n, place in places.items()]


def of_channel(
    args: ChannelArgs, tile_config: ChannelTileConfig, *, backward: bool
) -> list[Stretch | None]:
    """Return the tensors of a pass of the channel engine."""
    io, number = tile_config.io.itemsize, tile_config.state.itemsize
    batch, steps, channels = args.batch, args.steps, args.channels
    parameters = len(compiled_cell(tile_config.plan.step).parameters)

    def sequence(name: str, one: ChannelSequence, writable: bool = False) -> Stretch | None:
        strides = (one.batch * io, one.time * io)
        return rows(name, one.data, channels * io, (batch, steps), strides, writable=writable)

    slots = range(len(tile_config.plan.slices()))
    state, row = batch * channels * number, channels * number
    segments = -(-steps // args.segment)
    found = [
        *(sequence(f"slice {n}", args.x[n]) for n in slots),
        *(rows(f"parameter {n}", args.p[n], row) for n in range(parameters)),
        rows("first state", args.first, state),
        rows("resets", args.resets, batch * steps),
        rows("checkpoints", args.checkpoints, segments * state, writable=not backward),
        *_channel_workspace(args, tile_config, backward),
    ]
    if not backward:
        last = rows("last state", args.last, state, writable=True)
        return [*found, sequence("output", args.y, True), last]
    return [
        *found,
        *(sequence(f"gradient of slice {n}", args.dx[n], True) for n in slots),
        *(
            rows(f"gradient of parameter {n}", args.dp[n], row, writable=True)
            for n in range(parameters)
        ),
        sequence("gradient of the output", args.dy),
        rows("gradient of the last state", args.dlast, state),
        rows("gradient of the first state", args.dfirst, state, writable=True),
    ]


def _channel_workspace(
    args: ChannelArgs, tile_config: ChannelTileConfig, backward: bool
) -> list[Stretch | None]:
    """Return the parts of the workspace, as ChannelSpace lays them out."""
    number, lanes = tile_config.state.itemsize, 32
    unit = args.batch * args.steps if tile_config.plan.unit is not None else 0
    parameters = len(compiled_cell(tile_config.plan.step).parameters)
    sizes = {"nowhere": args.batch * lanes, "norms": unit, "scales": unit}
    if backward:
        sizes["gradients of the unit input"] = unit * args.channels
        sizes["sums of parameters"] = args.batch * parameters * args.channels
        if tile_config.per:
            sizes["states of a segment"] = args.batch * tile_config.tuning.steps * args.channels
    found, at = [], args.workspace or 0
    for name, size in sizes.items():
        found.append(rows(f"workspace: {name}", at, size * number, writable=True))
        at += size * number
    return found


def of_dense_step(
    args: DenseStepArgs, config: StepConfig, *, backward: bool
) -> list[Stretch | None]:
    """Return the tensors of one step of the dense engine: of sequences, that step alone."""
    io, number, cell = config.io.itemsize, config.state.itemsize, dense_cell(config.step)
    batch, width, rows_of_r = args.batch, args.channels, cell.blocks * args.channels
    row = batch * width * number
    memo = DenseSequence(args.memo, args.steps * cell.memo * width, cell.memo * width)
    norms = rows(
        "norms",
        (args.norms or 0) + args.step * number,
        number,
        (batch, 1),
        (args.steps * number, 0),
        writable=not backward,
    )

    def at(name: str, one: DenseSequence, n: int, *, before: int = 0, to: bool = False) -> Any:
        if not one.data or args.step < before:
            return None
        place = one.data + (args.step - before) * one.time * io
        return rows(name, place, n * io, (batch, 1), (one.batch * io, 0), writable=to)

    small = [
        rows("R's product", args.product, row if backward else batch * rows_of_r * number),
        rows("second product", args.second, row),
        rows("for R's product", args.narrow, batch * (rows_of_r if backward else width) * io),
        rows("for the second product", args.narrow_extra, batch * width * io),
        rows("between two kernels", args.between, row),
        rows("state", args.state, cell.states * row),
        rows("sum of the scale's gradient", args.dscale if cell.scale else None, row),
    ]
    for stretch in small[2:]:
        if stretch is not None:
            stretch.writable = 1
    others = range(cell.others)
    found = [*small, rows("scale", args.scale, number), norms if cell.norm else None]
    found.append(_resets(args))
    found += [at("memo", memo, cell.memo * width, to=not backward)]
    if not backward:
        inputs = [at(f"input {n + 1}", args.p[n], width) for n in others]
        return [*found, at("input 0", args.x, rows_of_r), *inputs, at("y", args.y, width, to=True)]
    return [
        *found,
        at("dx", args.dx, rows_of_r, to=True),
        *(at(f"dp {n}", args.dp[n], width, to=True) for n in others),
        *(at("y", args.y, width, before=n) for n in (0, 1)),
        at("memo before", memo, cell.memo * width, before=1),
        at("dy", args.dy, width),
        rows("first state", args.first, cell.states * row),
    ]


def _resets(args: DenseStepArgs | TapeStepArgs) -> Stretch | None:
    """Return the resets of all steps: single bytes are less than the emulator tells apart."""
    return rows("resets", args.resets, args.batch * args.steps)


def of_tape_step(args: TapeStepArgs, config: TapeStepConfig, kernel: str) -> list[Stretch | None]:
    """Return the tensors of one step of the tape engine: of sequences, the steps that it needs."""
    io, number, step = config.io.itemsize, config.state.itemsize, args.step
    batch, width, weights = args.batch, args.channels, 2 * args.slots * number
    row, products = batch * width * number, tape_cell(config.write).blocks * width
    tape = args.slots * row
    back, here = kernel == "tape_backward", step < args.steps

    def at(name: str, t: int, n: int = 1, size: int = width * io, to: bool = False) -> Any:
        place = getattr(args, name)
        if not place or not 0 <= t < args.steps:
            return None
        strides = (args.steps * size, size)
        label = f"{name} of step {t}"
        return rows(label, place + t * size, size, (batch, n), strides, writable=to)

    if kernel == "tape_replay":
        kept = [at(name, step, args.count) for name in ("values", "y")]
        replayed = rows("replayed", args.replayed, args.count * tape, writable=True)
        read = at("weights", step, args.count, weights)
        return [*kept, read, rows("here", args.here, tape), replayed, _resets(args)]
    first, scores = rows("first", args.first, row), batch * args.slots * number
    whole = [first, rows("scores", args.scores, scores, writable=True)]
    if kernel == "tape_first":
        return [*whole, rows("tape", args.tape, tape)]
    whole += [
        rows("tape", args.tape, tape, writable=True),
        rows("product", args.product, row if back else batch * products * number),
        rows("narrow", args.narrow, batch * (products if back else width) * io, writable=True),
        *(at("weights", t, size=weights, to=not back) for t in (step - 1, step)),
        *(at("y", t, to=not back and t == step) for t in (step - 1, step)),
        at("values", step - 1, to=not back),
        _resets(args),
    ]
    if not back:
        return [*whole, at("x", step), rows("checkpoint", args.checkpoint, tape, writable=True)]
    return [
        *whole,
        *(at("dvalues", step - 1, to=True), at("dx", step, to=True), at("dy", step)),
        rows("carried", args.carried, row, writable=True),
        rows("here", args.here if here else None, tape),
        rows("before", args.before if step else None, tape),
    ]


def of_slots(args: SlotsArgs, number: int, *, backward: bool) -> list[Stretch | None]:
    """Return the tensors of a pass of E63m's kernels."""
    rows_bt, state = args.batch * args.steps, args.slots * args.channels
    wide, narrow, states = rows_bt * args.channels, rows_bt * args.slots, args.batch * state
    kept = {"checkpoints": -(-args.steps // args.segment) * states, "read": narrow, "value": narrow}
    read = {"k": wide, "row": narrow, "mix": args.slots**2}
    if backward:
        read |= {"q": wide, "dy": narrow, "dlast": states, **kept}
        written = {"dk": wide, "dq": wide, "dinput": narrow, "drow": narrow, "dfirst": states}
        written["workspace"] = (args.segment + 1) * states
    else:
        read |= {"q": wide, "input": narrow, "first": states}
        written = {"y": narrow, "last": states, **kept}
    found = []
    for sizes in (read, written):
        for name, size in sizes.items():
            one = rows(name, getattr(args, name), size * number, writable=sizes is written)
            if one is not None:
                # Threads of a block hand these to one another across barriers, which the emulator
                # knows of shared memory alone: where one is missing, numbers are wrong.
                one.unwatched = name in ("dfirst", "workspace")
            found.append(one)
    return [*found, rows("resets", args.resets, rows_bt)]


_TILE_CONFIG = re.compile(r"AddNormTileConfig<([\w:]+), ([\w:]+), (\d+),")
_SIZES = {"elman::bf16": 2, "elman::f16": 2, "float": 4}


def of_dense_cluster(a: DenseArgs, config: ClusterConfig) -> list[Stretch | None]:
    """Return the tensors of a pass of the dense engine's cluster form."""
    matrix = 2 * config.heads * config.out * config.cluster * config.inner
    return of_dense_sequences(a, config, matrix)


def of_dense_sequences(a: DenseArgs, config: PassConfig, matrix: int) -> list[Stretch | None]:
    """Return the tensors of a pass in one launch; `matrix` is the bytes of its matrix."""
    cell, counts = config.cell, (a.batch, a.steps)
    states = cell.states * a.batch * a.pitch * 4

    def sequence(name: str, of: DenseSequence, blocks: int = 1) -> Stretch | None:
        width, strides = 2 * blocks * a.pitch, (2 * of.batch, 2 * of.time)
        written = name in (("dx", "dp") if config.back else ("y",))
        return rows(name, of.data, width, counts, strides, writable=written)

    memo = 2 * a.batch * a.steps * cell.memo * a.pitch
    return [
        sequence("x", a.x, cell.blocks),
        sequence("dx", a.dx, cell.blocks),
        *(sequence("p", a.p[i]) for i in range(cell.others)),
        *(sequence("dp", a.dp[i]) for i in range(cell.others)),
        sequence("y", a.y),
        sequence("dy", a.dy),
        rows("matrix", a.matrix, matrix),
        rows("extra", a.extra, 2 * config.channels**2),
        rows("scale", a.scale, 4),
        rows("dscale", a.dscale if cell.scale else None, states, writable=True),
        rows("norms", a.norms, 4 * a.batch * a.steps, writable=not config.back),
        rows("memo", a.memo, memo, writable=not config.back),
        rows("first", a.first, states),
        rows("resets", a.resets, a.batch * a.steps),
        rows("last", a.last, states, writable=True),
        rows("dlast", a.dlast, states),
        rows("dfirst", a.dfirst, states, writable=True),
    ]


def of_tape_cluster(a: TapeClusterArgs, config: TapeClusterConfig) -> list[Stretch | None]:
    """Return the tensors of a pass of the tape engine's cluster form."""
    sequence, state = 2 * a.batch * a.steps * a.channels, 4 * a.batch * a.channels
    tape = state * config.slots
    read = {"x": sequence, "dy": sequence, "first": state, "dlast": state}
    read |= {"tape": tape, "dlast_tape": tape}
    read |= {"matrix": 2 * config.out * config.cluster * config.inner}
    written = {"dx": sequence, "dvalues": sequence, "last": state, "dfirst": state}
    written |= {"last_tape": tape, "dtape": tape}
    # What the forward pass makes, the backward pass reads.
    kept = {"y": sequence, "values": sequence}
    kept |= {"weights": 8 * a.batch * a.steps * config.slots}
    kept |= {"checkpoints": (a.steps - 1) // a.interval * tape}
    (read if config.back else written).update(kept)
    whole = [
        rows(name, getattr(a, name), size, writable=sizes is written)
        for sizes in (read, written)
        for name, size in sizes.items()
    ]
    # Warps that do not walk leave tapes there for those that do.
    replayed = 2 * (a.interval - 1) * tape
    return [*whole, rows("replayed", a.replayed, replayed, writable=True, exchanged=True)]


def of_dense_group(a: DenseGroupArgs, config: GroupConfig, groups: int) -> list[Stretch | None]:
    """Return the tensors of a launch of the dense engine's group form."""
    exchanged = 4 * config.exchanged * groups
    stalled = rows("the word of those that gave up", a.stalled, 4, writable=True)
    assert stalled is not None
    stalled.unwatched = True  # all who write it write the same
    return [
        stalled,
        *of_dense_sequences(a.dense, config, 2 * config.out * config.group * config.inner),
        rows("what blocks exchange", a.exchanged, exchanged, writable=True, exchanged=True),
        rows("flags", a.flags, 4 * FLAG_STRIDE * config.group * groups, writable=True),
    ]


def of_add_norm(text: str, kernels: Sequence[str], args: AddNormArgs) -> list[Stretch | None]:
    """Return the tensors of a pass of the add-and-norm kernels, whose text says the dtypes."""
    match = _TILE_CONFIG.search(text)
    assert match, text
    branch, out, width = _SIZES[match[1]], _SIZES[match[2]], int(match[3])
    backward = "add_norm_backward" in kernels
    numbers = args.rows * width
    read = {"stream": numbers * 4, "branch": numbers * branch, "gain": width * 4}
    read |= {"dsum": numbers * 4, "dnormed": numbers * out}
    written = {"normed": numbers * out, "dstream": numbers * 4, "dbranch": numbers * branch}
    written |= {"partial": args.blocks * width * 4, "dgain": width * 4}
    # What the forward pass makes, the backward pass reads.
    (read if backward else written).update({"sum": numbers * 4, "rstd": args.rows * 4})
    return [
        rows(name, getattr(args, name), size, writable=sizes is written)
        for sizes in (read, written)
        for name, size in sizes.items()
    ]
