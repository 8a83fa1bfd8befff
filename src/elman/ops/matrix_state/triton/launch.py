"""Runs calls of the matrix-state engine on the Triton kernels.

Shape legend: b batch, t time, c channels of a source, h heads, v state rows, w any width,
p parts of a gradient, which are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.triton_version import interpreted, torch_is_for_rocm, triton_problem
from elman.kernels.uncompiled import traced_as_constant
from elman.ops.common.slices import Slice
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.plan import Plan, parse
from elman.ops.matrix_state.triton.spec import Spec, of_loop, spec_of
from elman.ops.matrix_state.triton.tiles import (
    MOST_COLUMNS,
    Tile,
    power_of_two,
    prepared_of,
    tile_of,
)

_SHARED = frozenset({"k", "q", "z", "read", "decay", "write"})
"""Roles that all rows of a head share: each row tile has a part of the gradient."""
_OF_HEADS = frozenset({"decay", "write"})
"""Roles of one number a head: sums over the whole state, of which much cancels."""
_OF_ROWS = frozenset({"p0", "p1", "p2", "residual", "gate_bias"})
"""Parameters of rows, each of which one tile has."""
_OF_FORWARD = ("first", "last", "out", "checkpoints", "reads", "resets")
_PARAMETERS_OF = {"decay": ("decay", "dt_bias"), "z": ("z_bias",)}
"""Parameters with which a role is prepared."""
_OF_LOOP = frozenset({"z"})
"""Roles whose slope is known from what was prepared: the loop itself goes back through them."""
_SUM_BLOCK, _SUM_WARPS = 256, 2
_SHARE_BLOCK, _SHARE_WIDTH, _SHARE_WARPS = 4096, 32, 4
_VECTOR_NUMBERS, _VECTOR_WARPS = 512, 2  # of a program that prepares vectors, or goes back
_DECAY_STEPS, _DECAY_WARPS = 128, 4


def plan_problem(plan: Plan) -> str:
    """Return why the Triton kernels do not have a plan; empty if they do."""
    return plan.kernel_problem or _own_problem(plan.text)


@traced_as_constant
def _own_problem(plan_text: str) -> str:
    return _found_problem(plan_text)


@cache
def _found_problem(plan_text: str) -> str:
    plan = parse(plan_text)
    if plan.columns > MOST_COLUMNS:
        return f"a state of {plan.columns} columns is wider than {MOST_COLUMNS}"
    if triton_problem():  # which the launch says
        return ""
    from elman.ops.matrix_state.triton.cells import CELLS

    return "" if plan.cell in CELLS else f"the recurrence {plan.cell} has no step in Triton"


def segment(plan: Plan, batch: int, dtype: torch.dtype) -> int:
    """Return how many steps lie between two checkpoints, in both passes."""
    return tile_of(plan, backward=True).steps


def launch(call: Call, *, backward: bool) -> None:
    """Run a call, forward or backward, on the current stream of its device.

    Raises:
        UserError: triton is missing, or has no kernel for this device, dtype or plan.
    """
    check_tensors(call.like)
    with device_of(call.like):
        (_backward if backward else _forward)(call, has_fast_tanh(call.like), launched)


def has_fast_tanh(like: Tensor) -> bool:
    """Whether the GPU's own tanh is precise enough for the sequences, and there is one."""
    if interpreted() or torch_is_for_rocm():
        return False
    return like.dtype == torch.bfloat16 and like.is_cuda


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Args:
        kernel: The kernel.
        programs: How many programs run, by axis.
        arguments: Its arguments.
        warps: Warps of a program.
        registers: Most registers of a thread on an NVIDIA GPU; None is the compiler's choice.
    """

    kernel: Any
    programs: tuple[int, ...]
    arguments: Sequence[Any]
    warps: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Options of the compiler. Loops are not pipelined: the kernels say when they load."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": 1, **limit}


def launched(one: Launch) -> None:
    """Launch a kernel."""
    one.kernel[one.programs](*one.arguments, **one.options)


def launches(call: Call, *, backward: bool, fast: bool) -> list[Launch]:
    """Return the launches of a call and run none: for those who compile without a GPU.

    Args:
        call: The call.
        backward: Which pass.
        fast: Whether tanh is NVIDIA's own instruction.
    """
    found: list[Launch] = []
    (_backward if backward else _forward)(call, fast, found.append)
    return found


# Looking for it takes longer than a launch.
_missing = cache(triton_problem)


def check_tensors(like: Tensor) -> None:
    """Refuse what Triton cannot run here.

    Raises:
        UserError: triton is missing, or has no kernel for the device or the dtype of a tensor.
    """
    problem = _missing()
    if not problem and not like.is_cuda and not (like.is_cpu and interpreted()):
        problem = f"the tensors lie on {like.device}"
    if not problem and like.dtype not in (torch.bfloat16, torch.float32):
        problem = f"computes on bfloat16 and float32, not on {like.dtype}"
    if problem:
        raise UserError(f"kernels.backend=triton: {problem}, or use kernels.backend=reference")


def device_of(like: Tensor) -> AbstractContextManager[object]:
    """Return the context in which Triton launches on the tensors' own device."""
    if not like.is_cuda or like.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device_of(like)


