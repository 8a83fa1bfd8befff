"""Parameters of a layer of every cell, straight from the specification; the layers are not asked.

Vector-state specification 1, 3 to 5; matrix-state specification 1, 3 to 12.2; lm-and-training
specification 6. d is the model width, i = int(d * expansion) the inner width, n the state width,
h the number of heads; a convolution adds k taps and a bias per channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Options = Mapping[str, Any]


def e0(d: int, i: int, o: Options) -> int:
    """2di + 3i^2 + 2i; a fixed orthogonal matrix is no parameter, its factor is."""
    free = o["recurrent_norm"] != "scaled_orthogonal"
    return 2 * d * i + 3 * i * i + 2 * i if free else 2 * d * i + 2 * i * i + 2 * i + 1


def e1(d: int, i: int, o: Options) -> int:
    """3di + 2i^2 + i: E1 and E56."""
    return 3 * d * i + 2 * i * i + i


def e4(d: int, i: int, o: Options) -> int:
    """3di + i^2 + 2ir + i, r the rank: given, or the larger of 16 and int(d / (2 expansion))."""
    rank = o["rank"] or max(16, int(d / (2 * o["expansion"])))
    return 3 * d * i + i * i + 2 * i * rank + i


def e14(d: int, i: int, o: Options) -> int:
    """3di + 2i^2 + 2in + 2i + 2n."""
    n = o["n_state"] or i
    return 3 * d * i + 2 * i * i + 2 * i * n + 2 * i + 2 * n


def e23(d: int, i: int, o: Options) -> int:
    """3di + 3i^2 + i; one matrix less where the tape is not written through one of its own."""
    return 3 * d * i + (3 if o["write"] == "full" else 2) * i * i + i


def e33(d: int, i: int, o: Options) -> int:
    """2di + 2i^2 + i: E33 and E36."""
    return 2 * d * i + 2 * i * i + i


def e34(d: int, i: int, o: Options) -> int:
    """2di + i^2 + 2i."""
    return 2 * d * i + i * i + 2 * i


def e37(d: int, i: int, o: Options) -> int:
    """2di + i^2 + i: E37 and E42."""
    return 2 * d * i + i * i + i


def e39(d: int, i: int, o: Options) -> int:
    """2di + i^2."""
    return 2 * d * i + i * i


def e59(d: int, i: int, o: Options) -> int:
    """2di + i^2 + i + 1."""
    return 2 * d * i + i * i + i + 1


def e59b(d: int, i: int, o: Options) -> int:
    """E59's matrix and bias twice, without the scalar."""
    return 2 * d * i + 2 * i * i + 2 * i


def e59c(d: int, i: int, o: Options) -> int:
    """E59, one more matrix and one more scalar."""
    return 2 * d * i + 2 * i * i + i + 2


def e60(d: int, i: int, o: Options) -> int:
    """2di + 2i^2 + i + 1; tied, one matrix less."""
    return 2 * d * i + (1 if o["tied"] else 2) * i * i + i + 1


def e60b(d: int, i: int, o: Options) -> int:
    """W_h, W_x, W_g and two biases."""
    return 2 * d * i + 3 * i * i + 2 * i


def e60c(d: int, i: int, o: Options) -> int:
    """W_h, W_x, U_f, W_f and two biases."""
    return 2 * d * i + 4 * i * i + 2 * i


def e61(d: int, i: int, o: Options) -> int:
    """2di + 2i^2 + 2i; tied, one matrix and one bias: E61, E62 without decay, E64."""
    blocks = 1 if o.get("variant") == "tied" else 2
    return 2 * d * i + blocks * (i * i + i)


def e62(d: int, i: int, o: Options) -> int:
    """As E61; a decay is a third matrix and bias."""
    return e61(d, i, o) + (i * i + i if o["variant"] == "decay" else 0)


