"""Layer E36: linear recurrence, then a self gate.

Shape legend: i channels of the state.
"""

from __future__ import annotations

import torch

from elman.models import init
from elman.models.layers.dense import DenseMixer
from elman.models.registry.e36 import CELL
from elman.ops.precision import wide_dtype

SLOW_EIGENVALUES = (0.95, 0.99)


class E36(DenseMixer):
    """u = silu(W_in x), h' = W_x u + W_h h + b, y = W_out (h' silu(h')).

    Vector-state specification 3.7. Nothing bounds the state but the spectral norm.
    """

    cell = CELL
    linear = True

    def orthogonal_start(self) -> float:
        """Return the singular values of the recurrent matrix under mamba2_init=normal."""
        return SLOW_EIGENVALUES[0]

    @torch.no_grad()
    def reset_slow(self) -> None:
        """Draw the recurrent matrix of mamba2_init=s4d; it decays faster than the tanh cells'."""
        q_ii = torch.empty_like(self.recurrent, dtype=wide_dtype(self.recurrent.dtype))
        init.orthogonal_(q_ii)
        low, high = SLOW_EIGENVALUES
        decay_i = torch.linspace(low, high, self.width, dtype=q_ii.dtype, device=q_ii.device)
        self.recurrent.copy_((q_ii * decay_i) @ q_ii.T)
