"""The tape engine as layers call it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, i channels of the state, n slots of the tape.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from elman.ops.common.checks import empty_results, is_empty
from elman.ops.common.precision import cast, io_dtype
from elman.ops.tape import custom_op
from elman.ops.tape.backends import BACKENDS

Write = Literal["full", "identity", "shared"]
"""Which value the tape is written with: W_r h, h, or W_h h."""


def dual_memory(
    input_bti: Tensor,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    state_bi: Tensor,
    *,
    write: Write,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an Elman recurrence that reads and writes a tape by attention, over time.

    With M the tape, h the state and s = softmax over slots of <M_n, .> / sqrt(i)
    (vector-state specification 3.4)::

        h' = tanh(W_h h + input + sum_n s_n(h) M_n)
        M_n' = (1 - s_n(h')) M_n + s_n(h') q,    q = W_r h', h' or W_h h'

    Both reads see the tape M as it was before the step. Gradients reach every tensor argument.

    Args:
        input_bti: The part of the pre-activation that depends on neither state, bias included.
        recurrent_ii: Matrix W_h [out, in].
        write_ii: Matrix W_r [out, in]; None unless ``write`` is ``full``.
        tape_bni: Tape before the first step.
        state_bi: State before the first step.
        write: Which value q is.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.
        resets_bt: Whether state and tape of a row are zero before a step, bool; None: never. A
            reset before the first step drops the given ones. No gradient passes a reset.

    Returns:
        All states h_bti, the last tape and the last state. All three, and all of the computation,
        have the dtype of ``state_bi`` (fp32 or wider), whatever autocast says. The backend cuda
        alone follows autocast: it reads input and matrices in autocast's dtype or else in that of
        the input, keeps states and written values in it, and has tape and sums in the state's.

    Raises:
        ValueError: the input, the tape or the state has another shape, dtype or device.
        UserError: the backend has no kernel for the write or dtype, or cannot build it.
    """
    assert (write_ii is not None) == (write == "full")
    chosen, dtype = BACKENDS[backend], state_bi.dtype
    custom_op.check_call("dual_memory", input_bti, tape_bni, state_bi, resets_bt)
    io = io_dtype(input_bti) if chosen.narrow else dtype
    if is_empty(input_bti):
        read = (input_bti, recurrent_ii, write_ii)
        h_bti, last = empty_results(input_bti.shape, io, [tape_bni, state_bi], read)
        return h_bti, last[0], last[1]
    return chosen.run(
        cast(input_bti, io),
        cast(recurrent_ii, dtype),
        None if write_ii is None else cast(write_ii, dtype),
        cast(tape_bni, dtype),
        state_bi,
        write,
        resets_bt,
    )