@cache
def _parts_of(plan_text: str, fast: bool, backward: bool) -> tuple[Any, Spec]:
    """Return the cell and the spec of a pass of a plan."""
    from elman.ops.matrix_state.triton.cells import CELLS

    plan = parse(plan_text)
    cell = CELLS[plan.cell]
    return cell, spec_of(plan, cell.kind, fast=fast, backward=backward)


@cache
def _tile(plan_text: str, backward: bool) -> Tile:
    return tile_of(parse(plan_text), backward=backward)


def _forward(call: Call, fast: bool, run: Callable[[Launch], None]) -> None:
    from elman.ops.matrix_state.triton.forward import matrix_forward

    cell, spec = _parts_of(call.plan.text, fast, False)
    tile, states = _tile(call.plan.text, False), call.args.B * call.plan.heads
    prepared = prepared_of(call.plan, tile, backward=False)
    arguments = (
        _prepared(call, prepared, spec, run),
        _parameters_of_loop(call.plan, call.parameters, prepared),
        *(call.kept.get(name) for name in _OF_FORWARD),
        call.args.T,
        states,
        cell.step,
        of_loop(spec, prepared),
        tile,
    )
    run(Launch(matrix_forward, (states * tile.row_tiles,), arguments, tile.warps))


def _sources(call: Call) -> Any:
    """Return where the roles lie in the sources."""
    from elman.ops.matrix_state.triton.places import Roles

    found = {}
    for name, place in call.plan.roles:
        found[name] = _sequence(call.sources_btc[place.source], place.start)
    return Roles(**found)


def _sequence(whole_btc: Tensor, start: int) -> Any:
    return _where(whole_btc[..., start:], *whole_btc.stride()[:2])


def _where(data: Tensor, batch: int, time: int, tile: int = 0) -> Any:
    """Return a place with its strides; that of time, or none at all, is compiled into a kernel.

    It depends on the channels of a source alone. A step of a group then differs from the first in
    a number that stands in the instruction, and costs no arithmetic.
    """
    import triton.language as tl

    from elman.ops.matrix_state.triton.places import Sequence

    return Sequence(data, batch, tl.constexpr(time), tile or tl.constexpr(0))


def _prepared(call: Call, names: tuple[str, ...], spec: Spec, run: Callable[[Launch], None]) -> Any:
    """Prepare roles, and return where the loop over time finds all of them."""
    roles = _sources(call)
    found = {}
    for name in names:
        found[name] = _sequence(_room(call, name, _prepared_dtype(name, spec)), 0)
        run(_prepare(call, name, getattr(roles, name), found[name], spec))
    return roles._replace(**found)


