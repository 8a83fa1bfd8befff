"""The arguments of a matrix-state kernel, as csrc/args.h declares them.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elman.ops.matrix_state.plan import PARAMETERS, ROLES, Plan
from elman.ops.native import check_layout, pointer


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
    )


def check_layouts(library: ctypes.CDLL) -> None:
    """Compare the mirrors with what a library was compiled with."""
    check_layout(library, "elman_sequence_layout", SequenceArgs)
    check_layout(library, "elman_parameter_layout", ParameterArgs)
    check_layout(library, "elman_args_layout", MatrixArgs)


@dataclass
class Call:
    """One call of a kernel: its arguments, and the tensors that they point to.

    Args:
        plan: What is computed.
        sources_btc: Sequences, each with its channels adjacent.
        parameters: In the order of ``Plan.parameter_names``, contiguous.
        segment: Steps between checkpoints.
    """

    plan: Plan
    sources_btc: Sequence[Tensor]
    parameters: Sequence[Tensor]
    segment: int
    args: MatrixArgs = field(init=False)
    kept: list[Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        batch, steps, _ = self.sources_btc[0].shape
        sizes = (batch, steps, plan.heads, plan.rows, plan.columns, self.segment, 1)
        self.args = MatrixArgs(**dict(zip(_SIZES, sizes, strict=True)))
        for name, place in plan.roles:
            source = self.sources_btc[place.source]
            end = place.start + plan.heads * plan.width(name)
            assert source.shape[:2] == (batch, steps), (plan, source.shape)
            assert end <= source.shape[2], (plan, name, source.shape)
            assert source.stride(2) == 1, (plan, name, source.stride())
            role = self.args.role[ROLES.index(name)]
            role.data = source.data_ptr() + place.start * source.element_size()
            role.batch, role.time = source.stride()[:2]
        for name, parameter in zip(plan.parameter_names, self.parameters, strict=True):
            assert parameter.shape == plan.parameter_shape(name), (plan, name, parameter.shape)
            assert parameter.is_contiguous(), name
            self.args.param[PARAMETERS.index(name)].data = parameter.data_ptr()

    @property
    def like(self) -> Tensor:
        """A tensor of the sources' dtype and device."""
        return self.sources_btc[0]

    def point(self, **tensors: Tensor | None) -> None:
        """Set arguments that are one contiguous tensor each, or absent."""
        for name, tensor in tensors.items():
            if tensor is not None:
                assert tensor.is_contiguous(), name
                self.kept.append(tensor)
            setattr(self.args, name, pointer(tensor))

    def point_output_gradient(self, dout_bthv: Tensor) -> None:
        """Set the output's gradient; a view is copied only if its heads or rows have gaps."""
        rows = self.plan.rows
        if dout_bthv.stride()[2:] != (rows, 1):
            dout_bthv = dout_bthv.contiguous()
        self.kept.append(dout_bthv)
        self.args.dout = dout_bthv.data_ptr()
        self.args.dout_batch, self.args.dout_time = dout_bthv.stride()[:2]

    def point_gradients(
        self, dsources_btc: Sequence[Tensor], dparameters: Sequence[Tensor]
    ) -> None:
        """Set where the gradients of sources and parameters go."""
        for name, place in self.plan.roles:
            target = dsources_btc[place.source]
            role = self.args.role[ROLES.index(name)]
            role.grad = target.data_ptr() + place.start * target.element_size()
            role.grad_batch, role.grad_time = target.stride()[:2]
        for name, gradient in zip(self.plan.parameter_names, dparameters, strict=True):
            self.args.param[PARAMETERS.index(name)].grad = gradient.data_ptr()

    def give_workspace(self, n_bytes: int) -> None:
        """Set a workspace of so many bytes."""
        size = self.like.element_size()
        shape = ((n_bytes + size - 1) // size,)
        self.point(workspace=torch.empty(shape, dtype=self.like.dtype, device=self.like.device))
