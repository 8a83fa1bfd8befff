"""The decay of the tape: the factor by which a step multiplies each slot.

Shape legend: b batch, t time, i channels of the state, n slots of the tape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.common.precision import no_autocast
from elman.ops.tape import steps


def decays(
    h_bti: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    resets_bt: Tensor | None = None,
) -> Tensor:
    """Return 1 - s(h') of each slot [b, t, n] in the dtype of the tape.

    Args:
        h_bti: State after each step.
        write_ii: The matrix of what is written, W_r or W_h; None writes the state.
        tape_bni: Tape before the first step.
        resets_bt: Whether the tape of a row is zero before a step; None: never.
    """
    found = []
    with no_autocast(tape_bni):
        h_bti = h_bti.to(tape_bni.dtype)
        value_bti = h_bti if write_ii is None else h_bti @ write_ii.to(tape_bni.dtype).mT
        for t, h_bi in enumerate(h_bti.unbind(1)):
            if resets_bt is not None:
                tape_bni = tape_bni.masked_fill(resets_bt[:, t, None, None], 0)
            found.append(1 - steps.attention(tape_bni, h_bi).squeeze(-1))
            tape_bni = steps.write(tape_bni, h_bi, value_bti[:, t])
    return torch.stack(found, dim=1)
