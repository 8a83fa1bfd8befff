"""The pointwise mathematics of the channel recurrences, in PyTorch: the table of steps.

A step is a function of its inputs over a stretch of time. It applies biases and activations to the
whole stretch at once. It returns the sequences that the loop over time reads and the function that
advances the state by one step (reference.py has the loop). Autograd computes the gradient.

Inside a step every tensor has c channels as its last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

NORM_EPS = 1e-6
"""Added to the mean square in E59, to the norm itself in E74 (matrix-state specification 9)."""

Advance = Callable[..., Tensor]
"""``advance(h_bc, *slices_bc) -> h_bc``: one step, given one slice of every sequence."""
Prepared = tuple[tuple[Tensor, ...], Advance]
"""What a step returns: the sequences [t, b, c] of the loop, and how the state advances."""


def _linear(h: Tensor, decay: Tensor, write: Tensor) -> Tensor:
    return torch.addcmul(write, decay, h)


def _e34(candidate: Tensor, *, candidate_bias: Tensor, coefficient: Tensor) -> Prepared:
    """h' = tanh(candidate + c h) (vector-state specification 3.6)."""

    def advance(h: Tensor, pre: Tensor) -> Tensor:
        return torch.addcmul(pre, coefficient, h).tanh_()

    return (candidate + candidate_bias,), advance


def _rms_norm(v: Tensor) -> Tensor:
    return functional.rms_norm(v, v.shape[-1:], eps=NORM_EPS)


def _e59(value: Tensor, *, value_bias: Tensor, alpha: Tensor) -> Prepared:
    """h' = rms_norm(h + alpha value), alpha [1] (vector-state specification 3.12)."""

    def advance(h: Tensor, write: Tensor) -> Tensor:
        return _rms_norm(h + write)

    return (alpha * (value + value_bias),), advance


def _e59b(value: Tensor, gate: Tensor, *, value_bias: Tensor, gate_bias: Tensor) -> Prepared:
    """h' = rms_norm(h + sigmoid(gate) value): E59b (vector-state specification 3.12)."""

    def advance(h: Tensor, write: Tensor) -> Tensor:
        return _rms_norm(h + write)

    return (torch.sigmoid(gate + gate_bias) * (value + value_bias),), advance


def _e61(
    retain: Tensor,
    candidate: Tensor,
    *,
    retain_bias: Tensor,
    candidate_bias: Tensor,
    use_tanh: bool = False,
) -> Prepared:
    """h' = a h + (1 - a) v, a = sigmoid(retain) (vector-state specification 4.1)."""
    logit, value = retain + retain_bias, candidate + candidate_bias
    if use_tanh:
        value = torch.tanh(value)
    return (torch.sigmoid(logit), torch.sigmoid(-logit) * value), _linear


def _e61_additive(
    retain: Tensor, candidate: Tensor, *, retain_bias: Tensor, candidate_bias: Tensor
) -> Prepared:
    """h' = a h + v (vector-state specification 4.1)."""
    return (torch.sigmoid(retain + retain_bias), candidate + candidate_bias), _linear


def _tied(candidate: Tensor, *, candidate_bias: Tensor) -> Prepared:
    """h' = a h + (1 - a) tanh(q), a = sigmoid(q): one q (vector-state specification 4.1, 4.2)."""
    return _e61(
        candidate,
        candidate,
        retain_bias=candidate_bias,
        candidate_bias=candidate_bias,
        use_tanh=True,
    )


def _e62(
    write: Tensor, candidate: Tensor, *, write_bias: Tensor, candidate_bias: Tensor
) -> Prepared:
    """h' = (1 - k) h + k tanh(v), k = sigmoid(write) (vector-state specification 4.2)."""
    logit = write + write_bias
    written = torch.sigmoid(logit) * torch.tanh(candidate + candidate_bias)
    return (torch.sigmoid(-logit), written), _linear


