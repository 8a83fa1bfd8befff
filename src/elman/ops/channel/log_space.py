"""Positive linear recurrences without a loop over steps: cumulative sums of logarithms.

h_t = f_t h_{t-1} + w_t with f, w > 0 is h_t = exp(A_t) h_0 + exp(A_t + logcumsumexp(log w - A)_t),
A the running sum of log f (vector-state specification 5.3 and 5.4). h_0 enters as itself, not as
its logarithm, so that it may have any sign and its gradient is finite at 0.

Shape legend: t time, b batch, c channels of the state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 64
"""Steps that one cumulative sum spans.

The rounding error of a gate's gradient grows with the square of the sum's length: in fp32, at
T = 512 with N(0, 1) weights, 5e-4 over all of T, 2e-5 over blocks of 64."""


def _log_positive(x: Tensor) -> Tensor:
    """Return log g(x), g as in steps.py, exact where g itself would underflow."""
    return torch.where(x >= 0, torch.log(functional.relu(x) + 0.5), functional.logsigmoid(x))


def _mingru(candidate: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """log f = log(1 - z), log w = log z + log g(candidate), z = sigmoid(gate)."""
    return functional.logsigmoid(-gate), functional.logsigmoid(gate) + _log_positive(candidate)


def _minlstm(candidate: Tensor, forget: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """log of f / (f + i) and of i g(candidate) / (f + i), f and i sigmoids."""
    logit = functional.logsigmoid(forget) - functional.logsigmoid(write)
    return functional.logsigmoid(logit), functional.logsigmoid(-logit) + _log_positive(candidate)


STEPS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "mingru_parallel": _mingru,
    "minlstm_parallel": _minlstm,
}
"""By the recurrence's name: logarithms of decay and write from the step's inputs."""


def segment(
    h_bc: Tensor,
    *over_time: Tensor,
    log_step: Callable[..., tuple[Tensor, Tensor]],
    names: tuple[str, ...],
) -> tuple[Tensor, Tensor]:
    """Run some steps, block by block; resets [t, b], if there are any, stand behind the inputs."""
    inputs_tbc, resets = over_time[: len(names)], over_time[len(names) :]
    sequences = (*log_step(**dict(zip(names, inputs_tbc, strict=True))), *resets)
    run = _block_with_resets if resets else _block
    blocks = []
    for parts in zip(*(torch.split(sequence, BLOCK) for sequence in sequences), strict=True):
        h_tbc = run(h_bc, *parts)
        blocks.append(h_tbc)
        h_bc = h_tbc[-1]
    # A copy: a view would keep its whole block alive between calls.
    return torch.cat(blocks), h_bc.clone()


def _block(h_bc: Tensor, decay_tbc: Tensor, write_tbc: Tensor) -> Tensor:
    """Return the states of some steps."""
    total_tbc = decay_tbc.cumsum(0)
    new_tbc = torch.exp(total_tbc + torch.logcumsumexp(write_tbc - total_tbc, 0))
    return torch.addcmul(new_tbc, total_tbc.exp(), h_bc)


def _block_with_resets(
    h_bc: Tensor, decay_tbc: Tensor, write_tbc: Tensor, resets_tb: Tensor
) -> Tensor:
    """Return the states of some steps, some of which begin with zeros.

    A sum over all of the block cannot forget, so stretches that end at every step are joined with
    those before them, twice as long each time, but for those that begin with a reset.
    """
    new_tbc, total_tbc, cut_tb1 = write_tbc, decay_tbc, resets_tb.unsqueeze(-1)
    length = 1
    while length < len(new_tbc):
        joined = torch.logaddexp(new_tbc[length:], new_tbc[:-length] + total_tbc[length:])
        kept = torch.where(cut_tb1[length:], new_tbc[length:], joined)
        new_tbc = torch.cat([new_tbc[:length], kept])
        total_tbc = torch.cat([total_tbc[:length], total_tbc[length:] + total_tbc[:-length]])
        cut_tb1 = torch.cat([cut_tb1[:length], cut_tb1[length:] | cut_tb1[:-length]])
        length *= 2
    return torch.addcmul(new_tbc.exp(), total_tbc.exp(), h_bc.masked_fill(cut_tb1, 0))