def e63(d: int, i: int, o: Options) -> int:
    """2di + 3i^2 + 2i; an independent gate has W_b and b_b, one that reads h U_a and U_b too."""
    more = {"independent": i * i + i, "h_dependent": 3 * i * i + i}
    return 2 * d * i + 3 * i * i + 2 * i + more.get(o["variant"], 0)


def e63m(d: int, i: int, o: Options) -> int:
    """di + 2i^2 + 2ni + n^2 + 2n + nd; rnn one more n^2, lite W_out' [i, n] and W_out [d, i]."""
    lite = o["variant"] == "lite"
    n = o["n_state"] or (max(32, int(i**0.5)) if lite else i)
    cell = d * i + 2 * i * i + 2 * n * i + n * n + 2 * n
    return cell + (i * n + d * i if lite else n * d) + (n * n if o["variant"] == "rnn" else 0)


def e65(d: int, i: int, o: Options) -> int:
    """E61 + i: E65 and E67."""
    return 2 * d * i + 2 * i * i + 3 * i


def e66(d: int, i: int, o: Options) -> int:
    """E61 + 2ir, r given or the larger of i // 4 and 16."""
    return 2 * d * i + 2 * i * i + 2 * i * (o["rank"] or max(i // 4, 16)) + 2 * i


def e67lr(d: int, i: int, o: Options) -> int:
    """E61 + 2ir, r given or the larger of i // 8 and 8."""
    return 2 * d * i + 2 * i * i + 2 * i * (o["rank"] or max(i // 8, 8)) + 2 * i


def e68(d: int, i: int, o: Options) -> int:
    """E61 + 2i."""
    return 2 * d * i + 2 * i * i + 4 * i


def e70(d: int, i: int, o: Options) -> int:
    """di + 3ni + 1 + nd."""
    n = o["n_state"]
    return d * i + 3 * n * i + 1 + n * d


def e71(d: int, i: int, o: Options) -> int:
    """di + 4ni + 2n + nd."""
    n = o["n_state"]
    return d * i + 4 * n * i + 2 * n + n * d


def e72(d: int, i: int, o: Options) -> int:
    """di + 4ni + 3n + nd."""
    n = o["n_state"]
    return d * i + 4 * n * i + 3 * n + n * d


def e73(d: int, i: int, o: Options) -> int:
    """di + 4ni + n + nd: E73 and E73cp."""
    n = o["n_state"]
    return d * i + 4 * n * i + n + n * d


def e74(d: int, i: int, o: Options) -> int:
    """di + 3ni + nd with no_z; each gate of the input adds ni + n, the rest vectors or a scalar."""
    n = o["n_state"]
    gate = n * i + n
    projections = {"full": 3 * n * i + gate, "no_z": 3 * n * i, "tied_kq": 2 * n * i}
    updates = {"residual": n, "ntm": 2 * gate, "retrieved_gate": gate, "ema": gate, "simple": 1}
    gates = {"input": gate, "retain": 2 * n, "state": 2 * n}
    cell = projections.get(o["projection"], n * i)
    return d * i + cell + n * d + updates.get(o["update"], 0) + gates.get(o["gate"], 0)


def e74_diagonal(d: int, i: int, o: Options) -> int:
    """As the full state, but the simple decay is one number per channel."""
    return e74(d, i, o) + (o["n_state"] - 1 if o["update"] == "simple" else 0)


def e74_fixed_decay(d: int, i: int, o: Options) -> int:
    """As E74 no_z, + 1 if the decay is learned."""
    n = o["n_state"]
    return d * i + 3 * n * i + n * d + o["learned_decay"]


def e74_blockdiag(d: int, i: int, o: Options) -> int:
    """The projections of E74 and nothing else."""
    n, matrices = o["n_state"], {"no_z": 3, "tied_kq": 2, "tied_kvq": 1}
    return d * i + matrices[o["projection"]] * n * i + n * d


def e74_lowrank(d: int, i: int, o: Options) -> int:
    """The projections of E74 and W_r [r, n]; R is fixed."""
    return e74_blockdiag(d, i, o) + o["rank"] * o["n_state"]


def e75(d: int, i: int, o: Options) -> int:
    """di + 4hni + hn + hnd; behind its projection 5hnd + hn, the convolution on 3hn channels."""
    hn = o["n_heads"] * o["n_state"]
    if o["conv_mode"] == "post":
        return 5 * hn * d + hn + 3 * hn * (o["d_conv"] + 1)
    return d * i + 4 * hn * i + hn + hn * d


def e88(d: int, i: int, o: Options) -> int:
    """Matrix-state specification 12.2; values are as wide as int(h n expansion), not i."""
    h, keys = o["n_heads"], o["n_heads"] * o["n_state"]
    values = int(keys * o["expansion"])
    channels = 2 * keys + (0 if o["tie_kv"] else values)
    v = values // h
    decays = {"mamba": d * h + 2 * h, "simple": d * h, "constant": h, "none": 0}
    mixes = {"weighted_sum": h + v * d, "input_weighted": d * h + v * d, "sum": v * d}
    count = d * channels + decays[o["decay_mode"]] + mixes.get(o["head_mix"], values * d)
    count += (o["d_conv"] if o["use_conv"] else 0) * channels
    count += d * values * o["use_gate"] + d * h * o["use_write_gate"]
    kept = o["use_output_norm"] or o["phantom_norm_gain"]
    return count + values * o["use_value_residual"] + v * kept


def e97(d: int, i: int, o: Options) -> int:
    """E88 with gates of the values and, with a split edit, of the keys."""
    keys = o["n_heads"] * o["n_state"]
    return e88(d, i, o) + d * int(keys * o["expansion"]) + d * keys * (o["edit"] == "split")


def m2rnn(d: int, i: int, o: Options) -> int:
    """Matrix-state specification 13: D (qK + kK + 2hV + h) + 2h + hV^2 + hV + hVD."""
    heads, width = o["n_heads"], o["n_state"]
    keys = (o["key_width"] or width) * (1 if o["shared_keys"] else heads)
    values = heads * width
    count = d * (2 * keys + 3 * values + heads) + 2 * heads + values * width + values
    taps = o["d_conv"] if o["use_conv"] else 0
    return count + taps * (2 * keys + values) + values * o["use_output_norm"]


def cudagru(d: int, i: int, o: Options) -> int:
    """2di + 6i^2 + 3i."""
    return 2 * d * i + 6 * i * i + 3 * i


def cudalstm(d: int, i: int, o: Options) -> int:
    """2di + 8i^2 + 4i."""
    return 2 * d * i + 8 * i * i + 4 * i


def slstm(d: int, i: int, o: Options) -> int:
    """2di + 8i^2/h + 5i: an LSTM's matrices in blocks, one bias for each gate, a norm's gain."""
    return 2 * d * i + 8 * i * i // o["n_heads"] + 5 * i


def mingru(d: int, i: int, o: Options) -> int:
    """2di, + di exactly where the expansion is not 1."""
    return 2 * d * i + (d * i if o["expansion"] != 1.0 else 0)


def minlstm(d: int, i: int, o: Options) -> int:
    """3di, + di exactly where the expansion is not 1."""
    return 3 * d * i + (d * i if o["expansion"] != 1.0 else 0)


def gru(d: int, i: int, o: Options) -> int:
    """2di + 6i^2 + 6i: PyTorch's GRU has two biases per gate."""
    return 2 * d * i + 6 * i * i + 6 * i


def lstm(d: int, i: int, o: Options) -> int:
    """2di + 8i^2 + 8i, two biases per gate."""
    return 2 * d * i + 8 * i * i + 8 * i


def llama(d: int, i: int, o: Options) -> int:
    """4da + 3dm + 2d: a whole heads, m given or 8d/3 up to a multiple of 256; its two norms."""
    heads = o["head_dim"] * (d // o["head_dim"])
    width = o["mlp_width"] or math.ceil(int(8 * d / 3) / 256) * 256
    return 4 * d * heads + 3 * d * width + 2 * d


def mamba2(d: int, i: int, o: Options) -> int:
    """d (2i + 2gN + h) + (k + 1)(i + 2gN) + 3h + i + id, h = i / head_dim, g groups, k taps."""
    heads, columns = i // o["head_dim"], o["n_groups"] * o["n_state"]
    convolved = i + 2 * columns
    return d * (i + convolved + heads) + (o["d_conv"] + 1) * convolved + 3 * heads + i + i * d


def mamba3(d: int, i: int, o: Options) -> int:
    """d (2i + 2gN + 3h + r) + 2h + 2hN + 2N + id, r pairs of columns that turn."""
    heads, columns = i // o["head_dim"], o["n_groups"] * o["n_state"]
    pairs = int(o["n_state"] * float(o["rope_fraction"])) // 2
    rows = 2 * i + 2 * columns + 3 * heads + pairs
    return d * rows + 2 * heads + 2 * heads * o["n_state"] + 2 * o["n_state"] + i * d


def fla_gdn(d: int, i: int, o: Options) -> int:
    """2dK + 3dV + 2dh + 4(2K + V) + 2h + v, K = d and V = i with dim // 128 heads, v = V / h."""
    heads = o["n_heads"] or next(h for h in range(max(1, d // 128), 0, -1) if d % h == 0)
    width = o["head_dim"] or d // heads
    keys, values = heads * width, heads * int(width * o["expansion"])
    taps = o["d_conv"] + o["conv_bias"] if o["use_conv"] else 0
    gates = 2 if o["use_gate"] else 1
    projected = d * (2 * keys + (1 + gates) * values + 2 * heads)
    return projected + taps * (2 * keys + values) + 2 * heads + values // heads


def delta_widths(d: int, o: Options) -> tuple[int, int, int, int]:
    """Heads, keys, values and taps of a layer of flash-linear-attention."""
    heads = o["n_heads"] or next(h for h in range(max(1, d // 128), 0, -1) if d % h == 0)
    width = o["head_dim"] or d // heads
    taps = o["d_conv"] + o["conv_bias"] if o["use_conv"] else 0
    return heads, heads * width, heads * int(width * o["expansion"]), taps


def kda(d: int, i: int, o: Options) -> int:
    """d (2K + 2V + h) + 4 (2K + V) + 2 dv + v (K + V) + h + K + V + v: gates of rank v."""
    heads, keys, values, taps = delta_widths(d, o)
    v = values // heads
    gates = 2 * d * v + v * (keys + values) + values
    return (
        d * (2 * keys + 2 * values + heads) + taps * (2 * keys + values) + gates + heads + keys + v
    )


def gdn2(d: int, i: int, o: Options) -> int:
    """KDA with d (K + V) of gates in the place of dh."""
    heads, keys, values, _ = delta_widths(d, o)
    return kda(d, i, o) + d * (keys + values - heads)


def deltaproduct(d: int, i: int, o: Options) -> int:
    """d (K + nK + nV + nh + h + 2V) + 4 (K + nK + nV) + 2h + v, n rules in a step."""
    heads, keys, values, taps = delta_widths(d, o)
    convolved = keys + o["n_householder"] * (keys + values)
    count = d * (convolved + o["n_householder"] * heads + values) + taps * convolved
    count += (d * heads + 2 * heads) * o["use_forget_gate"] + d * values * o["use_gate"]
    return count + values // heads


def rwkv7_rank(name: str, times: float, d: int, o: Options) -> int:
    """As given, or a multiple of 32 near times sqrt(d)."""
    return o[name] or max(32, round(times * math.sqrt(d) / 32) * 32)


def rwkv7(d: int, i: int, o: Options) -> int:
    """4d^2 + 2d (w + a + g) + 13d: three products of two matrices, two of them with a bias."""
    wide = o["head_dim"] / 64
    ranks = rwkv7_rank("decay_rank", 2.5 * wide, d, o) + rwkv7_rank("a_rank", 2.5 * wide, d, o)
    return 4 * d * d + 2 * d * (ranks + rwkv7_rank("gate_rank", 5, d, o)) + 13 * d


def rwkv7_later(d: int, o: Options) -> int:
    """2dv + d: what every layer but the first has more."""
    return 2 * d * rwkv7_rank("v_rank", 1.7 * o["head_dim"] / 64, d, o) + d


FORMULAS: dict[str, Callable[[int, int, Options], int]] = {
    "cudagru": cudagru,
    "cudalstm": cudalstm,
    "deltaproduct": deltaproduct,
    "e0": e0,
    "e1": e1,
    "e4": e4,
    "e14": e14,
    "e23": e23,
    "e33": e33,
    "e34": e34,
    "e36": e33,
    "e37": e37,
    "e39": e39,
    "e42": e37,
    "e56": e1,
    "e59": e59,
    "e59b": e59b,
    "e59c": e59c,
    "e60": e60,
    "e60b": e60b,
    "e60c": e60c,
    "e61": e61,
    "e62": e62,
    "e63": e63,
    "e63m": e63m,
    "e64": e61,
    "e65": e65,
    "e66": e66,
    "e67": e65,
    "e67lr": e67lr,
    "e68": e68,
    "e70": e70,
    "e71": e71,
    "e72": e72,
    "e73": e73,
    "e73cp": e73,
    "e74": e74,
    "e74_blockdiag": e74_blockdiag,
    "e74_diagonal": e74_diagonal,
    "e74_fixed_decay": e74_fixed_decay,
    "e74_lowrank": e74_lowrank,
    "e75": e75,
    "e88": e88,
    "e97": e97,
    "fla_gdn": fla_gdn,
    "gdn2": gdn2,
    "gru": gru,
    "kda": kda,
    "llama": llama,
    "lstm": lstm,
    "m2rnn": m2rnn,
    "mamba2": mamba2,
    "mamba3": mamba3,
    "mingru": mingru,
    "minlstm": minlstm,
    "rwkv7": rwkv7,
    "slstm": slstm,
}


def layer_params(cell: str, dim: int, options: Options) -> int:
    """Count one layer of a cell whose every option is given."""
    inner = int(dim * options.get("expansion", 1.0))
    count = FORMULAS[cell](dim, inner, options)
    # E88, the delta rules and E75's post mode convolve other channels, and count them themselves.
    own = (
        cell in ("e88", "e97", "m2rnn", "fla_gdn", "kda", "gdn2", "deltaproduct")
        or options.get("conv_mode") == "post"
    )
    conv = inner * (options["d_conv"] + 1) if options.get("use_conv") and not own else 0
    return count + conv


def model_params(
    cell: str,
    dim: int,
    depth: int,
    wrapper: str,
    options: Options,
    mlp_ratio: float = 0.0,
    vocabulary: int = 256,
) -> int:
    """Count a language model: V d + depth (layer + norm) + norm (lm-and-training 6).

    A SwiGLU MLP behind each layer adds 3 d h + d, its norm included.
    """
    norm = dim * (2 if wrapper == "legacy_ln" else 1)
    # The transformer's two norms stand inside its layer.
    before = 0 if cell == "llama" else norm
    later = (depth - 1) * rwkv7_later(dim, options) if cell == "rwkv7" else 0
    hidden = math.ceil(int(mlp_ratio * dim) / 128) * 128
    mlp = 3 * dim * hidden + dim if mlp_ratio else 0
    return (
        vocabulary * dim + depth * (layer_params(cell, dim, options) + before + mlp) + later + norm
    )
