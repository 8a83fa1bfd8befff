"""Layer E23: Elman recurrence with a tape of memory slots, read and written by attention.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state,
n slots of the tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.wide import WideBuffers
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.tape.e23 import CELL
from elman.models.state import State, first_state
from elman.ops.column_sum.op import biased_linear
from elman.ops.common.checks import Shape
from elman.ops.common.precision import wide_dtype
from elman.ops.silu_gate.op import gate
from elman.ops.tape.decays import decays
from elman.ops.tape.op import Write, dual_memory

RECURRENT_GAIN = 0.9
"""Every singular value of the initial recurrent matrix."""

_WRITES: dict[str, Write] = {write: write for write in get_args(Write)}


class E23(WideBuffers, Skeleton):
    """[p; z] = W_in x, u = silu(p), (h', M') = step(h, M, W_x u + b), y = W_out (h' silu(z)).

    Vector-state specification 3.4; the step is :func:`elman.ops.tape.op.dual_memory`. With a zero
    initial tape all slots stay identical forever, and the number of slots is only a decay rate: the
    tape is one vector m' = (1 - 1/n) m + W_r h'/n. A seeded tape breaks that symmetry. It is the
    buffer ``initial_tape`` [n, i], N(0, 1). It depends only on ``tape_seed``, so it is the same in
    all layers.

    State: ``h`` [B, i] and ``tape`` [B, n, i], both in fp32 or wider. Without a given ``tape`` a
    sequence starts from the initial one, not from zeros.
    """

    cell = CELL
    branches = 2
    initial_tape: Tensor

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the matrices, the bias and a seeded tape."""
        given, width = self.settings, self.width
        self.slots = given.count("n_slots")
        self.write_value = _WRITES[given.word("write")]
        self.seeded = given.word("initial_tape") == "seeded"
        self.input = nn.Parameter(torch.empty(width, width, **to))
        self.recurrent = nn.Parameter(torch.empty(width, width, **to))
        self.write = (
            nn.Parameter(torch.empty(width, width, **to)) if self.write_value == "full" else None
        )
        self.bias = nn.Parameter(torch.empty(width, **to))
        if self.seeded:
            wide = wide_dtype(self.input.dtype)
            tape_ni = torch.zeros(self.slots, width, device=self.input.device, dtype=wide)
            self.register_buffer("initial_tape", tape_ni)

    def reset_parameters(self) -> None:
        """Draw every weight anew; the initial tape has the same values each time."""
        self.reset_projections()
        init.xavier_(self.input)
        init.orthogonal_(self.recurrent, RECURRENT_GAIN)
        if self.write is not None:
            init.xavier_(self.write)
        nn.init.zeros_(self.bias)
        if self.seeded:
            generator = torch.Generator("cpu").manual_seed(self.settings.count("tape_seed"))
            shape = self.initial_tape.shape
            self.initial_tape.copy_(torch.randn(shape, generator=generator, device="cpu"))

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of h and of the tape."""
        return {"h": (self.width,), "tape": (self.slots, self.width)}

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        h_bti, tape_bni, h_bi, z_bti = self._recur(x_btd, self.begin(x_btd, state), resets_bt)
        o_bti = gate(h_bti, z_bti, backend=self.backend_for(x_btd))
        return self.project_out(o_bti), {"h": h_bi, "tape": tape_bni}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each slot of the tape [B, T, n]; h has none."""
        state = self.begin(x_btd, state)
        h_bti, *_ = self._recur(x_btd, state, resets_bt)
        write_ii = self.recurrent if self.write_value == "shared" else self.write
        return decays(h_bti, write_ii, self._first_tape(state.get("tape"), x_btd), resets_bt)

    def _recur(
        self, x_btd: Tensor, state: State, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return all states, the last tape, the last state, and the second branch."""
        backend = self.backend_for(x_btd)
        u_bti, z_bti = self.project_in_silu(x_btd, {}, {}, resets_bt, backend)
        h_bti, tape_bni, h_bi = dual_memory(
            biased_linear(u_bti, self.input, self.bias, backend=backend),
            self.recurrent,
            self.write,
            self._first_tape(state.get("tape"), u_bti),
            first_state(state.get("h"), u_bti, self.width),
            write=self.write_value,
            backend=backend,
            resets_bt=resets_bt,
        )
        return h_bti, tape_bni, h_bi, z_bti

    def _first_tape(self, tape_bni: Tensor | None, p_bti: Tensor) -> Tensor:
        if tape_bni is None and self.seeded:
            return self.initial_tape.expand(len(p_bti), -1, -1)
        return first_state(tape_bni, p_bti, self.slots, self.width)