def _e62_decay(
    write: Tensor,
    candidate: Tensor,
    retain: Tensor,
    *,
    write_bias: Tensor,
    candidate_bias: Tensor,
    retain_bias: Tensor,
) -> Prepared:
    """h' = a (1 - k) h + k tanh(v), a = sigmoid(retain) (vector-state specification 4.2)."""
    (keep, written), advance = _e62(
        write, candidate, write_bias=write_bias, candidate_bias=candidate_bias
    )
    return (torch.sigmoid(retain + retain_bias) * keep, written), advance


def _e64(
    retain: Tensor, candidate: Tensor, *, retain_bias: Tensor, candidate_bias: Tensor
) -> Prepared:
    """h' = a h + (1 - a) tanh(h + candidate) (vector-state specification 4.4)."""

    def advance(h: Tensor, a: Tensor, pre: Tensor) -> Tensor:
        return torch.lerp((pre + h).tanh_(), h, a)

    return (torch.sigmoid(retain + retain_bias), candidate + candidate_bias), advance


def _e65(
    retain: Tensor,
    candidate: Tensor,
    *,
    retain_bias: Tensor,
    candidate_bias: Tensor,
    coefficient: Tensor,
) -> Prepared:
    """h' = a h + (1 - a) tanh(c h + candidate) (vector-state specification 4.5)."""

    def advance(h: Tensor, a: Tensor, pre: Tensor) -> Tensor:
        return torch.lerp(torch.addcmul(pre, coefficient, h).tanh_(), h, a)

    return (torch.sigmoid(retain + retain_bias), candidate + candidate_bias), advance


def _e67(
    retain: Tensor,
    candidate: Tensor,
    *,
    retain_bias: Tensor,
    candidate_bias: Tensor,
    coefficient: Tensor,
) -> Prepared:
    """h' = a h + (1 - a) tanh(candidate), a = sigmoid(retain + c h): specification 4.7."""

    def advance(h: Tensor, logit: Tensor, v: Tensor) -> Tensor:
        return torch.lerp(v, h, torch.addcmul(logit, coefficient, h).sigmoid_())

    return (retain + retain_bias, torch.tanh(candidate + candidate_bias)), advance


def _e68(
    retain: Tensor,
    candidate: Tensor,
    *,
    retain_bias: Tensor,
    candidate_bias: Tensor,
    coefficient: Tensor,
    self_bias: Tensor,
    inverse: bool = False,
) -> Prepared:
    """h' = a h + (1 - a) tanh(candidate) f, f = sigmoid(c h + self_bias): specification 4.8.

    Inverse: f = sigmoid(-c |h| + self_bias).
    """

    def advance(h: Tensor, a: Tensor, q: Tensor) -> Tensor:
        if inverse:
            logit = torch.addcmul(self_bias, coefficient, h.abs(), value=-1)
        else:
            logit = torch.addcmul(self_bias, coefficient, h)
        return torch.lerp(q * logit.sigmoid_(), h, a)

    return (torch.sigmoid(retain + retain_bias), torch.tanh(candidate + candidate_bias)), advance


def positive(x: Tensor) -> Tensor:
    """Return g(x) = x + 1/2 for x >= 0, sigmoid(x) below (vector-state specification 5.3)."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def _mingru(candidate: Tensor, gate: Tensor) -> Prepared:
    """h' = (1 - z) h + z g(candidate), z = sigmoid(gate) (vector-state specification 5.3)."""
    return (torch.sigmoid(-gate), torch.sigmoid(gate) * positive(candidate)), _linear


def _minlstm(candidate: Tensor, forget: Tensor, write: Tensor) -> Prepared:
    """h' = (f h + i g(candidate)) / (f + i), f and i sigmoids (vector-state specification 5.4)."""
    # f / (f + i) = sigmoid(log f - log i), without a quotient that may underflow.
    logit = functional.logsigmoid(forget) - functional.logsigmoid(write)
    return (torch.sigmoid(logit), torch.sigmoid(-logit) * positive(candidate)), _linear


def _identity(s: Tensor) -> Tensor:
    return s


