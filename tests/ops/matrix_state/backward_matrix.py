"""The matrix-state steps and their hand-derived backward formulas, in plain PyTorch.

Written from matrix-state specification 3 to 9, with states the natural way round: S [.., v, n],
i value rows, j key columns. What is on rows is [.., v], what is on columns [.., n].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Named = dict[str, Tensor]


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def times(s: Tensor, x: Tensor) -> Tensor:
    """Return S x."""
    return (s * x[..., None, :]).sum(-1)


def transposed_times(s: Tensor, x: Tensor) -> Tensor:
    """Return S^T x."""
    return (s * x[..., :, None]).sum(-2)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def scale_of(x: Named) -> Tensor:
    """Return the factor of S in the outer-product step."""
    factor = x["v"].new_ones(())
    if "row" in x:
        factor = factor * x["row"][..., :, None]
    if "column" in x:
        factor = factor * x["column"][..., None, :]
    return factor * x["decay"][..., None] if "decay" in x else factor


def energy_gate(s: Tensor, x: Named) -> Tensor:
    return sigmoid(x["slope"] * s.square().mean(-1) + x["bias"])


def read_gate(r: Tensor, x: Named, inverse: bool) -> Tensor:
    return sigmoid((-x["slope"] * r.abs() if inverse else x["slope"] * r) + x["bias"])


def error_gate(delta: Tensor, x: Named) -> Tensor:
    return sigmoid(x["logit"] + delta.square().mean(-1, keepdim=True))


def slots(r: Tensor, x: Named) -> Tensor:
    return torch.tanh(x["input"] + times(x["mix"], torch.tanh(r)))


def decay_of(x: Named) -> Tensor:
    """Return the factor of S in the delta rule, whose row gate scales the read instead."""
    return scale_of({name: tensor for name, tensor in x.items() if name != "row"})


def scaled_delta(r: Tensor, x: Named) -> Tensor:
    return x.get("write", 1) * (x["v"] - x.get("row", 1) * r)


def forward_read_gated(s: Tensor, r: Tensor, x: Named) -> Tensor:
    alpha = sigmoid(x["logit"] + x["slope"] * r)
    return alpha[..., None] * s + outer((1 - alpha) * x["v"], x["k"])


def forward_error_gated_delta(s: Tensor, r: Tensor, x: Named) -> Tensor:
    delta = x["v"] - r
    return s + outer(error_gate(delta, x) * delta, x["k"])


def mixed(s: Tensor, x: Named) -> Tensor:
    """Return tanh(W^T S + v k^T), a matrix for each head."""
    return torch.tanh(x["mixes"].mT @ s + outer(x["v"], x["k"]))


def forward_m2rnn(s: Tensor, r: Tensor, x: Named) -> Tensor:
    keep = x["decay"][..., None]
    return keep * s + (1 - keep) * mixed(s, x)


FORWARD: dict[str, Callable[[Tensor, Tensor, Named], Tensor]] = {
    "decayed": lambda s, r, x: scale_of(x) * s + outer(x["v"], x["k"]),
    "delta": lambda s, r, x: decay_of(x) * s + outer(scaled_delta(r, x), x["k"]),
    "read_gated": forward_read_gated,
    "value_gated": lambda s, r, x: (
        x["row"][..., None] * s + outer(x["v"] * read_gate(r, x, False), x["k"])
    ),
    "value_gated_inverse": lambda s, r, x: (
        x["row"][..., None] * s + outer(x["v"] * read_gate(r, x, True), x["k"])
    ),
    "retain_gated_delta": lambda s, r, x: s + outer((1 - energy_gate(s, x)) * (x["v"] - r), x["k"]),
    "state_gated_delta": lambda s, r, x: s + outer(energy_gate(s, x) * (x["v"] - r), x["k"]),
    "residual": lambda s, r, x: s + x["scale"][..., None] * torch.tanh(outer(x["v"] - r, x["k"])),
    "erase_write": lambda s, r, x: s * (1 - outer(x["erase"], x["k"])) + outer(x["v"], x["k"]),
    "write_gated_delta": lambda s, r, x: s + outer(x["write"] * (x["v"] - r), x["k"]),
    "error_gated_delta": forward_error_gated_delta,
    "m2rnn": forward_m2rnn,
    "e63m": lambda s, r, x: x["row"][..., None] * s + outer((1 - x["row"]) * slots(r, x), x["k"]),
}
"""``(S, r, inputs) -> new state before its nonlinearity``."""


# Backward rules: (P, S, r, inputs) -> gradients of the inputs, of r (if read) and of S beside r.
# P is the gradient of the new state before its nonlinearity.


def back_decayed(p: Tensor, s: Tensor, r: Tensor, x: Named) -> tuple[Named, Tensor | None, Tensor]:
    found = {"v": times(p, x["k"]), "k": transposed_times(p, x["v"])}
    for name in {"row", "column", "decay"} & set(x):
        others = scale_of({key: value for key, value in x.items() if key != name})
        product = p * s * others
        sums = {"row": product.sum(-1), "column": product.sum(-2)}
        found[name] = sums[name] if name in sums else product.sum((-2, -1))[..., None]
    return found, None, p * scale_of(x)


def back_delta(p: Tensor, s: Tensor, r: Tensor, x: Named) -> tuple[Named, Tensor | None, Tensor]:
    row, write = x.get("row", torch.ones_like(r)), x.get("write", torch.ones_like(r))
    d_delta = write * times(p, x["k"])
    found = {"v": d_delta, "k": transposed_times(p, scaled_delta(r, x))}
    if "row" in x:
        found["row"] = -r * d_delta
    if "write" in x:
        found["write"] = times(p, x["k"]) * (x["v"] - row * r)
    if "decay" in x:
        found["decay"] = (p * s).sum((-2, -1))[..., None]
    return found, -row * d_delta, p * decay_of(x)


def back_read_gated(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    alpha = sigmoid(x["logit"] + x["slope"] * r)
    d_alpha = (p * (s - outer(x["v"], x["k"]))).sum(-1)
    e = d_alpha * alpha * (1 - alpha)
    found = {
        "logit": e,
        "slope": e * r,
        "v": (1 - alpha) * times(p, x["k"]),
        "k": transposed_times(p, (1 - alpha) * x["v"]),
    }
    return found, x["slope"] * e, alpha[..., None] * p


def back_value_gated(
    p: Tensor, s: Tensor, r: Tensor, x: Named, inverse: bool = False
) -> tuple[Named, Tensor | None, Tensor]:
    g = read_gate(r, x, inverse)
    dw = times(p, x["k"])
    c = dw * x["v"] * g * (1 - g)
    found = {
        "row": (p * s).sum(-1),
        "v": dw * g,
        "k": transposed_times(p, x["v"] * g),
        "slope": -c * r.abs() if inverse else c * r,
        "bias": c,
    }
    dr = -x["slope"] * r.sign() * c if inverse else x["slope"] * c
    return found, dr, x["row"][..., None] * p


def back_value_gated_inverse(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    return back_value_gated(p, s, r, x, inverse=True)


def back_energy(
    p: Tensor, s: Tensor, r: Tensor, x: Named, sign: int
) -> tuple[Named, Tensor | None, Tensor]:
    a = energy_gate(s, x)
    m = a if sign > 0 else 1 - a
    delta = x["v"] - r
    q = m[..., None] * p
    d_delta = times(q, x["k"])
    c = sign * (p * outer(delta, x["k"])).sum(-1) * a * (1 - a)
    energy = s.square().mean(-1)
    found = {"v": d_delta, "k": transposed_times(q, delta), "slope": c * energy, "bias": c}
    ds = p + 2 / s.shape[-1] * (c * x["slope"])[..., None] * s
    return found, -d_delta, ds


def back_retain_gated_delta(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    return back_energy(p, s, r, x, -1)


def back_state_gated_delta(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    return back_energy(p, s, r, x, 1)


def back_residual(p: Tensor, s: Tensor, r: Tensor, x: Named) -> tuple[Named, Tensor | None, Tensor]:
    delta = x["v"] - r
    theta = torch.tanh(outer(delta, x["k"]))
    q = x["scale"][..., None] * p * (1 - theta**2)
    d_delta = times(q, x["k"])
    found = {
        "v": d_delta,
        "k": transposed_times(q, delta),
        "scale": (p * theta).sum(-1),
    }
    return found, -d_delta, p


def back_erase_write(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    found = {
        "v": times(p, x["k"]),
        "erase": -times(p * s, x["k"]),
        "k": transposed_times(p, x["v"]) - transposed_times(p * s, x["erase"]),
    }
    return found, None, p * (1 - outer(x["erase"], x["k"]))


def back_write_gated_delta(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    delta, g = x["v"] - r, x["write"]
    h = times(p, x["k"])
    found = {"write": h * delta, "v": g * h, "k": transposed_times(p, g * delta)}
    return found, -g * h, p


def back_error_gated_delta(
    p: Tensor, s: Tensor, r: Tensor, x: Named
) -> tuple[Named, Tensor | None, Tensor]:
    delta = x["v"] - r
    g = error_gate(delta, x)
    h = times(p, x["k"])
    c = h * delta * g * (1 - g)
    d_delta = g * h + 2 / delta.shape[-1] * delta * c.sum(-1, keepdim=True)
    found = {"logit": c, "v": d_delta, "k": transposed_times(p, g * delta)}
    return found, -d_delta, p


def back_e63m(p: Tensor, s: Tensor, r: Tensor, x: Named) -> tuple[Named, Tensor | None, Tensor]:
    rho, value = torch.tanh(r), slots(r, x)
    d_input = (1 - x["row"]) * times(p, x["k"]) * (1 - value**2)
    found = {
        "input": d_input,
        "mix": outer(d_input, rho),
        "row": (p * (s - outer(value, x["k"]))).sum(-1),
        "k": transposed_times(p, (1 - x["row"]) * value),
    }
    dr = transposed_times(x["mix"], d_input) * (1 - rho**2)
    return found, dr, x["row"][..., None] * p


def back_m2rnn(p: Tensor, s: Tensor, r: Tensor, x: Named) -> tuple[Named, Tensor | None, Tensor]:
    """Matrix-state specification 13, whose state is the transpose."""
    keep, new = x["decay"][..., None], mixed(s, x)
    inner = (1 - keep) * p * (1 - new**2)
    found = {
        "v": times(inner, x["k"]),
        "k": transposed_times(inner, x["v"]),
        "decay": (p * (s - new)).sum(-1),
        "mixes": s @ inner.mT,
    }
    return found, None, keep * p + x["mixes"] @ inner


BACKWARD: dict[
    str, Callable[[Tensor, Tensor, Tensor, Named], tuple[Named, Tensor | None, Tensor]]
] = {
    "decayed": back_decayed,
    "delta": back_delta,
    "read_gated": back_read_gated,
    "value_gated": back_value_gated,
    "value_gated_inverse": back_value_gated_inverse,
    "retain_gated_delta": back_retain_gated_delta,
    "state_gated_delta": back_state_gated_delta,
    "residual": back_residual,
    "erase_write": back_erase_write,
    "write_gated_delta": back_write_gated_delta,
    "error_gated_delta": back_error_gated_delta,
    "m2rnn": back_m2rnn,
    "e63m": back_e63m,
}


def activate(name: str, pre: Tensor) -> Tensor:
    """Apply a nonlinearity to the new state."""
    if name == "tanh":
        return torch.tanh(pre)
    if name == "linear":
        return pre
    squares = pre.square().sum((-2, -1), keepdim=True)
    count = pre.shape[-1] * pre.shape[-2] if name == "rmsnorm" else 1
    return pre / ((squares / count).sqrt() + 1e-6)


def activate_back(name: str, g: Tensor, pre: Tensor, new: Tensor) -> Tensor:
    """Return the gradient before the nonlinearity from the one after it."""
    if name == "tanh":
        return g * (1 - new**2)
    if name == "linear":
        return g
    count = pre.shape[-1] * pre.shape[-2] if name == "rmsnorm" else 1
    size = (pre.square().sum((-2, -1), keepdim=True) / count).sqrt()
    inner = (g * pre).sum((-2, -1), keepdim=True)
    return g / (size + 1e-6) - pre * inner / (count * size * (size + 1e-6) ** 2)


def run(
    step: str, nonlinearity: str, sequences: Named, parameters: Named, start: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the states before and after every nonlinearity, the first one included, and y."""
    states, pres, reads = [start], [], []
    for t in range(sequences["q"].shape[1]):
        x = {name: sequence[:, t] for name, sequence in sequences.items()} | parameters
        r = times(states[-1], x.get("read", x["k"]))
        pres.append(FORWARD[step](states[-1], r, x))
        states.append(activate(nonlinearity, pres[-1]))
        reads.append(times(states[-1], x["q"]))
    return states, pres, torch.stack(reads, dim=1)


