"""Functions of numbers, and their derivatives, for the Triton kernels: maps.h in another language.

All are in fp32. NaN goes through every function, and none makes one of a large argument.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _ptx(x, text: tl.constexpr):
    return tl.inline_asm_elementwise(text, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def tanh(x, fast: tl.constexpr):
    """Return tanh(x).

    Without ``fast``, the fit of csrc/cells/math.h: relative error 4e-7, and 1 beyond 8. The
    quotient of exponentials, which is usual in Triton, is inf / inf from 44 on and has no digits
    near 0. With ``fast``, NVIDIA's own instruction, relative error 2^-11, for narrow sequences.
    """
    if fast:
        return _ptx(x, "tanh.approx.f32 $0, $1;")
    else:
        x = tl.where(x > 8.0, 8.0, tl.where(x < -8.0, -8.0, x))
        u = x * x
        p = u * 1.1428417565184645e-05 + 0.002951023168861866
        q = u * 2.459209156313591e-07 + 0.00023866909032221884
        p = p * u + 0.12925662100315094
        q = q * u + 0.02381555177271366
        p = p * u + 0.9999998807907104
        q = q * u + 0.4625887870788574
        q = q * u + 1.0
        return x * p / q


@triton.jit
def exponential(x, fast: tl.constexpr):
    """Return exp(x). With ``fast``, results below 1e-38 are 0, which saves four instructions."""
    if fast:
        return _ptx(x * 1.4426950408889634, "ex2.approx.ftz.f32 $0, $1;")
    else:
        return tl.exp(x)


@triton.jit
def reciprocal(x, fast: tl.constexpr):
    """Return 1 / x. With ``fast``, that of numbers above 1e38 is 0."""
    if fast:
        return _ptx(x, "rcp.approx.ftz.f32 $0, $1;")
    else:
        return 1.0 / x


@triton.jit
def square_root(x, fast: tl.constexpr):
    """Return the square root of x."""
    if fast:
        return _ptx(x, "sqrt.approx.ftz.f32 $0, $1;")
    else:
        return tl.sqrt(x)


@triton.jit
def sigmoid(x, fast: tl.constexpr):
    """Return 1 / (1 + exp(-x)); exp may be inf, and the quotient is then 0."""
    if fast:  # the sign in the factor saves an instruction
        return reciprocal(1.0 + _ptx(x * -1.4426950408889634, "ex2.approx.ftz.f32 $0, $1;"), fast)
    else:
        return reciprocal(1.0 + exponential(-x, fast), fast)


@triton.jit
def softplus(x, fast: tl.constexpr):
    """Return log(1 + exp(x)), its logarithm by a series as in csrc/cells/math.h."""
    u = exponential(-tl.abs(x), fast)
    s = u * reciprocal(u + 2.0, fast)  # log(1 + u) = 2 artanh(s)
    z = s * s
    p = z * 0.2801198661327362 + 0.28001806139945984
    p = p * z + 0.4002152681350708
    p = p * z + 0.666664183139801
    return tl.where(x < 0.0, 0.0, x) + (p * z) * s + s * 2.0


@triton.jit
def silu(x, fast: tl.constexpr):
    """Return x sigmoid(x). With ``fast``, the sigmoid comes from one instruction, tanh."""
    if fast:
        half = 0.5 * x
        return half * tanh(half, fast) + half
    else:
        return x * sigmoid(x, fast)


@triton.jit
def silu_slope(x, fast: tl.constexpr):
    """Return the slope of :func:`silu`."""
    if fast:
        half = 0.5 * x
        t = tanh(half, fast)
        return (half * (1.0 - t * t) + t) * 0.5 + 0.5
    else:
        s = sigmoid(x, fast)
        return s + x * s * (1.0 - s)


@triton.jit
def activate(x, act: tl.constexpr, fast: tl.constexpr):
    """Return an activation: none, sigmoid, tanh or silu."""
    if act == "sigmoid":
        return sigmoid(x, fast)
    elif act == "tanh":
        return tanh(x, fast)
    elif act == "silu":
        return silu(x, fast)
    else:
        return x


@triton.jit
def slope_of(y, act: tl.constexpr):
    """Return the slope of an activation but silu from its value y."""
    if act == "sigmoid":
        return y * (1.0 - y)
    elif act == "tanh":
        return 1.0 - y * y
    else:
        return y * 0.0 + 1.0


@triton.jit
def activate_back(dy, x, act: tl.constexpr, fast: tl.constexpr):
    """Return the gradient of an activation's argument x from that of its value."""
    if act == "none":
        return dy
    elif act == "silu":
        return dy * silu_slope(x, fast)
    else:
        return dy * slope_of(activate(x, act, fast), act)


@triton.jit
def unit(x_n, fast: tl.constexpr):
    """Return x / (norm(x) + 1e-6)."""
    return x_n * reciprocal(square_root(tl.sum(x_n * x_n, 1, keep_dims=True), fast) + 1e-6, fast)


@triton.jit
def unit_back(dy_n, x_n, fast: tl.constexpr):
    """Return the gradient through :func:`unit`; the direction's share is 0 at x = 0."""
    norm = square_root(tl.sum(x_n * x_n, 1, keep_dims=True), fast)
    scale = reciprocal(norm + 1e-6, fast)
    along = (
        tl.sum(x_n * dy_n, 1, keep_dims=True)
        * scale
        * scale
        * reciprocal(tl.where(norm > 0.0, norm, 1.0), fast)
    )
    return dy_n * scale - x_n * along


