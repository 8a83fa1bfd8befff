"""Gradients of the channel recurrences by the specifications' hand-derived formulas.

One function per step: from what a step read and wrote and the total gradient e on its new state,
the gradient r on its old state, and those on its inputs and parameters. Vector-state specification
2.7, 2.8, 3.6, 3.12, 4, 5.3 and 5.4; matrix-state specification 9. Where a specification leaves a
variant to the reader (E61 additive, E62 decay, E68 inverse, E74 gates on a vector), the formula is
its chain rule.

Shape legend: b batch, t time, c channels of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Named = dict[str, Tensor]
Gradients = tuple[Tensor, Named, Named]
Backward = Callable[[Named, Named, Tensor, Tensor, Tensor], Gradients]


def backward(
    step: str, inputs: Named, parameters: Named, states: Tensor, dh: Tensor, dfinal: Tensor
) -> tuple[Named, Named, Tensor]:
    """Return the gradients of inputs, parameters and first state.

    Args:
        step: Name of the step; a parallel form has the gradient of its sequential one.
        inputs: Its sequences [B, T, c].
        parameters: Its other tensors.
        states: All states [B, T + 1, c], the first one included.
        dh: Gradient reaching each new state [B, T, c].
        dfinal: Gradient of the returned last state [B, c].
    """
    rule = BACKWARD[step.removesuffix("_parallel")]
    dinputs = {name: torch.zeros_like(tensor) for name, tensor in inputs.items()}
    dparameters = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    r = dfinal
    for t in reversed(range(dh.shape[1])):
        now = {name: tensor[:, t] for name, tensor in inputs.items()}
        e = dh[:, t] + r
        r, din, dpar = rule(now, parameters, states[:, t], states[:, t + 1], e)
        for name, gradient in din.items():
            dinputs[name][:, t] = gradient
        for name, gradient in dpar.items():
            dparameters[name] += gradient.sum_to_size(dparameters[name].shape)
    return dinputs, dparameters, r


def _e34(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    delta = e * (1 - new**2)
    grads = {"candidate_bias": delta, "coefficient": delta * old}
    return p["coefficient"] * delta, {"candidate": delta}, grads


def _norm(v: Tensor, new: Tensor, e: Tensor) -> Tensor:
    m = (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return (e - new * (e * new).mean(-1, keepdim=True)) / m


def _e59(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    alpha, value = p["alpha"], x["value"] + p["value_bias"]
    dv = _norm(old + alpha * value, new, e)
    dvalue = alpha * dv
    return dv, {"value": dvalue}, {"value_bias": dvalue, "alpha": dv * value}


def _e59b(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    g, value = torch.sigmoid(x["gate"] + p["gate_bias"]), x["value"] + p["value_bias"]
    dv = _norm(old + g * value, new, e)
    dvalue, dgate = g * dv, dv * value * g * (1 - g)
    grads = {"value_bias": dvalue, "gate_bias": dgate}
    return dv, {"value": dvalue, "gate": dgate}, grads


def _retained(al: Tensor, v: Tensor, old: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return r, the gradient of al's logit and dv of h' = al h + (1 - al) v."""
    return e * al, e * (old - v) * al * (1 - al), e * (1 - al)


def _pair(r: Tensor, dlogit: Tensor, dpre: Tensor, **more: Tensor) -> Gradients:
    """Return gradients of a retain gate and a candidate, each with its bias."""
    grads = {"retain_bias": dlogit, "candidate_bias": dpre}
    return r, {"retain": dlogit, "candidate": dpre}, grads | more


def _logits(x: Named, p: Named) -> tuple[Tensor, Tensor]:
    return x["retain"] + p["retain_bias"], x["candidate"] + p["candidate_bias"]


def _e61(
    x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor, *, tanh: bool = False
) -> Gradients:
    logit, v = _logits(x, p)
    v = torch.tanh(v) if tanh else v
    r, dlogit, dv = _retained(torch.sigmoid(logit), v, old, e)
    return _pair(r, dlogit, dv * (1 - v**2) if tanh else dv)


