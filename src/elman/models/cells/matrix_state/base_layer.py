"""Base of the cells E63m and E70 to E75: projections, state and output around a recurrence.

Shape legend: b batch, t time, d model width, i = int(d * expansion) inner channels, h heads,
n rows and columns of a head's state, v its rows, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.common.mixer import TextLayer
from elman.models.cells.common.skeleton import Skeleton
from elman.models.state import State
from elman.ops.common.checks import Shape
from elman.ops.common.precision import cast, compute_dtype
from elman.ops.common.slices import row_blocks
from elman.ops.linear import linear
from elman.ops.matrix_state.cuda.kernels import calls_at_once
from elman.ops.matrix_state.decays import decays
from elman.ops.matrix_state.op import run
from elman.ops.matrix_state.plan import Plan
from elman.ops.silu_linear import silu_linear


class MatrixMixer(Skeleton):
    """u = W_in x, [conv], c = silu(u), a cell on projections of c, y = W_out out.

    This is scaffold A of matrix-state specification 2. A cell names its projections
    (:meth:`row_blocks`), its constants, and what the engine computes from them
    (:meth:`choose_plan`, :meth:`plan_parameters`).

    State: ``S`` [B, H, value rows, key columns] in fp32 or wider, and with use_conv ``conv``.
    """

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the cell's projection and the constants, and choose the plan."""
        self.add_projection(to)
        self.plan = self.choose_plan()

    def add_projection(self, to: Mapping[str, Any]) -> None:
        """Register the cell's projection and the constants."""
        self.blocks = self.row_blocks()
        rows = sum(self.blocks.values())
        self.cell_proj = nn.Parameter(torch.empty(rows, self.cell_inputs(), **to))
        for name, (length, _) in self.constants().items():
            self.register_parameter(name, nn.Parameter(torch.empty(length, **to)))

    @property
    def size(self) -> int:
        """Rows and columns of the state, as the option gives them."""
        return self.settings.count("n_state")

    @property
    def heads(self) -> int:
        """Number of heads; each has its own state."""
        return 1

    def cell_inputs(self) -> int:
        """Return the number of input channels of the cell's projection."""
        return self.width

    def state_shape(self) -> tuple[int, int]:
        """Return rows and columns of a head's state."""
        return self.size, self.size

    def cell_state(self) -> dict[str, Shape]:
        """Return the shape of S."""
        return {"S": (self.heads, *self.state_shape())}

    def row_blocks(self) -> dict[str, int]:
        """Return the row blocks of the cell's projection and their heights, in order."""
        raise NotImplementedError

    def choose_plan(self) -> Plan:
        """Return what one call of the engine computes from the cell's projection."""
        raise NotImplementedError

    def plan_of(self, cell: str, roles: Mapping[str, str], **choices: Any) -> Plan:
        """Return a plan over the cell's projection, self-gated unless ``choices`` say otherwise.

        Args:
            cell: Name in :data:`elman.ops.matrix_state.recurrences.CELLS`.
            roles: Row block of each role of the plan.
            choices: The plan's other fields.
        """
        places = row_blocks(self.blocks)
        found = tuple((role, places[block]) for role, block in roles.items())
        sizes = (self.heads, *self.state_shape())
        return Plan(cell, *sizes, found, **{"self_gate": True} | choices)

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the plan's parameters by name; only the order of their elements matters."""
        return {}

    def output_channels(self) -> int:
        """Return the number of input channels of the output projection."""
        return self.heads * self.state_shape()[0]

    def blocks_per_head(self) -> bool:
        """Return whether each head's rows have their own Xavier bound, not the whole row block."""
        return False

    def dropout_after(self) -> bool:
        """Return whether dropout comes after the output projection instead of before it."""
        return False

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the parameters that start at a constant: name, length and that constant."""
        return {}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew, each block of the cell's projection by itself."""
        self.reset_input()
        for block in torch.split(self.cell_proj, list(self.blocks.values())):
            init.xavier_blocks_(block, self.heads if self.blocks_per_head() else 1)
        for name, (_, value) in self.constants().items():
            nn.init.constant_(self.get_parameter(name), value)
        self.reset_projection(self.out_proj)

    def calls_at_once(self, batch: int, dtype: torch.dtype, device: torch.device) -> float:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        if self._backend_on(device.type) != "cuda":
            return 1
        return calls_at_once(self.plan, batch, dtype, device.index)

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        call = self._call(x_btd, state, carried, resets_bt)
        out_bthv, carried["S"] = run(*call, backend=self.backend_for(x_btd), resets_bt=resets_bt)
        out_btc = out_bthv.flatten(-2)
        return self.output(cast(out_btc, compute_dtype(x_btd, self.out_proj.dtype))), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each head, of its rows or of its columns; None without one."""
        call = self._call(x_btd, self.begin(x_btd, state), {}, resets_bt)
        return decays(*call, backend=self.backend_for(x_btd), resets_bt=resets_bt)

    def _call(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> tuple[Plan, list[Tensor], dict[str, Tensor], Tensor | None]:
        """Return plan, sources, parameters and first state: what the engine is called with."""
        sources = self.project(x_btd, state, carried, resets_bt)
        parameters = {
            name: _shaped(parameter, self.plan.parameter_shape(name))
            for name, parameter in self.plan_parameters().items()
        }
        return self.plan, sources, parameters, state.get("S")

    def text_layer(self) -> TextLayer | None:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        own = (MatrixMixer.forward, MatrixMixer.project, MatrixMixer.project_cell)
        if (type(self).forward, type(self).project, type(self).project_cell) != own:
            return None
        return TextLayer(
            self.plan,
            self.in_proj,
            self.out_proj,
            self.plan_parameters(),
            self.conv,
            self.cell_matrix(),
            self.activated(),
        )

    def project(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> list[Tensor]:
        """Return the plan's sources, for all steps at once."""
        return [self.project_cell(x_btd, state, carried, resets_bt)]

    def project_cell(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> Tensor:
        """Return the output of the cell's projection."""
        (u_bti,) = self.project_in(x_btd, state, carried, resets_bt)
        # A constrained matrix has a wider dtype than its parameter.
        matrix_ci = self.cell_matrix().to(self.cell_proj.dtype)
        if self.activated():
            return silu_linear(u_bti, matrix_ci)
        return linear(u_bti, matrix_ci)

    def activated(self) -> bool:
        """Return whether silu is applied before the cell's projection."""
        return True

    def cell_matrix(self) -> Tensor:
        """Return the matrix of the cell's projection as it is used."""
        return self.cell_proj

    def output(self, out_btc: Tensor) -> Tensor:
        """Project the gated reads, with dropout."""
        if self.dropout_after():
            y_btd: Tensor = self.dropout(linear(out_btc, self.out_proj))
            return y_btd
        return self.project_out(out_btc)


def _shaped(parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a parameter in a shape; a view costs autograd time, so only if the shape differs."""
    return parameter if parameter.shape == shape else parameter.reshape(shape)
