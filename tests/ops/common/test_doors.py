"""Operations refuse what they would read out of bounds, before they read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.add_norm.op import add_rms_norm
from elman.ops.attention import causal_attention
from elman.ops.channel import custom_op as channel_custom
from elman.ops.channel import op as channel
from elman.ops.channel.plan import Plan
from elman.ops.channel_delta.op import channel_delta
from elman.ops.channel_delta.rules import Gdn2
from elman.ops.common.slices import Slice
from elman.ops.dense.op import dense_recurrence
from elman.ops.gated_delta.op import gated_delta_rule
from elman.ops.gated_delta.product import gated_delta_product
from elman.ops.matrix_state import custom_op as matrix_custom
from elman.ops.matrix_state import op as matrix
from elman.ops.matrix_state.stacked import DELTA, stacked_plan
from elman.ops.ssd.op import selective_scan
from elman.ops.tape.op import dual_memory

B, T = 3, 2
MATRIX = stacked_plan("delta", 2, 4, 5, **DELTA)
CHANNEL = Plan("e34", (("candidate", Slice(0, 0)),))
Tensors = dict[str, Tensor]
Run = Callable[[Tensors], Any]


def on_matrix(backend: str) -> Run:
    return lambda t: matrix.run(
        MATRIX, [t["x"]], {"decay": t["decay"], "dt_bias": t["dt"]}, t["state"], backend=backend
    )


def on_channel(backend: str) -> Run:
    def run(t: Tensors) -> Any:
        given = {"candidate_bias": t["bias"], "coefficient": t["coefficient"]}
        return channel.run(CHANNEL, [t["x"]], given, t["state"], backend=backend)

    return run


def delta(t: Tensors) -> Any:
    numbers = {"a_log_h": t["a"], "dt_bias_h": t["a"], "write_scale": 1.0}
    sequences = (t["x"], t["x"], t["v"], t["d"], t["d"])
    return gated_delta_rule(*sequences, **numbers, state_bhvk=t["state"], backend="reference")


def product(t: Tensors) -> Any:
    given = (t["x"], t["x"], t["v"], t["d"], t["d"])
    return gated_delta_product(*given, rules=1, state_bhvk=t["state"], backend="reference")


def channels(t: Tensors) -> Any:
    rule = Gdn2(t["x"], t["x"], t["v"], -t["x"].abs(), t["x"], t["v"])
    return channel_delta(rule, state_bhvk=t["state"], backend="reference")


def scan(t: Tensors) -> Any:
    numbers = {"a_log_h": t["a"], "dt_bias_h": t["a"], "skip_h": t["a"], "chunk": 0}
    columns = t["columns"]
    return selective_scan(
        t["x"], t["d"], columns, columns, **numbers, state_bhpn=t["state"], backend="reference"
    )


def steps(t: Tensors) -> Any:
    sequences = dict.fromkeys(("q", "k", "v"), t["x"])
    return matrix.recurrence(
        "delta", sequences, {}, t["state"], nonlinearity="tanh", backend="reference"
    )


def on_tape(backend: str) -> Run:
    def run(t: Tensors) -> Any:
        given = (t["x"], t["w"], None, t["tape"], t["state"])
        resets = t.get("resets")
        return dual_memory(*given, write="shared", backend=backend, resets_bt=resets)

    return run


DOORS: dict[str, tuple[Run, dict[str, tuple[int, ...]]]] = {
    **{
        f"matrix-{backend}": (
            on_matrix(backend),
            {"x": (B, T, 30), "decay": (2,), "dt": (2,), "state": (B, 2, 4, 5)},
        )
        for backend in ("reference", "cpu")
    },
    **{
        f"channel-{backend}": (
            on_channel(backend),
            {"x": (B, T, 6), "bias": (6,), "coefficient": (6,), "state": (B, 6)},
        )
        for backend in ("reference", "cpu")
    },
    "steps": (steps, {"x": (B, T, 2, 4), "state": (B, 2, 4, 4)}),
    "dense": (
        lambda t: dense_recurrence(
            "tanh",
            [t["x"]],
            [t["weight"]],
            [t["state"]],
            backend="reference",
            resets_bt=t.get("resets"),
        ),
        {"x": (B, T, 6), "weight": (6, 6), "state": (B, 6)},
    ),
    **{
        f"tape-{backend}": (
            on_tape(backend),
            {"x": (B, T, 6), "w": (6, 6), "tape": (B, 4, 6), "state": (B, 6)},
        )
        for backend in ("reference", "cpu")
    },
    "gated_delta": (
        delta,
        {"x": (B, T, 2, 4), "v": (B, T, 2, 5), "d": (B, T, 2), "a": (2,), "state": (B, 2, 5, 4)},
    ),
    "product": (
        product,
        {"x": (B, T, 2, 4), "v": (B, T, 2, 5), "d": (B, T, 2), "state": (B, 2, 5, 4)},
    ),
    "channel_delta": (
        channels,
        {"x": (B, T, 2, 4), "v": (B, T, 2, 5), "state": (B, 2, 5, 4)},
    ),
    "ssd": (
        scan,
        {
            "x": (B, T, 2, 4),
            "d": (B, T, 2),
            "columns": (B, T, 1, 3),
            "a": (2,),
            "state": (B, 2, 4, 3),
        },
    ),
}
doors = pytest.mark.parametrize("name", DOORS)


def drawn(name: str, batch: int = B, time: int = T) -> Tensors:
    """Return the tensors of a call; sequences and states have the batch."""
    torch.manual_seed(1)
    made = {}
    for key, shape in DOORS[name][1].items():
        sizes = list(shape)
        if shape[0] == B:
            sizes[0] = batch
            if key not in ("state", "tape"):
                sizes[1] = time
        made[key] = torch.randn(sizes)
    return made


@doors
@pytest.mark.parametrize("wrong", ["batch", "dtype", "device", "width", "axes"])
def test_a_wrong_state_is_refused(name, wrong) -> None:
    run, shapes = DOORS[name]
    tensors = drawn(name)
    run(tensors)
    for part in {"state", "tape"} & shapes.keys():
        state = tensors[part]
        change: dict[str, Any] = {
            "batch": state[:1],
            "dtype": state.double(),
            "device": state.to("meta"),
            "width": state[..., :-1],
            "axes": state[0],
        }
        with pytest.raises(ValueError, match=rf"^({part}( \d)?|parameter \w+) of .*expected"):
            run(tensors | {part: change[wrong]})


@pytest.mark.parametrize("name", ["dense", "tape-reference", "tape-cpu"])
def test_wrong_resets_are_refused(name) -> None:
    run, _ = DOORS[name]
    resets = torch.zeros(B, T, dtype=torch.bool)
    for wrong in (resets[:1], resets[:, 1:], resets[..., None], resets.int(), resets.to("meta")):
        with pytest.raises(ValueError, match=r"^resets of .*expected"):
            run(drawn(name) | {"resets": wrong})


@doors
def test_a_sequence_or_parameter_of_another_size_is_refused(name) -> None:
    run, shapes = DOORS[name]
    tensors = drawn(name)
    for part, shape in shapes.items():
        if part in ("state", "tape", "weight", "w", "a"):
            continue
        short = tensors[part][..., :-1] if len(shape) < 4 else tensors[part][:1]
        if part in ("d", "columns", "v"):
            short = tensors[part][:1]
        with pytest.raises(ValueError, match=r" of .*expected \["):
            run(tensors | {part: short})


@doors
@pytest.mark.parametrize(("batch", "time"), [(0, T), (B, 0), (0, 0)], ids="{}".format)
def test_nothing_of_nothing_and_its_gradients(name, batch, time) -> None:
    run, shapes = DOORS[name]
    tensors = {key: one.requires_grad_() for key, one in drawn(name, batch, time).items()}
    out, *last = run(tensors)
    last = [one for part in last for one in (part if isinstance(part, tuple) else (part,))]
    states = [tensors[key] for key in ("tape", "state") if key in shapes]
    assert out.shape[:2] == (batch, time)
    for after, before in zip(last, states, strict=True):
        assert torch.equal(after, before)
    weights = [torch.randn_like(one) for one in last]
    others = [one for key, one in tensors.items() if key not in ("tape", "state")]
    found = torch.autograd.grad([out, *last], others + states, [torch.ones_like(out), *weights])
    assert not any(one.any() for one in found[: len(others)])
    for one, weight in zip(found[len(others) :], weights, strict=True):
        assert torch.equal(one, weight)


def test_minus_zero_passes_without_steps() -> None:
    tensors = drawn("channel-cpu", time=0)
    tensors["state"] = torch.full_like(tensors["state"], -0.0)
    assert on_channel("cpu")(tensors)[1].signbit().all()


@pytest.mark.parametrize("wrong", ["more", "fewer"])
def test_other_parameters_are_refused_by_name(wrong) -> None:
    x, state, bias = torch.randn(B, T, 6), torch.zeros(B, 6), torch.zeros(6)
    given = {"candidate_bias": bias}
    if wrong == "more":
        given |= {"coefficient": bias, "another": bias}
    words = f"^parameters of channel e34: given {', '.join(given)}, expected candidate_bias, coef"
    with pytest.raises(ValueError, match=words):
        channel.run(CHANNEL, [x], given, state, backend="cpu")


def operator_tensors(name: str) -> tuple[Tensors, Callable[[Tensors], Any]]:
    tensors = drawn(f"{name}-cpu")
    if name == "matrix":
        call = torch.ops.elman.matrix_state
        return tensors, lambda t: call(
            MATRIX.text, "cpu", True, [t["x"]], [t["decay"], t["dt"]], t["state"], None
        )
    call = torch.ops.elman.channel
    return tensors, lambda t: call(
        CHANNEL.text, "cpu", [t["x"]], [t["bias"], t["coefficient"]], t["state"], None
    )


@pytest.mark.parametrize("name", ["matrix", "channel"])
def test_the_operators_themselves_refuse_what_they_would_misread(name) -> None:
    tensors, call = operator_tensors(name)
    call(tensors)
    parameter = "decay" if name == "matrix" else "bias"
    for change in (
        {"state": tensors["state"][:1]},
        {"state": tensors["state"].double()},
        {"x": tensors["x"][..., :-1]},
        {parameter: tensors[parameter][:1]},
        {parameter: tensors[parameter].half()},
        {key: one[:0] for key, one in tensors.items() if key in ("x", "state")},
        {"x": tensors["x"][:, :0]},
    ):
        with pytest.raises(ValueError, match=r" of .*expected "):
            call(tensors | change)


@pytest.mark.parametrize("name", ["matrix", "channel"])
def test_a_kernel_of_the_cpu_takes_no_tensors_of_another_device(name) -> None:
    tensors = {key: one.to("meta") for key, one in drawn(f"{name}-cpu").items()}
    numbers = [tensors[key] for key in tensors if key not in ("x", "state")]
    given = ([tensors["x"]], numbers, tensors["state"], None)
    calls: dict[str, Callable[[], Any]] = {
        "matrix": lambda: matrix_custom.forward(
            matrix_custom.Call(MATRIX.text, "cpu", False, *given)
        ),
        "channel": lambda: channel_custom.forward(channel_custom.Call(CHANNEL.text, "cpu", *given)),
    }
    with pytest.raises(UserError, match=r"kernels.backend=cpu: the tensors lie on meta; use "):
        calls[name]()


def test_norm_and_attention_compare_what_they_add_and_multiply() -> None:
    stream, gain = torch.randn(2, 3, 8), torch.ones(8)

    def norm(branch: Tensor | None, gain: Tensor) -> Any:
        return add_rms_norm(stream, branch, gain, torch.float32, backend="reference")

    with pytest.raises(ValueError, match=r"branch of add_rms_norm: shape \[1, 3, 8\], expected"):
        norm(stream[:1], gain)
    with pytest.raises(ValueError, match=r"gain of add_rms_norm: shape \[1\], expected \[8\]"):
        norm(None, gain[:1])
    q, past = torch.randn(2, 3, 2, 4), torch.randn(2, 5, 2, 4)
    assert causal_attention(q, past, past, theta=1e4, context=0).shape == q.shape
    with pytest.raises(ValueError, match=r"keys of causal_attention: shape \[1, 5, 2, 4\], exp"):
        causal_attention(q, past[:1], past, theta=1e4, context=0)
    with pytest.raises(ValueError, match=r"values of causal_attention: dtype float64, expected fl"):
        causal_attention(q, past, past.double(), theta=1e4, context=0)
    nothing = causal_attention(q[:, :0], past, past, theta=1e4, context=2)
    assert nothing.shape == (2, 0, 2, 4)
