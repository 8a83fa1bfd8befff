"""Offsets of 2^31 numbers and more, in every engine; a 32-bit one is planted and noticed.

Tensors are that large in address space that nobody fills, and grids too, of which the last blocks
run alone: once where sequences lie far apart, once where steps do. What they compute is compared
with a call that has those sequences alone.

Shape legend: b batch, t time, c channels, h heads, s all channels of a source.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.channel import op as channel_op
from elman.ops.channel.abi import pointers, sequence
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import row_blocks
from elman.ops.matrix_state import op as matrix_op
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import tile_config_of
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.stacked import DELTA, stacked_plan
from tests.emulation import channel_faults, emulator
from tests.emulation.far import BEYOND, room, spread
from tests.emulation.faults import edited, in_process
from tests.emulation.stretches import declare, of_add_norm, of_channel, of_matrix

FP32 = torch.float32
Library = emulator.Library
# Engine, file, old text, new text: an offset that is taken in 32 bits.
FAULTS = {
    "row of a norm": (
        "add_norm",
        "add_norm",
        "(const S*)tensor + row * G::D",
        "(const S*)tensor + (int)(row * G::D)",
    ),
    "row that is written": (
        "add_norm",
        "add_norm",
        "S* to = (S*)tensor + row * G::D",
        "S* to = (S*)tensor + (int)(row * G::D)",
    ),
    "row of a role": (
        "matrix",
        "smem_staging",
        "(t0 + step) * stride<ROLE>()",
        "(int)(t0 + step) * (int)stride<ROLE>()",
    ),
    "sequence of a role": (
        "matrix",
        "smem_staging",
        "(at.batch * a.role[ROLE].batch + first)",
        "(int)(at.batch * a.role[ROLE].batch + first)",
    ),
    "sequence of the output's gradient": (
        "matrix",
        "smem_staging",
        "(at.batch * a.dout_batch + first)",
        "(int)(at.batch * a.dout_batch + first)",
    ),
    "next segment of a role": (
        "matrix",
        "smem_staging",
        "(BACKWARD ? -G::STEPS : G::STEPS) * stride<ROLE>()",
        "(int)((BACKWARD ? -G::STEPS : G::STEPS) * stride<ROLE>())",
    ),
    "gradient of a slice": (
        "matrix",
        "workspace",
        "batch * role.grad_batch + t * role.grad_time",
        "(int)(batch * role.grad_batch + t * role.grad_time)",
    ),
    "checkpoint": (
        "matrix",
        "step",
        "((segment - 1) * a.B * a.H + head) * G::R * G::N",
        "(int)(((segment - 1) * a.B * a.H + head) * G::R * G::N)",
    ),
    "first state": (
        "matrix",
        "step",
        "(at.batch * a.H + at.head) * G::R * G::N;\n  if (a.first)",
        "(int)((at.batch * a.H + at.head) * G::R * G::N);\n  if (a.first)",
    ),
    "last state": (
        "matrix",
        "forward",
        "(A*)pass.a.last + (at.batch * pass.a.H + at.head) * G::R * G::N",
        "(A*)pass.a.last + (int)((at.batch * pass.a.H + at.head) * G::R * G::N)",
    ),
    "state of the backward pass": (
        "matrix",
        "trail",
        "return (at.batch * a.H + at.head) * G::R * G::N;",
        "return (int)((at.batch * a.H + at.head) * G::R * G::N);",
    ),
    "part of the parameters": (
        "matrix",
        "workspace",
        "block_index() * G::PARAM_TERMS",
        "(int)(block_index() * G::PARAM_TERMS)",
    ),
    "part of a row tile": (
        "matrix",
        "workspace",
        "(row_tile * steps + step) * row_tile_width<G>(ROLE)",
        "(int)((row_tile * steps + step) * row_tile_width<G>(ROLE))",
    ),
    "sequence of channels": (
        "channel",
        "tiles",
        "(place.batch * from.batch + place.first)",
        "(int)(place.batch * from.batch + place.first)",
    ),
    "next tile": (
        "channel",
        "tiles",
        "* sequence(role).time * G::NUMBER;\n    if",
        "* (int)(sequence(role).time * G::NUMBER);\n    if",
    ),
    "step of a tile": (
        "channel",
        "tiles",
        "int64_t stride = sequence(role).time * G::NUMBER;",
        "int stride = sequence(role).time * G::NUMBER;",
    ),
    "step that is written": (
        "channel",
        "passes",
        "(BACKWARD ? -to.time : to.time) * (int)sizeof(S)}",
        "(int)((BACKWARD ? -to.time : to.time) * (int)sizeof(S))}",
    ),
    "sequence that is written": (
        "channel",
        "passes",
        "(place.batch * to.batch + t * to.time + channel)",
        "(int)(place.batch * to.batch + t * to.time + channel)",
    ),
    "state of a channel": (
        "channel",
        "passes",
        "index(at.batch * args.channels + channel)",
        "index((int)(at.batch * args.channels + channel))",
    ),
    "checkpoint of a channel": (
        "channel",
        "passes",
        "((place.batch * tiles.segments + segment) * a.channels + channel)",
        "(int)((place.batch * tiles.segments + segment) * a.channels + channel)",
    ),
}


# ---- add and norm: many rows


def norm_results(library: Library, far: bool, steps_apart: bool = False) -> list[Tensor]:
    """Run the last rows of a pass both ways; return what they are."""
    width, few = 37, 5
    rows = math.ceil(BEYOND / width) + few if far else few
    generator = torch.Generator().manual_seed(3)
    made: dict[str, Tensor] = {}

    def tensor(name: str, *shape: int, drawn: bool = False) -> Tensor:
        numbers = torch.Size(shape).numel()
        made[name] = room(numbers, FP32)
        if drawn:
            size = min(numbers, few * width)
            made[name][-size:] = torch.randn(size, generator=generator)
        return made[name]

    for name in ("stream", "branch", "dsum", "dnormed"):
        tensor(name, rows, width, drawn=True)
    tensor("gain", width, drawn=True)
    for name in ("sum", "normed", "dstream"):
        tensor(name, rows, width)
    tensor("rstd", rows)
    tile_config = norm_cuda.tile_config_of(width, False, FP32, FP32)
    text = norm_cuda.unit_text(tile_config, emulator.HEADER)
    compiled = library(text)
    for kernel in ("add_norm_forward", "add_norm_backward"):
        blocks = rows if kernel == "add_norm_forward" else few
        if kernel == "add_norm_backward":
            # One block to a row: those of the last rows run alone.
            blocks = rows
            tensor("partial", rows, width)
        words, _ = norm_cuda._places(made)
        args = norm_cuda.AddNormArgs.from_buffer(words)
        args.rows, args.blocks, args.eps = rows, blocks, 1e-6
        declare(compiled, of_add_norm(text, [kernel], args))
        shared = math.ceil(2 * tile_config.warps / 4) * 16
        wanted = Launch(kernel, blocks, 32 * tile_config.warps, shared)
        emulator.run_blocks(compiled, wanted, args, range(rows - few, rows))
    names = ("sum", "normed", "dstream", "partial")
    return [made[name][-few * width :].clone() for name in names]


# ---- the matrix-state engine: far strides, and many sequences


def matrix_results(library: Library, far: bool, steps_apart: bool = False) -> list[Tensor]:
    """Run the last sequence of a batch both ways."""
    heads, time = 2, 19
    options = {**DELTA, "gate_act": "sigmoid", "gate_bias": True, "residual": True}
    plan = stacked_plan("delta", heads, 8, 20, **options)
    types = emulator.types_of(plan, FP32)
    chosen = tile_config_of(plan, types, 8, 1, 8, 1)
    state, out = heads * plan.rows * plan.columns, time * heads * plan.rows
    least = min(state, out, heads * chosen.row_tiles * chosen.param_terms)  # of a sequence
    batch = math.ceil(BEYOND / least) + 1 if far else 1
    generator = torch.Generator().manual_seed(4)

    def last(tensor: Tensor, *shape: int, scale: float = 1.0) -> Tensor:
        """Give the last sequence random numbers; return the tensor."""
        numbers = torch.Size(shape).numel()
        tensor.view(-1)[-numbers:] = scale * torch.randn(numbers, generator=generator)
        return tensor

    def whole(*shape: int) -> Tensor:
        return room(batch * torch.Size(shape).numel(), FP32).view(batch, *shape)

    ends = [place.start + heads * plan.width(name) for name, place in plan.roles]
    width = max(ends) + -max(ends) % 8
    strides = (width, width * batch, 1) if steps_apart else (width * time, width, 1)
    numbers = batch * time * width

    def source() -> Tensor:
        return room(numbers, FP32).as_strided((batch, time, width), strides)

    x, dx = source(), source()
    x[-1] = torch.randn(time, width, generator=generator)
    parameters = [
        0.5 * torch.randn(plan.parameter_shape(name), generator=generator)
        for name in plan.parameter_names
    ]
    call = Call(plan, [x], parameters, chosen.steps)
    shape = (heads, plan.rows, plan.columns)
    made = {"last": whole(*shape), "dfirst": whole(*shape)}
    y = whole(time, heads, plan.rows)
    states = {name: last(whole(*shape), *shape, scale=0.5) for name in ("first", "dlast")}
    checkpoints = room(chosen.checkpoint_numbers(batch, time), FP32)
    call.point(out=y, checkpoints=checkpoints, **states, **made)
    call.point_output_gradient(last(whole(time, heads, plan.rows), time, heads, plan.rows))
    dparameters = [torch.empty_like(parameter) for parameter in parameters]
    call.point_gradients([dx], dparameters)
    workspace = room(chosen.workspace_bytes(batch, time) // 4 + 1, FP32)
    call.point(workspace=workspace)
    found = []
    for backward in (False, True):
        _run_last(library, call, chosen, backward)
    sums = batch * heads * chosen.row_tiles * chosen.param_terms
    own = heads * chosen.row_tiles * chosen.param_terms
    found += [tensor[-1].clone() for tensor in (y, *made.values(), dx)]
    found.append(workspace[sums - own : sums].clone())
    # Of every row tile the last sequence's numbers; wide slices come first.
    steps, own, at = batch * time * heads, time * heads, sums + -sums % 4
    for n in sorted(chosen._row_tiles, reverse=True):
        for row_tile in range(chosen.row_tiles):
            end = at + (row_tile + 1) * steps * n
            found.append(workspace[end - own * n : end].clone())
        at += chosen.row_tiles * steps * n
    return found


def _run_last(library: Library, call: Call, chosen: TileConfig, backward: bool) -> None:
    """Run the blocks of the last sequence."""
    a = call.args
    fitted = emulator.fitted(call, chosen, backward)
    compiled = library(kernels.unit_text(fitted, backward, emulator.HEADER))
    declare(compiled, of_matrix(call, fitted, backward=backward))
    wanted = kernels.launches(fitted, a.B, a.T, backward)[0]
    own = a.H * fitted.row_tiles
    emulator.run_blocks(compiled, wanted, a, range(a.B * own - own, a.B * own))


# ---- the channel engine


def channel_results(
    library: Library,
    far: bool,
    steps_apart: bool = False,
    plan: Plan = channel_faults.PLAN,
) -> list[Tensor]:
    """Run the last warps of a batch both ways."""
    channels, steps, tuning = 37, 19, channel_faults.SHORT
    segments = math.ceil(steps / tuning.steps)
    batch = 2 * math.ceil(BEYOND / (2 * channels)) + 2 if far else 2
    generator = torch.Generator().manual_seed(5)

    def many(*shape: int) -> Tensor:
        made = room(batch * torch.Size(shape).numel(), FP32).view(batch, *shape)
        made[-2:] = torch.randn(2, *shape, generator=generator)
        return made

    def sequences(width: int) -> Tensor:
        strides = (width, batch * width, 1) if steps_apart else (steps * width, width, 1)
        numbers = room(batch * width * steps, FP32)
        made = numbers.as_strided((batch, steps, width), strides)
        made[-2:] = torch.randn(2, steps, width, generator=generator)
        return made

    source, dsource, y, dy = (sequences(width) for width in (120, 120, 40, 40))
    parameters = [torch.randn(channels, generator=generator) for _ in CELLS[plan.step].parameters]
    dparameters = [torch.empty(channels) for _ in parameters]
    states = {name: many(channels) for name in ("first", "dlast", "last", "dfirst")}
    states["checkpoints"] = many(segments, channels)
    rows = batch * steps
    states["workspace"] = room(
        batch * 32 + 2 * rows + (rows + (len(parameters) + tuning.steps) * batch) * channels, FP32
    )
    call = channel_cuda._KernelCall(plan, [source], parameters, states["first"])
    call.point(**states)
    call.args.segment = tuning.steps
    call.args.y, call.args.dy = sequence(y), sequence(dy)
    call.args.dp = pointers(dparameters)
    for slot, place in enumerate(plan.slices()):
        call.args.dx[slot] = sequence(dsource, place.start)
    for backward in (False, True):
        unit = call.tile_config(backward=backward).unit
        tile_config = channel_cuda.tile_config_for(plan, FP32, FP32, tuning, unit, channels)
        compiled = library(channel_cuda.unit_text(tile_config, emulator.HEADER))
        declare(compiled, of_channel(call.args, tile_config, backward=backward))
        for one in channel_cuda.launches(tile_config, call.args, backward):
            # What the last two sequences are of the blocks.
            own = {"channel_finish": 0}.get(one.kernel, one.blocks * 2 // batch)
            emulator.run_blocks(compiled, one, call.args, range(one.blocks - own, one.blocks))
    last = ("last", "dfirst", "checkpoints")
    return [t[-2:].clone() for t in (y[..., :channels], dsource, *(states[n] for n in last))]


# ---- what is compared

FOLDERS = {  # of csrc/cuda
    "add_norm": "add_norm",
    "matrix": "matrix_state",
    "channel": "channel",
    "channel rows": "channel",
}
ENGINES = {
    "add_norm": norm_results,
    "matrix": matrix_results,
    "channel": channel_results,
    "channel rows": functools.partial(channel_results, plan=channel_faults.ROWS),
}


@functools.cache
def near(engine: str) -> list[Tensor]:
    """Return an engine's results where nothing is far."""
    return ENGINES[engine](emulator.loaded, False)


