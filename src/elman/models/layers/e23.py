"""Layer E23: Elman recurrence beside a tape of memory slots, read and written by attention.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state,
n slots of the tape.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.layers.mixer import Mixer
from elman.models.registry.e23 import CELL
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.precision import wide_dtype
from elman.ops.tape.op import Write, dual_memory

RECURRENT_GAIN = 0.9
"""Every singular value of the initial recurrent matrix."""

_WRITES: dict[str, Write] = {write: write for write in get_args(Write)}


class E23(Mixer):
    """[p; z] = W_in x, u = silu(p), (h', M') = step(h, M, W_x u + b), y = W_out (h' silu(z)).

    Vector-state specification 3.4; the step is :func:`elman.ops.tape.op.dual_memory`. With a zero
    initial tape all slots stay identical for ever, and the number of slots is only a decay rate:
    the tape is one vector m' = (1 - 1/n) m + W_r h'/n. A seeded one breaks that symmetry. It is
    the buffer ``initial_tape`` [n, i], N(0, 1) from ``tape_seed`` alone, the same in all layers.

    State: ``h`` [B, i] and ``tape`` [B, n, i], both in fp32 or wider. An absent ``tape`` is the
    initial one, not zeros.
    """

    cell = CELL
    initial_tape: Tensor

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Value,
    ) -> None:
        super().__init__(dim, backend=backend, **options)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        given = self.settings
        self.width = width = int(dim * given.number("expansion"))
        self.slots = given.count("n_slots")
        self.write_value = _WRITES[given.word("write")]
        self.seeded = given.word("initial_tape") == "seeded"
        self.in_proj = nn.Parameter(torch.empty(2 * width, dim, **to))
        self.input = nn.Parameter(torch.empty(width, width, **to))
        self.recurrent = nn.Parameter(torch.empty(width, width, **to))
        self.write = (
            nn.Parameter(torch.empty(width, width, **to)) if self.write_value == "full" else None
        )
        self.bias = nn.Parameter(torch.empty(width, **to))
        self.out_proj = nn.Parameter(torch.empty(dim, width, **to))
        self.dropout = nn.Dropout(given.number("dropout"))
        if self.seeded:
            wide = wide_dtype(dtype or torch.get_default_dtype())
            tape_ni = torch.zeros(self.slots, width, device=device, dtype=wide)
            self.register_buffer("initial_tape", tape_ni)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew; the initial tape has the same values each time."""
        for projection in (self.in_proj, self.out_proj):
            if self.settings.word("mamba2_init") == "none":
                init.xavier_(projection)
            else:
                init.normal_(projection)
        init.xavier_(self.input)
        init.orthogonal_(self.recurrent, RECURRENT_GAIN)
        if self.write is not None:
            init.xavier_(self.write)
        nn.init.zeros_(self.bias)
        if self.seeded:
            generator = torch.Generator("cpu").manual_seed(self.settings.count("tape_seed"))
            shape = self.initial_tape.shape
            self.initial_tape.copy_(torch.randn(shape, generator=generator, device="cpu"))

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        p_bti, z_bti = functional.linear(x_btd, self.in_proj).chunk(2, dim=-1)
        h_bti, tape_bni, h_bi = dual_memory(
            functional.linear(functional.silu(p_bti), self.input, self.bias),
            self.recurrent,
            self.write,
            self._first_tape(state.get("tape"), p_bti),
            self._first_hidden(state.get("h"), p_bti),
            write=self.write_value,
            backend=self.backend_for(x_btd),
        )
        gated_bti = (h_bti * functional.silu(z_bti)).to(z_bti.dtype)
        y_btd = functional.linear(self.dropout(gated_bti), self.out_proj)
        return y_btd, {"h": h_bi, "tape": tape_bni}

    def _first_tape(self, tape_bni: Tensor | None, p_bti: Tensor) -> Tensor:
        if tape_bni is not None:
            return tape_bni
        if self.seeded:
            return self.initial_tape.expand(len(p_bti), -1, -1)
        wide = wide_dtype(p_bti.dtype)
        return p_bti.new_zeros(len(p_bti), self.slots, self.width, dtype=wide)

    def _first_hidden(self, h_bi: Tensor | None, p_bti: Tensor) -> Tensor:
        if h_bi is not None:
            return h_bi
        return p_bti.new_zeros(len(p_bti), self.width, dtype=wide_dtype(p_bti.dtype))