def _prepared_dtype(name: str, spec: Spec) -> torch.dtype:
    """Return the dtype of a prepared role: fp16 has three bits more than bf16, up to 1."""
    is_unit = {"k": spec.k_unit, "q": spec.q_unit}.get(name, False)
    return torch.float16 if spec.fast and is_unit else torch.float32


def _part_dtype(name: str, call: Call) -> torch.dtype:
    """Return the dtype of the parts of a gradient: on columns, that of the gradient itself."""
    return torch.float32 if name in _OF_HEADS else call.like.dtype


def _room(call: Call, name: str, dtype: torch.dtype, *parts: int) -> Tensor:
    """Return room for a role, or for parts of its gradient."""
    channels = call.plan.heads * call.plan.width(name)
    shape = (*parts, call.args.B, call.args.T, channels)
    return torch.empty(shape, dtype=dtype, device=call.like.device)


def _prepare(call: Call, name: str, source: Any, to: Any, spec: Spec) -> Launch:
    """Return the launch that prepares a role."""
    from elman.ops.matrix_state.triton.around import prepare_decays, prepare_vectors

    if name == "decay":
        given = (source, to, *_of_decay(call, call.parameters), call.args.T)
        constants = (spec.heads, _DECAY_STEPS, spec.decay, spec.fast)
        programs = call.args.B * spec.heads
        return Launch(prepare_decays, (programs,), (*given, *constants), _DECAY_WARPS)
    sizes, programs = _vector_sizes(call, name)
    bias = _parameters(call.plan, call.parameters).z_bias if name == "z" else None
    arguments = (source, to, bias, *sizes, *_vector_constants(name, spec))
    return Launch(prepare_vectors, (programs,), arguments, _VECTOR_WARPS)


def _prepare_back(
    call: Call, name: str, parts_pbtc: Tensor, grad: Any, shares: Sequence[Tensor], spec: Spec
) -> Launch:
    """Return the launch that goes from the parts of a prepared role's gradient to the role's."""
    from elman.ops.matrix_state.triton.around import decays_back, vectors_back

    source, count = getattr(_sources(call), name), parts_pbtc.shape[0]
    if name == "decay":
        parameters = (*_of_decay(call, call.parameters), *_of_decay(call, shares))
        given = (source, _parts(parts_pbtc), grad, *parameters, call.args.T)
        constants = (count, spec.heads, _DECAY_STEPS, spec.decay, spec.fast)
        programs = call.args.B * spec.heads
        return Launch(decays_back, (programs,), (*given, *constants), _DECAY_WARPS)
    (rows, steps, *sizes), programs = _vector_sizes(call, name)
    given = (source, _parts(parts_pbtc), grad, rows, steps, count, *sizes)
    constants = _vector_constants(name, spec)
    return Launch(vectors_back, (programs,), (*given, *constants), _VECTOR_WARPS)


def _of_decay(call: Call, tensors: Sequence[Tensor | None]) -> tuple[Any, Any]:
    """Return, of a tensor for each parameter, those of the decay's map."""
    found = _parameters(call.plan, tensors)
    return found.decay, found.dt_bias