def differs(engine: str, library: Library) -> str:
    """Return how an engine's results differ where its tensors are large; ``""`` if they do not."""
    for steps_apart in (False, True):
        try:
            found = ENGINES[engine](library, True, steps_apart)
        except emulator.FaultError as fault:
            return str(fault)
        for number, (one, other) in enumerate(zip(found, near(engine), strict=True)):
            if not torch.equal(one, other):
                return f"wrong numbers: {number}"
    return ""


@pytest.mark.parametrize("engine", ENGINES)
def test_offsets_beyond_32_bits(engine) -> None:
    assert differs(engine, emulator.loaded) == ""


# One of each engine; the others are slow.
QUICK = ("row of a norm", "checkpoint", "next tile")


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[pytest.mark.slow] * (f not in QUICK)) for f in FAULTS]
)
def test_an_offset_in_32_bits_is_noticed(fault, tmp_path: Path) -> None:
    engine, file, old, new = FAULTS[fault]
    library = functools.partial(_faulty, tmp_path, f"{FOLDERS[engine]}/{file}", old, new)
    near(engine)
    assert in_process(differs, engine, library) != ""


def _faulty(folder: Path, file: str, old: str, new: str, text: str) -> ctypes.CDLL:
    """Return the library of a text over a faulty source."""

    def edit(source: str) -> str:
        return edited(source, old, new)

    return emulator.planted(folder, f"cuda/{file}.cuh", edit, text)