def _over_norm(s: Tensor, *, mean: bool) -> Tensor:
    """Return s / (norm(s) + eps); the norm is the root of the mean or of the sum of squares."""
    norm: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s / ((norm / s.shape[-1] ** 0.5 if mean else norm) + NORM_EPS)


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    # In place: the sum is a fresh tensor, which autograd then does not keep.
    "tanh": torch.tanh_,
    "linear": _identity,
    "rmsnorm": partial(_over_norm, mean=True),
    "frobnorm": partial(_over_norm, mean=False),
}
"""What E74 applies to the new state vector (matrix-state specification 9)."""


def _through(phi: Callable[[Tensor], Tensor]) -> Advance:
    def advance(s: Tensor, decay: Tensor, write: Tensor) -> Tensor:
        return phi(torch.addcmul(write, decay, s))

    return advance


def _e74_delta(key: Tensor, value: Tensor, *, phi: Callable[[Tensor], Tensor]) -> Prepared:
    """s' = phi(s (1 - k^2) + v k), k normalized by the caller (matrix-state specification 9)."""
    return (1 - key.square(), value * key), _through(phi)


def _e74_simple(
    key: Tensor, value: Tensor, *, retain_logit: Tensor, phi: Callable[[Tensor], Tensor]
) -> Prepared:
    """s' = phi(a s + v k), a = sigmoid(retain_logit) per channel (matrix-state specification 9)."""
    decay = torch.sigmoid(retain_logit)

    def advance(s: Tensor, write: Tensor) -> Tensor:
        return phi(torch.addcmul(write, decay, s))

    return (value * key,), advance


def _e74_ema(
    key: Tensor,
    value: Tensor,
    retain: Tensor,
    *,
    retain_bias: Tensor,
    phi: Callable[[Tensor], Tensor],
) -> Prepared:
    """s' = phi(a s + (1 - a) v k), a = sigmoid(retain) (matrix-state specification 9)."""
    logit = retain + retain_bias
    return (torch.sigmoid(logit), torch.sigmoid(-logit) * value * key), _through(phi)


def _e74_gated(
    key: Tensor,
    value: Tensor,
    *,
    gate_scale: Tensor,
    gate_bias: Tensor,
    phi: Callable[[Tensor], Tensor],
    retain: bool,
) -> Prepared:
    """The delta rule mixed with the old state by a = sigmoid(gate_scale s + gate_bias).

    retain: s' = phi(a s + (1 - a) d) with d = s (1 - k^2) + v k; otherwise the state gate:
    s' = phi(s + a (v - s k) k) = phi((1 - a) s + a d) (matrix-state specification 9).
    """

    def advance(s: Tensor, decay: Tensor, write: Tensor) -> Tensor:
        gate = torch.addcmul(gate_bias, gate_scale, s).sigmoid_()
        delta = torch.addcmul(write, decay, s)
        return phi(torch.lerp(delta, s, gate) if retain else torch.lerp(s, delta, gate))

    return (1 - key.square(), value * key), advance


_E74: dict[str, Callable[..., Prepared]] = {
    "e74_delta": _e74_delta,
    "e74_simple": _e74_simple,
    "e74_ema": _e74_ema,
    "e74_retain": partial(_e74_gated, retain=True),
    "e74_state": partial(_e74_gated, retain=False),
}

STEPS: dict[str, Callable[..., Prepared]] = {
    "e34": _e34,
    "e59": _e59,
    "e59b": _e59b,
    "e61": _e61,
    "e61_tanh": partial(_e61, use_tanh=True),
    "e61_additive": _e61_additive,
    "tied": _tied,
    "e62": _e62,
    "e62_decay": _e62_decay,
    "e64": _e64,
    "e65": _e65,
    "e67": _e67,
    "e68": _e68,
    "e68_inverse": partial(_e68, inverse=True),
    "mingru": _mingru,
    "minlstm": _minlstm,
    **{
        f"{name}_{word}": partial(step, phi=phi)
        for name, step in _E74.items()
        for word, phi in NONLINEARITIES.items()
    },
}
"""Every step that the loop runs, by the name that plans and recurrences.py have for it.

``log_space.STEPS`` has the steps that need no loop."""