def gradients(
    step: str,
    nonlinearity: str,
    sequences: Named,
    parameters: Named,
    start: Tensor,
    dy: Tensor,
    d_final: Tensor,
) -> Named:
    """Return the gradients of sequences, parameters and the first state (as ``start``)."""
    states, pres, _ = run(step, nonlinearity, sequences, parameters, start)
    found = {name: torch.zeros_like(tensor) for name, tensor in sequences.items()}
    sums: Named = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    ds = d_final
    for t in reversed(range(len(pres))):
        old, new = states[t], states[t + 1]
        x = {name: sequence[:, t] for name, sequence in sequences.items()} | parameters
        read = "read" if "read" in x else "k"
        g = ds + outer(dy[:, t], x["q"])
        found["q"][:, t] = transposed_times(new, dy[:, t])
        p = activate_back(nonlinearity, g, pres[t], new)
        grads, dr, ds = BACKWARD[step](p, old, times(old, x[read]), x)
        for name, grad in grads.items():
            if name in sums:
                sums[name] += grad.sum_to_size(sums[name].shape)
            else:
                found[name][:, t] = grad
        if dr is not None:
            found[read][:, t] += transposed_times(old, dr)
            ds = ds + outer(dr, x[read])
    return found | sums | {"start": ds}


def key_norm_back(k: Tensor, g: Tensor) -> Tensor:
    """Return N(k, g), the gradient through k / (norm(k) + 1e-6) (specification 2)."""
    norm = k.square().sum(-1, keepdim=True).sqrt()
    m = norm + 1e-6
    return g / m - k * (k * g).sum(-1, keepdim=True) / (norm * m**2)


def self_gate_back(y: Tensor, g: Tensor) -> Tensor:
    """Return the gradient through y silu(y) (specification 2)."""
    return g * y * sigmoid(y) * (2 + y * (1 - sigmoid(y)))


def spectral_norm_back(w: Tensor, a: Tensor, b: Tensor, radius: float, g: Tensor) -> Tensor:
    """Return the gradient through W radius / (|a^T W b| + 1e-8) (specification 5)."""
    signed = a @ w @ b
    s = signed.abs() + 1e-8
    return radius / s * (g - (g * w).sum() / s * signed.sign() * torch.outer(a, b))