# ---- the CPU engines: far strides


def channel_on_cpu(dtype: torch.dtype) -> bool:
    """Return whether far sequences of the channel engine give what near ones do."""
    inputs = row_blocks(dict.fromkeys(CELLS["e65"].inputs, 21))
    plan = Plan("e65", tuple(inputs.items()), self_gate=True)
    generator = torch.Generator().manual_seed(2)
    names = CELLS[plan.step].parameters
    parameters = {n: torch.randn(21, generator=generator).to(dtype) for n in names}
    state = torch.zeros(2, 21, dtype=dtype)
    return same_on_cpu(
        63, dtype, lambda x: channel_op.run(plan, [x], parameters, state, backend="cpu")
    )


def matrix_on_cpu(dtype: torch.dtype) -> bool:
    """Return whether far sequences of the matrix-state engine give what near ones do."""
    plan = stacked_plan("delta", 2, 8, 20, **DELTA)
    end = max(place.start + 2 * plan.width(name) for name, place in plan.roles)
    generator = torch.Generator().manual_seed(2)
    parameters = {
        n: torch.randn(plan.parameter_shape(n), generator=generator).to(dtype)
        for n in plan.parameter_names
    }
    first = torch.zeros(2, 2, plan.rows, plan.columns, dtype=dtype)
    return same_on_cpu(
        end, dtype, lambda x: matrix_op.run(plan, [x], parameters, first, backend="cpu")
    )


def same_on_cpu(
    width: int, dtype: torch.dtype, run: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> bool:
    """Run sequences close together and far apart, forward and back; compare all bits."""
    near_btc = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(3)).to(dtype)
    found = []
    for source in (near_btc, spread(near_btc, (BEYOND + 64, BEYOND // 4 + 64, 1))):
        leaf = source.detach().requires_grad_()
        outputs = run(leaf)
        (gradient,) = torch.autograd.grad([out.sum() for out in outputs], leaf)
        found.append([*outputs, gradient])
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


ON_CPU = {"channel": channel_on_cpu, "matrix": matrix_on_cpu}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("engine", ON_CPU)
def test_far_sequences_of_the_cpu_engines(engine, dtype) -> None:
    assert ON_CPU[engine](dtype)