@triton.jit
def mapped(x, factor, dt_bias, kind: tl.constexpr, fast: tl.constexpr):
    """Return a head's decay or write gate from what stands in the source.

    Args:
        x: That number.
        factor: The head's decay itself, or exp(a_log) of the mamba map.
        dt_bias: Of the mamba map.
        kind: none, parameter, sigmoid, mamba, or given: mapped before the loop over time.
    """
    if kind == "parameter":
        return factor
    elif kind == "sigmoid":
        return sigmoid(x, fast)
    elif kind == "mamba":
        return exponential(-factor * softplus(x + dt_bias, fast), fast)
    elif kind == "given":
        return x
    else:
        return tl.full([], 1.0, tl.float32)


@triton.jit
def mapped_back(dy, x, y, factor, dt_bias, kind: tl.constexpr, fast: tl.constexpr):
    """Return the gradients of x (and of dt_bias) and of the head's parameter."""
    if kind == "parameter":
        return dy * 0.0, dy
    elif kind == "sigmoid":
        return dy * y * (1.0 - y), dy * 0.0
    elif kind == "given":
        return dy, dy * 0.0
    else:
        tl.static_assert(kind == "mamba")
        rest = -dy * y * factor
        return rest * sigmoid(x + dt_bias, fast), rest * softplus(x + dt_bias, fast)


@triton.jit
def self_gate(y, fast: tl.constexpr):
    """Return y silu(y)."""
    return y * y * sigmoid(y, fast)


@triton.jit
def self_gate_slope(y, fast: tl.constexpr):
    """Return the slope of :func:`self_gate`."""
    s = sigmoid(y, fast)
    return y * s * (2.0 + y * (1.0 - s))


@triton.jit
def packed(x_rn):
    """Return columns in fp16, two neighbours in one number of 32 bits.

    Only for NVIDIA. A tensor of fp16 would have a whole register for each number in a loop.
    """
    half: tl.constexpr = x_rn.shape[1] // 2
    even_rn, odd_rn = tl.split(tl.reshape(x_rn, [x_rn.shape[0], half, 2]))
    text: tl.constexpr = "cvt.rn.f16x2.f32 $0, $2, $1;"
    given = [even_rn, odd_rn]
    return tl.inline_asm_elementwise(text, "=r,f,f", given, dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def unpacked(pairs_rn):
    """Return the columns that :func:`packed` packed, in fp32."""
    text: tl.constexpr = (
        "{.reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b;}"
    )
    both: tl.constexpr = (tl.float32, tl.float32)
    even_rn, odd_rn = tl.inline_asm_elementwise(
        text, "=f,=f,r", [pairs_rn], dtype=both, is_pure=True, pack=1
    )
    return tl.reshape(tl.join(even_rn, odd_rn), [pairs_rn.shape[0], 2 * pairs_rn.shape[1]])


@triton.jit
def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    else:
        half: tl.constexpr = len(parts) // 2
        return tl.join(_joined(parts[:half]), _joined(parts[half:]))


@triton.jit
def _parted(whole, count: tl.constexpr):
    if count == 1:
        return (whole,)
    else:
        first, second = tl.split(whole)
        return _parted(first, count // 2) + _parted(second, count // 2)


@triton.jit
def sums_over_rows(parts):
    """Return the sums over axis 0, [1, columns], of a power of two of tensors [rows, columns].

    Several warps would meet once for all of them, and not once for each.
    """
    return _parted(tl.sum(_joined(parts), 0, keep_dims=True), len(parts))


@triton.jit
def _swapped(x_rn, bit: tl.constexpr):
    """Exchange the rows whose numbers differ in one bit."""
    rows: tl.constexpr = x_rn.shape[0]
    shape: tl.constexpr = [rows >> (bit + 1), 2, (1 << bit) * x_rn.shape[1]]
    x_p2n = tl.reshape(x_rn.to(tl.int32, bitcast=True), shape)
    # (x + y) - x is y: of the sum of integers, the compiler leaves the exchange between threads.
    x_p2n = tl.sum(x_p2n, 1, keep_dims=True) - x_p2n
    return tl.reshape(x_p2n, x_rn.shape).to(tl.float32, bitcast=True)


@triton.jit
def _halved(parts, bit: tl.constexpr):
    """Add pairs of rows whose numbers differ in one bit, and return half as many tensors.

    Of two tensors, rows without the bit have sums of the first, and rows with it of the second.
    """
    halves = ()
    without_r1 = (tl.arange(0, parts[0].shape[0])[:, None] >> bit) % 2 == 0
    for pair in tl.static_range(len(parts) // 2):
        one_rn, other_rn = parts[2 * pair], parts[2 * pair + 1]
        own_rn = tl.where(without_r1, one_rn, other_rn)
        given_rn = tl.where(without_r1, other_rn, one_rn)
        halves = halves + (own_rn + _swapped(given_rn, bit),)
    return halves


@triton.jit
def scattered_sums(parts, bit: tl.constexpr = 0):
    """Return the sums over axis 0 of a power of two of tensors [rows, columns], spread over rows.

    Row r of the first tensor that is returned has the sum of ``parts[r]``, and so on; where there
    are more rows than tensors, these begin anew. With a row in every thread, this sends half as
    many numbers between threads as :func:`sums_over_rows`, or fewer, and each has sums to store.
    """
    if (1 << bit) >= parts[0].shape[0]:
        return parts
    elif len(parts) > 1:
        return scattered_sums(_halved(parts, bit), bit + 1)
    else:
        return scattered_sums((parts[0] + _swapped(parts[0], bit),), bit + 1)