def _vector_sizes(call: Call, name: str) -> tuple[tuple[int, ...], int]:
    """Return rows, steps, heads, width and vectors of a program, and how many programs run."""
    plan, rows = call.plan, call.args.B * call.args.T
    width = plan.width(name)
    block = max(1, _VECTOR_NUMBERS // power_of_two(width))
    return (rows, call.args.T, plan.heads, width, block), -(-rows * plan.heads // block)


def _vector_constants(name: str, spec: Spec) -> tuple[str, bool, bool]:
    if name == "v":
        return spec.v_act, False, spec.fast
    if name == "z":
        return spec.z_act, False, spec.fast
    if name == "k":
        return spec.k_act, spec.k_unit, spec.fast
    return spec.q_act, spec.q_unit, spec.fast


def _parts(parts_pbtc: Tensor) -> Any:
    """Return where parts of a gradient lie, the first of which is the first row tile's."""
    part, batch, time, _ = parts_pbtc.stride()
    return _where(parts_pbtc, batch, time, part)


def _parameters_of_loop(
    plan: Plan, given: Sequence[Tensor | None], prepared: tuple[str, ...]
) -> Any:
    """Return the parameters that the loop over time takes: not those of what was prepared."""
    gone = {name: None for role in prepared for name in _PARAMETERS_OF.get(role, ())}
    return _parameters(plan, given)._replace(**gone)


def _parameters(plan: Plan, given: Sequence[Tensor | None]) -> Any:
    from elman.ops.matrix_state.triton.inputs import Parameters

    return Parameters(**dict(zip(plan.parameter_names, given, strict=True)))


@dataclass
class _Gradients:
    """Where the backward kernel writes the gradients of sequences, and what is left to sum.

    A slice of a source has several parts if several roles or several row tiles read it. They are
    kept one after the other, and added in fp32 at the end.

    Args:
        call: The call.
        tile: The tile of a program.
        prepared: The roles that were prepared, whose parts are gradients of what the loop took.
    """

    call: Call
    tile: Tile
    prepared: tuple[str, ...]
    sums: list[tuple[Tensor, Any, int]] = field(init=False, default_factory=list)
    backs: list[tuple[str, Tensor, Any]] = field(init=False, default_factory=list)

    def places(self) -> Any:
        """Return where the gradient of each role goes."""
        from elman.ops.matrix_state.triton.places import Roles

        plan = self.call.plan
        slices: dict[tuple[Slice, int], list[str]] = {}
        for name, place in plan.roles:
            slices.setdefault((place, plan.width(name)), []).append(name)
        found: dict[str, Any] = {}
        for (place, width), names in slices.items():
            found |= self._of_slice(place, width, names)
        for name in self.prepared:
            dtype = _part_dtype(name, self.call)
            tiles = self.tile.row_tiles if name in _SHARED else 1
            parts_pbtc = _room(self.call, name, dtype, tiles)
            self.backs.append((name, parts_pbtc, found[name]))
            found[name] = _parts(parts_pbtc)
        return Roles(**found)

    def _count(self, name: str) -> int:
        """Return how many parts of a role's gradient there are in the end."""
        return self.tile.row_tiles if name in _SHARED - set(self.prepared) else 1

    def _of_slice(self, place: Slice, width: int, names: Sequence[str]) -> dict[str, Any]:
        source = _sequence(self.call.dsources_btc[place.source], place.start)
        counts = [self._count(name) for name in names]
        if sum(counts) == 1:
            return {names[0]: source}
        dtype = _part_dtype(names[0], self.call)
        parts_pbtc = _room(self.call, names[0], dtype, sum(counts))
        self.sums.append((parts_pbtc, source, self.call.plan.heads * width))
        found, before = {}, 0
        for name, count in zip(names, counts, strict=True):
            found[name] = _parts(parts_pbtc[before:])
            before += count
        return found

    def finish(self, shares: Sequence[Tensor], spec: Spec, run: Callable[[Launch], None]) -> None:
        """Go back through what was prepared, and sum the parts of every slice that has several."""
        from elman.ops.matrix_state.triton.around import sum_parts

        for name, parts_pbtc, grad in self.backs:
            run(_prepare_back(self.call, name, parts_pbtc, grad, shares, spec))
        if not self.sums:
            return
        partials, grads, widths = zip(*self.sums, strict=True)
        parts, rows = tuple(one.shape[0] for one in partials), self.call.args.B * self.call.args.T
        programs = (-(-rows * max(widths) // _SUM_BLOCK), len(parts))
        arguments = (partials, grads, rows, self.call.args.T, parts, widths, _SUM_BLOCK)
        run(Launch(sum_parts, programs, arguments, _SUM_WARPS))


def _shares(call: Call, tile: Tile, prepared: tuple[str, ...]) -> list[Tensor]:
    """Return room for each program's share of the gradients of parameters."""
    plan, batch = call.plan, call.args.B
    single = _OF_ROWS | set(_PARAMETERS_OF["decay"]) if "decay" in prepared else _OF_ROWS
    found = []
    for name in plan.parameter_names:
        shares = batch if name in single else batch * tile.row_tiles
        shape = (shares, *plan.parameter_shape(name))
        found.append(torch.empty(shape, dtype=torch.float32, device=call.like.device))
    return found


def _sum_shares(call: Call, shares: Sequence[Tensor], run: Callable[[Launch], None]) -> None:
    """Add the programs' shares of the gradients of parameters."""
    from elman.ops.matrix_state.triton.around import sum_shares

    if not shares:
        return
    tiles = tuple(share.shape[0] // call.args.B for share in shares)
    sizes = tuple(one.numel() for one in call.dparameters)
    widths = tuple(min(_SHARE_WIDTH, power_of_two(size)) for size in sizes)
    programs = (-(-max(sizes) // _SHARE_WIDTH), len(sizes))
    given = (tuple(shares), tuple(call.dparameters), call.args.B)
    arguments = (*given, tiles, sizes, _SHARE_BLOCK, widths)
    run(Launch(sum_shares, programs, arguments, _SHARE_WARPS))


def _scratch(call: Call, tile: Tile, programs: int, spec: Spec) -> Any:
    """Return where the programs of the backward pass keep the steps of a segment.

    Packed states have two numbers in one of 32 bits.
    """
    from elman.ops.matrix_state.triton.backward import Room

    steps, device = (programs, tile.kept_steps, tile.rows), call.like.device
    width, dtype = tile.columns, torch.float32
    if spec.packs:
        width, dtype = width // 2, torch.int32
    states = torch.empty((*steps, width), dtype=dtype, device=device)
    wanted = spec.reads and not spec.kept_reads
    reads = torch.empty(steps, dtype=torch.float32, device=device) if wanted else None
    return Room(states, reads)


def _kept_read(call: Call) -> Any:
    """Return where the forward pass kept what its steps read, or None."""
    reads_bthv = call.kept.get("reads")
    return None if reads_bthv is None else _where(reads_bthv, *reads_bthv.stride()[:2])


def _backward(call: Call, fast: bool, run: Callable[[Launch], None]) -> None:
    from elman.ops.matrix_state.triton.backward import matrix_backward
    from elman.ops.matrix_state.triton.backward_overlapped import matrix_backward_overlapped

    cell, spec = _parts_of(call.plan.text, fast, True)
    tile, states = _tile(call.plan.text, True), call.args.B * call.plan.heads
    programs, dout = states * tile.row_tiles, call.kept.get("dout")
    prepared = prepared_of(call.plan, tile, backward=True)
    gone_through = tuple(name for name in prepared if name not in _OF_LOOP)
    gradients, shares = _Gradients(call, tile, gone_through), _shares(call, tile, prepared)
    of_walk = of_loop(spec, prepared, kept_reads="reads" in call.kept)
    kernel = matrix_backward_overlapped if tile.overlapped else matrix_backward
    arguments = (
        _prepared(call, prepared, spec, run)._replace(kept_read=_kept_read(call)),
        _parameters_of_loop(call.plan, call.parameters, prepared),
        gradients.places(),
        _parameters_of_loop(call.plan, shares, gone_through),
        *(call.kept.get(name) for name in ("first", "dfirst", "dlast")),
        None if dout is None else _where(dout, *dout.stride()[:2]),
        *(call.kept.get(name) for name in ("checkpoints", "resets")),
        _scratch(call, tile, programs, of_walk),
        call.args.T,
        states,
        cell.step,
        cell.back,
        of_walk,
        tile,
    )
    run(Launch(kernel, (programs,), arguments, tile.warps))
    gradients.finish(shares, spec, run)
    _sum_shares(call, shares, run)