def _e61_additive(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    al = torch.sigmoid(_logits(x, p)[0])
    return _pair(e * al, e * old * al * (1 - al), e)


def _tied(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    q = x["candidate"] + p["candidate_bias"]
    v = torch.tanh(q)
    r, dlogit, dv = _retained(torch.sigmoid(q), v, old, e)
    dq = dlogit + dv * (1 - v**2)
    return r, {"candidate": dq}, {"candidate_bias": dq}


def _e62(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    k = torch.sigmoid(x["write"] + p["write_bias"])
    v = torch.tanh(x["candidate"] + p["candidate_bias"])
    dk, dv = e * (v - old) * k * (1 - k), e * k * (1 - v**2)
    grads = {"write_bias": dk, "candidate_bias": dv}
    return e * (1 - k), {"write": dk, "candidate": dv}, grads


def _e62_decay(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    k = torch.sigmoid(x["write"] + p["write_bias"])
    logit, pre = _logits(x, p)
    al, v = torch.sigmoid(logit), torch.tanh(pre)
    dk, dv = e * (v - al * old) * k * (1 - k), e * k * (1 - v**2)
    dal = e * old * (1 - k) * al * (1 - al)
    grads = {"write_bias": dk, "candidate_bias": dv, "retain_bias": dal}
    return e * al * (1 - k), {"write": dk, "candidate": dv, "retain": dal}, grads


def _e64(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    logit, pre = _logits(x, p)
    v = torch.tanh(old + pre)
    r, dlogit, dv = _retained(torch.sigmoid(logit), v, old, e)
    w = dv * (1 - v**2)
    return _pair(r + w, dlogit, w)


def _e65(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    logit, pre = _logits(x, p)
    v = torch.tanh(p["coefficient"] * old + pre)
    r, dlogit, dv = _retained(torch.sigmoid(logit), v, old, e)
    w = dv * (1 - v**2)
    return _pair(r + w * p["coefficient"], dlogit, w, coefficient=w * old)


def _e67(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    logit, pre = _logits(x, p)
    v = torch.tanh(pre)
    r, q, dv = _retained(torch.sigmoid(logit + p["coefficient"] * old), v, old, e)
    return _pair(r + q * p["coefficient"], q, dv * (1 - v**2), coefficient=q * old)


def _e68(
    x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor, *, inverse: bool = False
) -> Gradients:
    logit, pre = _logits(x, p)
    seen, slope = (-old.abs(), -old.sign()) if inverse else (old, 1)
    f = torch.sigmoid(p["coefficient"] * seen + p["self_bias"])
    q = torch.tanh(pre)
    r, dlogit, dv = _retained(torch.sigmoid(logit), q * f, old, e)
    m = dv * q * f * (1 - f)
    grads = {"coefficient": m * seen, "self_bias": m}
    return _pair(r + m * p["coefficient"] * slope, dlogit, dv * f * (1 - q**2), **grads)


def _positive(k: Tensor) -> tuple[Tensor, Tensor]:
    """Return g(k) and g'(k)."""
    s = torch.sigmoid(k)
    return torch.where(k >= 0, k + 0.5, s), torch.where(k >= 0, torch.ones_like(k), s * (1 - s))


def _mingru(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    z, (g, slope) = torch.sigmoid(x["gate"]), _positive(x["candidate"])
    return e * (1 - z), {"gate": e * (g - old) * z * (1 - z), "candidate": e * z * slope}, {}


def _minlstm(x: Named, p: Named, old: Tensor, new: Tensor, e: Tensor) -> Gradients:
    f, i = torch.sigmoid(x["forget"]), torch.sigmoid(x["write"])
    keep, write = f / (f + i), i / (f + i)
    g, slope = _positive(x["candidate"])
    q = e * (old - g) * keep * write
    return (
        e * keep,
        {"forget": q * (1 - f), "write": -q * (1 - i), "candidate": e * write * slope},
        {},
    )


def _phi(word: str, pre: Tensor, new: Tensor, e: Tensor) -> Tensor:
    """Return the gradient before the nonlinearity; the norms divide by m = a |pre| + 1e-6."""
    if word in ("tanh", "linear"):
        return e * (1 - new**2) if word == "tanh" else e
    norm = pre.square().sum(-1, keepdim=True).sqrt()
    a = pre.shape[-1] ** -0.5 if word == "rmsnorm" else 1.0
    m = a * norm + 1e-6
    return e / m - (e * pre).sum(-1, keepdim=True) * a * pre / (norm * m**2)


def _e74_delta(x: Named, p: Named, s: Tensor, new: Tensor, e: Tensor, *, word: str) -> Gradients:
    k, v = x["key"], x["value"]
    grad = _phi(word, s * (1 - k**2) + v * k, new, e)
    return grad * (1 - k**2), {"value": grad * k, "key": grad * (v - 2 * s * k)}, {}


def _e74_simple(x: Named, p: Named, s: Tensor, new: Tensor, e: Tensor, *, word: str) -> Gradients:
    k, v, a = x["key"], x["value"], torch.sigmoid(p["retain_logit"])
    grad = _phi(word, a * s + v * k, new, e)
    dlogit = grad * s * a * (1 - a)
    return grad * a, {"value": grad * k, "key": grad * v}, {"retain_logit": dlogit}


def _e74_ema(x: Named, p: Named, s: Tensor, new: Tensor, e: Tensor, *, word: str) -> Gradients:
    k, v, a = x["key"], x["value"], torch.sigmoid(x["retain"] + p["retain_bias"])
    grad = _phi(word, a * s + (1 - a) * v * k, new, e)
    dlogit = grad * (s - v * k) * a * (1 - a)
    dinputs = {"value": grad * (1 - a) * k, "key": grad * (1 - a) * v, "retain": dlogit}
    return grad * a, dinputs, {"retain_bias": dlogit}


def _e74_gated(
    x: Named, p: Named, s: Tensor, new: Tensor, e: Tensor, *, word: str, retain: bool
) -> Gradients:
    k, v = x["key"], x["value"]
    a = torch.sigmoid(p["gate_scale"] * s + p["gate_bias"])
    share, sign = (1 - a, -1) if retain else (a, 1)
    delta = v - s * k
    grad = _phi(word, s + share * delta * k, new, e)
    ddelta = share * grad * k
    c = sign * grad * delta * k * a * (1 - a)
    dinputs = {"value": ddelta, "key": share * grad * delta - s * ddelta}
    ds = grad - ddelta * k + c * p["gate_scale"]
    return ds, dinputs, {"gate_scale": c * s, "gate_bias": c}


_E74: dict[str, Callable[..., Gradients]] = {
    "delta": _e74_delta,
    "simple": _e74_simple,
    "ema": _e74_ema,
    "retain": partial(_e74_gated, retain=True),
    "state": partial(_e74_gated, retain=False),
}

BACKWARD: dict[str, Backward] = {
    "e34": _e34,
    "e59": _e59,
    "e59b": _e59b,
    "e61": _e61,
    "e61_tanh": partial(_e61, tanh=True),
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
        f"e74_{name}_{word}": partial(rule, word=word)
        for name, rule in _E74.items()
        for word in ("tanh", "linear", "rmsnorm", "frobnorm")
    },
}
