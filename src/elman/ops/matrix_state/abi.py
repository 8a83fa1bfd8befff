"""The arguments of a matrix-state kernel, as csrc/abi/matrix_state.h declares them.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch
from torch import Tensor

from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.native import words_of
from elman.ops.matrix_state.plan import PARAMETERS, ROLES, Plan, parse


class SequenceArgs(ctypes.Structure):
    """A role: a slice of a source and of its gradient."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "time", "grad_batch", "grad_time")),
    )


class ParameterArgs(ctypes.Structure):
    """A parameter and its gradient."""

    _fields_ = (("data", ctypes.c_void_p), ("grad", ctypes.c_void_p))


_STATES = ("first", "last", "dlast", "dfirst", "out", "dout")
_SIZES = ("B", "T", "H", "R", "N", "K", "threads")


class MatrixArgs(ctypes.Structure):
    """One call."""

    _fields_ = (
        ("role", SequenceArgs * len(ROLES)),
        ("param", ParameterArgs * len(PARAMETERS)),
        *((name, ctypes.c_void_p) for name in _STATES),
        ("dout_batch", ctypes.c_int64),
        ("dout_time", ctypes.c_int64),
        ("checkpoints", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("resets", ctypes.c_void_p),
    )


@cache
def layouts() -> str:
    """Return C++ text that refuses to compile where a mirror is wrong."""
    mirrors = {"Sequence": SequenceArgs, "Parameter": ParameterArgs, "Args": MatrixArgs}
    return "".join(layout_assertions(f"elman::{name}", one) for name, one in mirrors.items())


_ROLE, _PARAM, _ARGS = (words_of(m) for m in (SequenceArgs, ParameterArgs, MatrixArgs))
_NOTHING = bytes(ctypes.sizeof(MatrixArgs))
_GRAD, _GRAD_BATCH, _GRAD_TIME = (_ROLE[name] for name in ("grad", "grad_batch", "grad_time"))
_PARAM_GRAD = _PARAM["grad"]
assert _ROLE["data"] == _PARAM["data"] == 0, "a tensor's address is its first word"


@dataclass(frozen=True)
class _Layout:
    """Where among the words of :class:`MatrixArgs` a plan's tensors stand.

    Args:
        roles: The first word of every role, its source and where in that it starts.
        parameters: The first word of every parameter, and its shape.
        read: Words with an address, and words with a distance in numbers, of all that is read
            or written by rows: in a forward pass.
        written: The same of what the backward pass has beside it.
    """

    roles: tuple[tuple[int, int, int], ...]
    parameters: tuple[tuple[int, tuple[int, ...]], ...]
    read: tuple[tuple[int, ...], tuple[int, ...]]
    written: tuple[tuple[int, ...], tuple[int, ...]]


@cache
def _layout(plan_text: str) -> _Layout:
    plan = parse(plan_text)
    size = len(_ROLE)
    first = {name: _ARGS["role"] + size * ROLES.index(name) for name, _ in plan.roles}
    # Roles on one slice have one address, those of one source have its distances.
    wide = {name: place for name, place in plan.roles if plan.width(name) > 1}
    rows = {place: first[name] for name, place in wide.items()}.values()
    sources = {place.source: first[name] for name, place in wide.items()}.values()

    def words(places: Iterable[int], *names: str) -> tuple[int, ...]:
        return tuple(at + _ROLE[name] for at in places for name in names)

    return _Layout(
        tuple((first[name], place.source, place.start) for name, place in plan.roles),
        tuple(
            (_ARGS["param"] + len(_PARAM) * PARAMETERS.index(name), plan.parameter_shape(name))
            for name in plan.parameter_names
        ),
        (words(rows, "data"), words(sources, "batch", "time")),
        (
            (*words(rows, "grad"), _ARGS["dout"]),
            (*words(sources, "grad_batch", "grad_time"), _ARGS["dout_batch"], _ARGS["dout_time"]),
        ),
    )


# Training has a handful of shapes, generation one more for every length of a prompt.
@lru_cache(maxsize=256)
def _sized(
    plan_text: str,
    segment: int,
    sources: tuple[tuple[torch.Size, tuple[int, ...]], ...],
    parameters: tuple[torch.Size, ...],
) -> array[int]:
    """Return the words of a call but for its addresses, which alone differ from call to call.

    Args:
        plan_text: ``Plan.text``.
        segment: Steps between checkpoints.
        sources: Their shapes and distances.
        parameters: Their shapes.
    """
    plan, layout = parse(plan_text), _layout(plan_text)
    words = array("q", _NOTHING)
    batch, steps, _ = sources[0][0]
    sizes = (batch, steps, plan.heads, plan.rows, plan.columns, segment, 1)
    for name, size in zip(_SIZES, sizes, strict=True):
        words[_ARGS[name]] = size
    for end, (shape, distances) in zip(plan.channels, sources, strict=False):
        assert shape[:2] == (batch, steps), (plan, shape)
        assert shape[2] >= end, (plan, shape)
        assert distances[2] == 1, (plan, distances)
    for at, source, _ in layout.roles:
        words[at + _ROLE["batch"]], words[at + _ROLE["time"]] = sources[source][1][:2]
    wanted = tuple(shape for _, shape in layout.parameters)
    assert parameters == wanted, (plan, parameters)
    return words


def row_bits(plan: Plan, words: array[int], n_bytes: int, *, backward: bool) -> int:
    """Return all addresses and distances of a pass's rows, or'ed bit by bit.

    Args:
        plan: What is computed.
        words: The call's.
        n_bytes: Bytes of a number, a power of two.
        backward: Which pass.
    """
    layout = _layout(plan.text)
    places = distances = 0
    for part in (layout.read, layout.written) if backward else (layout.read,):
        for word in part[0]:
            places |= words[word]
        for word in part[1]:
            distances |= words[word]
    return places | distances * n_bytes


def kept_dtype(plan: Plan, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a GPU's checkpoints; tanh keeps them in [-1, 1], fp16 is finer there."""
    if dtype != torch.bfloat16:
        return dtype
    return torch.float16 if plan.nonlinearity == "tanh" else torch.bfloat16


@dataclass
class Call:
    """One call of a kernel: its arguments, and the tensors that they point to.

    Args:
        plan: What is computed.
        sources_btc: Sequences, each with its channels adjacent.
        parameters: In the order of ``Plan.parameter_names``, contiguous.
        segment: Steps between checkpoints.

    Attributes:
        args: The arguments.
        words: The same memory as numbers.
        kept: The tensors that arguments point to, by the argument's name.
        dsources_btc: Where the gradients of the sources go, in a backward pass.
        dparameters: Where those of the parameters go.
        resets: Whether it has resets, which other kernels read.
    """

    plan: Plan
    sources_btc: Sequence[Tensor]
    parameters: Sequence[Tensor]
    segment: int
    args: MatrixArgs = field(init=False)
    words: array[int] = field(init=False)
    kept: dict[str, Tensor] = field(init=False, default_factory=dict)
    dsources_btc: Sequence[Tensor] = field(init=False, default=())
    dparameters: Sequence[Tensor] = field(init=False, default=())
    resets: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        text, sources = self.plan.text, self.sources_btc
        layout = _layout(text)
        lying = tuple([(source.shape, source.stride()) for source in sources])
        shapes = tuple([parameter.shape for parameter in self.parameters])
        words = self.words = _sized(text, self.segment, lying, shapes)[:]
        self.args = MatrixArgs.from_buffer(words)
        addresses = [source.data_ptr() for source in sources]
        n_bytes = sources[0].element_size()
        for at, source, start in layout.roles:  # the address is a role's first word
            words[at] = addresses[source] + start * n_bytes
        for (at, _), parameter in zip(layout.parameters, self.parameters, strict=True):
            assert parameter.is_contiguous(), (self.plan, at)
            words[at] = parameter.data_ptr()

    @property
    def like(self) -> Tensor:
        """A tensor of the sources' dtype and device."""
        return self.sources_btc[0]

    def point(self, **tensors: Tensor | None) -> None:
        """Set arguments that are one contiguous tensor each, or absent."""
        for name, tensor in tensors.items():
            if tensor is None:
                self.words[_ARGS[name]] = 0
            else:
                assert tensor.is_contiguous(), name
                self.kept[name] = tensor
                self.words[_ARGS[name]] = tensor.data_ptr()

    def point_resets(self, resets_bt: Tensor) -> None:
        """Set the mask of resets."""
        self.resets = True
        self.point(resets=resets_bt)

    def keep_reads(self, reads_bthv: Tensor) -> None:
        """Set what each step reads of the old state; no number where it is not kept."""
        if reads_bthv.numel():
            self.kept["reads"] = reads_bthv

    def point_output_gradient(self, dout_bthv: Tensor) -> None:
        """Set the output's gradient; a view is copied only if its heads or rows have gaps."""
        distances = dout_bthv.stride()
        if distances[2] != self.plan.rows or distances[3] != 1:
            dout_bthv = dout_bthv.contiguous()
            distances = dout_bthv.stride()
        self.kept["dout"] = dout_bthv
        words = self.words
        words[_ARGS["dout"]] = dout_bthv.data_ptr()
        words[_ARGS["dout_batch"]], words[_ARGS["dout_time"]] = distances[:2]

    def point_gradients(
        self, dsources_btc: Sequence[Tensor], dparameters: Sequence[Tensor]
    ) -> None:
        """Set where the gradients of sources and parameters go."""
        self.dsources_btc, self.dparameters = dsources_btc, dparameters
        words, layout = self.words, _layout(self.plan.text)
        addresses = [target.data_ptr() for target in dsources_btc]
        distances = [target.stride() for target in dsources_btc]
        n_bytes = dsources_btc[0].element_size()
        for at, source, start in layout.roles:
            words[at + _GRAD] = addresses[source] + start * n_bytes
            words[at + _GRAD_BATCH], words[at + _GRAD_TIME], _ = distances[source]
        for (at, _), gradient in zip(layout.parameters, dparameters, strict=True):
            words[at + _PARAM_GRAD] = gradient.data_ptr()

    def give_workspace(self, n_bytes: int) -> None:
        """Set a workspace of so many bytes."""
        like = self.like
        size = like.element_size()
        numbers = (n_bytes + size - 1) // size
        self.point(workspace=torch.empty(numbers, dtype=like.dtype, device=like.device))
