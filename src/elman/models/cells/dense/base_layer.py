"""Base of the layers with a dense recurrent matrix: forward pass, initialization, constraint.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.spectral_norm import SpectralNorm
from elman.models.cells.common.skeleton import Skeleton
from elman.models.state import State, first_state
from elman.ops.column_sum.op import biased_linear
from elman.ops.dense.cuda.kernels import calls_at_once
from elman.ops.dense.op import elman
from elman.ops.silu_gate.op import gate, self_gate


class DenseLayer(Skeleton):
    """A projection in, a recurrence of width i, a gate and a projection out.

    With one branch the output is gated by itself, h silu(h); with two the second half of the
    first projection gates it, h silu(z) (vector-state specification 2.2). State: ``h`` [B, i] in
    fp32 or wider, and with use_conv ``conv``.
    """

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        backend = self.backend_for(x_btd)
        u_bti, *z_bti = self.project_in_silu(x_btd, state, carried, resets_bt, backend)
        h_bi = first_state(state.get("h"), u_bti, self.width)
        h_bti, carried["h"] = self.recur(u_bti, h_bi, backend, resets_bt)
        if z_bti:
            o_bti = gate(h_bti, z_bti[0], backend=backend)
        else:
            o_bti = self_gate(h_bti, u_bti.dtype, backend=backend)
        return self.project_out(o_bti), carried

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider.

        Args:
            u_bti: Inputs of the cell.
            h_bi: State before the first step.
            backend: Name of the implementation.
            resets_bt: Where the state before a step is zero; None is nowhere.
        """
        raise NotImplementedError

    def step_with_one_matrix(self) -> str | None:
        """Return the name of the engine's step where it reads one whole matrix, else None."""
        return None

    def calls_at_once(self, batch: int, dtype: torch.dtype, device: torch.device) -> float:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        step = self.step_with_one_matrix()
        if step is None or self._backend_on(device.type) != "cuda":
            return 1
        return calls_at_once(step, dtype, batch, self.width, device.index)


class NormedLayer(DenseLayer):
    """A recurrent matrix whose largest singular value recurrent_norm=spectral fixes.

    Attributes:
        norm: The constraint; None leaves the matrix free.
    """

    norm: SpectralNorm | None

    def add_norm(self, to: Mapping[str, Any]) -> None:
        """Register the constraint, if there is one."""
        given = self.settings
        self.norm = (
            SpectralNorm(self.width, given.number("spectral_radius"), **to)
            if given.word("recurrent_norm") == "spectral"
            else None
        )

    def normed(self) -> tuple[Tensor, ...]:
        """Return the stored matrix as its factors, one or more."""
        raise NotImplementedError

    def reset_norm(self) -> None:
        """Draw the direction of the power iteration anew."""
        if self.norm is not None:
            self.norm.reset(*self.normed())

    def begin_step(self) -> None:
        """Advance the power iteration with the weights of this optimizer step."""
        if self.norm is not None:
            self.norm.advance(*self.normed())


class DenseMixer(NormedLayer):
    """h' = phi(drive + W h) with one square matrix W, free or held at a largest singular value.

    The class attributes define the cell. ``linear``: whether phi is the identity instead of tanh.
    ``drive``: the drive term (``matrix`` W_x u + b, ``tied`` W u + b, ``input`` only u).
    """

    linear: ClassVar[bool] = False
    drive: ClassVar[Literal["matrix", "tied", "input"]] = "matrix"

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the matrices, the bias and the constraint."""
        i = self.width
        self.input = nn.Parameter(torch.empty(i, i, **to)) if self.drive == "matrix" else None
        self.recurrent = nn.Parameter(torch.empty(i, i, **to))
        self.bias = None if self.drive == "input" else nn.Parameter(torch.empty(i, **to))
        self.add_norm(to)

    def normed(self) -> tuple[Tensor, ...]:
        """Return W."""
        return (self.recurrent,)

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        if self.input is not None:
            self.reset_projection(self.input)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        start = self.settings.word("mamba2_init")
        if start == "s4d":
            self.reset_slow()
        elif start == "normal":
            init.orthogonal_(self.recurrent, self.orthogonal_start())
        else:
            init.xavier_(self.recurrent, self.settings.number("recurrent_gain"))
        self.reset_norm()

    def reset_slow(self) -> None:
        """Draw the recurrent matrix of mamba2_init=s4d."""
        init.s4d_(self.recurrent)

    def orthogonal_start(self) -> float:
        """Return the singular values of the recurrent matrix under mamba2_init=normal."""
        return 0.999

    def recurrent_matrix(self, backend: str = "reference") -> Tensor:
        """Return the matrix that the recurrence uses."""
        return self.recurrent if self.norm is None else self.norm(self.recurrent, backend)

    def step_with_one_matrix(self) -> str:
        """See :class:`DenseLayer`."""
        return "linear" if self.linear else "tanh"

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        matrix = self.recurrent_matrix(backend)
        driven_bti = u_bti
        if self.drive != "input":
            # A tied matrix is the constrained one in both of its uses.
            weight = matrix.to(self.recurrent.dtype) if self.input is None else self.input
            driven_bti = biased_linear(u_bti, weight, self.bias, backend=backend)
        return elman(
            driven_bti, matrix, h_bi, linear=self.linear, backend=backend, resets_bt=resets_bt
        )
