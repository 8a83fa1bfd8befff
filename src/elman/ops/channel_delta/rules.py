"""What KDA, Gated DeltaNet 2 and RWKV-7 compute before their recurrence, and its common form.

Each rule has the tensors that its package takes. All three are one recurrence, with S [v, k] for
each head: ``S' = S diag(c) + (S a) b^T + v k^T``, ``y = S' q``.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_EPS = 1e-6
"""Added by flash-linear-attention to the squared length of a key or a query."""


class Steps(NamedTuple):
    """Sequences of the common recurrence, in fp32 or wider.

    Attributes:
        q_bthk: Queries.
        k_bthk: Keys that are written to.
        v_bthv: Values.
        a_bthk: What reads the old state.
        b_bthk: Where that read is written.
        log_decay_bthk: Logarithm of c, at most 0.
    """

    q_bthk: Tensor
    k_bthk: Tensor
    v_bthv: Tensor
    a_bthk: Tensor
    b_bthk: Tensor
    log_decay_bthk: Tensor


@dataclass(frozen=True)
class Kda:
    """Kimi Delta Attention: ``S' = S C - w (S C k) k^T + w v k^T``.

    C = diag(exp(-exp(a_log) softplus(decay + dt_bias))) and w = write_scale sigmoid(write) (Kimi
    team 2025, Kimi Linear, arXiv 2510.26692, equation 1). q and k are normalized, q is divided by
    sqrt(k) besides.

    Attributes:
        q_bthk: Queries.
        k_bthk: Keys.
        v_bthv: Values.
        decay_bthk: Logits of the decay.
        write_bth: Logits of the strength of a write.
        a_log_h: Logarithm of the decay rate.
        dt_bias_hk: Added to the logits of the decay.
        write_scale: 1, or 2 for eigenvalues down to -1.
    """

    q_bthk: Tensor
    k_bthk: Tensor
    v_bthv: Tensor
    decay_bthk: Tensor
    write_bth: Tensor
    a_log_h: Tensor
    dt_bias_hk: Tensor
    write_scale: float

    def sequences(self) -> tuple[Tensor, ...]:
        """Return every sequence."""
        return self.q_bthk, self.k_bthk, self.v_bthv, self.decay_bthk, self.write_bth

    def parameters(self) -> tuple[Tensor, ...]:
        """Return every other tensor."""
        return self.a_log_h, self.dt_bias_hk

    def steps(self, dtype: torch.dtype) -> Steps:
        """Return the common form."""
        q, k, v, decay, write = (one.to(dtype) for one in self.sequences())
        log = log_decays(decay, self.a_log_h, self.dt_bias_hk)
        write = self.write_scale * torch.sigmoid(write).unsqueeze(-1)
        k = _unit(k)
        return Steps(_unit(q) * k.shape[-1] ** -0.5, k, write * v, -write * log.exp() * k, k, log)


@dataclass(frozen=True)
class Gdn2:
    """Gated DeltaNet 2: ``S' = S C - (S C (e o k)) k^T + (w o v) k^T``.

    The erase gate e has a number for each key channel, the write gate w for each value channel
    (flash-linear-attention 0.6.0, ``fla.layers.GatedDeltaNet2``). q and k are normalized as in
    :class:`Kda`.

    Attributes:
        q_bthk: Queries.
        k_bthk: Keys.
        v_bthv: Values.
        log_decay_bthk: Logarithm of the decay C, in fp32 or wider.
        erase_bthk: Erase gate.
        write_bthv: Write gate.
    """

    q_bthk: Tensor
    k_bthk: Tensor
    v_bthv: Tensor
    log_decay_bthk: Tensor
    erase_bthk: Tensor
    write_bthv: Tensor

    def sequences(self) -> tuple[Tensor, ...]:
        """Return every sequence."""
        shared = (self.q_bthk, self.k_bthk, self.v_bthv)
        return *shared, self.log_decay_bthk, self.erase_bthk, self.write_bthv

    def parameters(self) -> tuple[Tensor, ...]:
        """Return every other tensor: there is none."""
        return ()

    def steps(self, dtype: torch.dtype) -> Steps:
        """Return the common form."""
        q, k, v, log, erase, write = (one.to(dtype) for one in self.sequences())
        k = _unit(k)
        q = _unit(q) * k.shape[-1] ** -0.5
        return Steps(q, k, write * v, -erase * log.exp() * k, k, log)


@dataclass(frozen=True)
class Rwkv7:
    """RWKV-7: ``S' = S C + (S a) b^T + v k^T``, all of it made by the layer.

    Peng et al. 2025, RWKV-7 "Goose" (arXiv 2503.14456), equation 15.

    Attributes:
        q_bthk: Receptance.
        k_bthk: Keys.
        v_bthv: Values.
        a_bthk: The removal key, negated.
        b_bthk: The removal key times the rate of learning in context.
        log_decay_bthk: Logarithm of the decay C, at least -exp(-1/2).
    """

    q_bthk: Tensor
    k_bthk: Tensor
    v_bthv: Tensor
    a_bthk: Tensor
    b_bthk: Tensor
    log_decay_bthk: Tensor

    def sequences(self) -> tuple[Tensor, ...]:
        """Return every sequence."""
        shared = (self.q_bthk, self.k_bthk, self.v_bthv)
        return *shared, self.a_bthk, self.b_bthk, self.log_decay_bthk

    def parameters(self) -> tuple[Tensor, ...]:
        """Return every other tensor: there is none."""
        return ()

    def steps(self, dtype: torch.dtype) -> Steps:
        """Return the common form, which it has already."""
        return Steps(*(one.to(dtype) for one in self.sequences()))


Rule = Kda | Gdn2 | Rwkv7


def log_decays(decay_bthk: Tensor, a_log_h: Tensor, dt_bias_hk: Tensor) -> Tensor:
    """Return -exp(a_log) softplus(decay + dt_bias) in the dtype of ``decay``."""
    dtype, heads = decay_bthk.dtype, a_log_h.shape[0]
    logits = decay_bthk + dt_bias_hk.to(dtype).view(heads, -1)
    return -a_log_h.to(dtype).exp().unsqueeze(-1) * functional.softplus(logits)


def _unit(x_bthk: Tensor) -> Tensor:
    """Return x over the square root of |x|^2 + 1e-6, as the package normalizes."""
    return x_bthk * (x_bthk.square().sum(-1, keepdim=True) + _EPS).rsqrt()
