"""Channel recurrences as the layers call them: dtypes, choice of implementation.

Shape legend: b batch, t time, c channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from elman.ops.channel import reference
from elman.ops.precision import no_autocast
from elman.ops.uncompiled import uncompiled

_CHANNEL = {"reference": reference.channel}


@uncompiled
def channel(
    step: str,
    inputs: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run a recurrence without a matrix over time, from a given state to the final one.

    Every (batch, channel) is independent, except in the steps ``e59*``, ``*_rmsnorm`` and
    ``*_frobnorm``, which normalise over the channels. Gradients reach every tensor argument.

    Args:
        step: Name of the step; its equation stands in :mod:`elman.ops.channel.reference`.
        inputs: The step's sequences by name, each [B, T, channels]: projections before their
            biases and activations.
        parameters: The step's other tensors by name: [channels] unless the step says otherwise.
        state_bc: State before the first step.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        All states h_btc and the last one. Both, and all of the computation, have the dtype of
        ``state_bc`` (fp32 or wider), whatever autocast says.
    """
    dtype = state_bc.dtype
    with no_autocast(state_bc):
        return _CHANNEL[backend](
            step,
            {name: input_btc.to(dtype) for name, input_btc in inputs.items()},
            {name: parameter.to(dtype) for name, parameter in parameters.items()},
            state_bc,
        )
