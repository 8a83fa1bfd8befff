"""What FlashQLA is called with, on a stand-in of its recurrence, against the op's reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.flash_qla import WIDTH
from elman.ops.gated_delta.op import gated_delta_rule
from tests.models import flash_qla_stand_in

HEADS = 2
NAMES = ("q", "k", "v", "decay", "write", "a_log", "dt_bias", "state")


def given(steps: int, *, first: bool, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return all inputs; a state and the parameters of the decay are never narrower than fp32."""
    torch.manual_seed(1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    drawn = {name: torch.randn(2, steps, HEADS, WIDTH) for name in ("q", "k", "v")}
    drawn |= {name: torch.randn(2, steps, HEADS) for name in ("decay", "write")}
    inputs = {name: one.to(dtype) for name, one in drawn.items()}
    inputs |= {name: torch.randn(HEADS).to(wide) for name in ("a_log", "dt_bias")}
    if first:
        inputs["state"] = torch.randn(2, HEADS, WIDTH, WIDTH).to(wide)
    return {name: one.requires_grad_() for name, one in inputs.items()}


def run(inputs: dict[str, Tensor], backend: str) -> tuple[Tensor, Tensor]:
    q, k, v, decay, write, a_log, dt_bias = (inputs[name] for name in NAMES[:-1])
    return gated_delta_rule(
        q,
        k,
        v,
        decay,
        write,
        a_log_h=a_log,
        dt_bias_h=dt_bias,
        write_scale=1.0,
        state_bhvk=inputs.get("state"),
        backend=backend,
    )


def results(inputs: dict[str, Tensor], backend: str, read: tuple[int, ...]) -> list[Tensor]:
    """Return reads, last state, and the gradients of all inputs from some of the two."""
    outputs = run(inputs, backend)
    torch.manual_seed(2)
    weights = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype) for one in outputs]
    chosen, ahead = [outputs[n] for n in read], [weights[n] for n in read]
    found = torch.autograd.grad(chosen, list(inputs.values()), ahead, allow_unused=True)
    return [*outputs, *(torch.zeros(()) if one is None else one for one in found)]


@pytest.mark.parametrize("steps", [1, 64, 70])
@pytest.mark.parametrize("first", [False, True], ids=["from nothing", "carried"])
@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)], ids=["reads", "last state", "both"])
def test_norms_gates_scale_and_states_are_those_of_the_op(steps, first, read, monkeypatch) -> None:
    (called, inputs) = (
        flash_qla_stand_in.install(monkeypatch, torch.float64),
        given(steps, first=first),
    )
    wanted = results(inputs, "reference", read)
    assert not called
    for got, right in zip(results(inputs, "flash_qla", read), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-10)
    assert len(called) == 1


def test_sequences_stay_narrow_and_gates_and_states_are_fp32(monkeypatch) -> None:
    called = flash_qla_stand_in.install(monkeypatch)
    inputs = given(70, first=True, dtype=torch.bfloat16)
    y, last = run(inputs, "flash_qla")
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    (call,) = called
    assert {call[name].dtype for name in "qkv"} == {torch.bfloat16}
    assert {call[name].dtype for name in ("g", "beta", "initial_state")} == {torch.float32}
    for got, right in zip((y, last), run(inputs, "reference"), strict=True):
        assert (got.double() - right.double()).norm() < 0.01 * right.double().norm()


def test_a_recomputed_pass_has_the_same_gradients(monkeypatch) -> None:
    """As train.activation_checkpointing runs it."""
    flash_qla_stand_in.install(monkeypatch, torch.float64)
    inputs = given(5, first=True)
    wanted = torch.autograd.grad(run(inputs, "flash_qla")[0].sum(), inputs["q"])
    y, _ = torch.utils.checkpoint.checkpoint(run, inputs, "flash_qla", use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), inputs["q"]), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_sequences_are_refused_with_what_to_type(dtype, monkeypatch) -> None:
    flash_qla_stand_in.install(monkeypatch)
    with pytest.raises(UserError) as caught:
        run(given(3, first=False, dtype=dtype), "flash_qla")
    assert str(caught.value) == (
        "kernels.backend=flash_qla: FlashQLA takes no fp32; use train.precision=bf16 or "
        "kernels.backend=triton"
    )


@pytest.mark.parametrize(("values", "scale"), [(64, 1.0), (WIDTH, 2.0)])
def test_what_the_package_does_not_compute_never_reaches_it(values, scale, monkeypatch) -> None:
    called = flash_qla_stand_in.install(monkeypatch, torch.float64)
    q, k, v, decay, write, a_log, dt_bias = given(3, first=False).values()
    more: dict[str, Any] = {"a_log_h": a_log, "dt_bias_h": dt_bias, "state_bhvk": None}
    with pytest.raises(UserError, match=r"^kernels\.backend=flash_qla: FlashQLA "):
        gated_delta_rule(
            *(q, k, v[..., :values], decay, write), **more, write_scale=scale, backend="flash_qla"
        )
    assert not called


def test_the_long_compilation_is_told_before_it_begins(monkeypatch, capsys) -> None:
    called = flash_qla_stand_in.install(monkeypatch)
    run(given(1, first=False, dtype=torch.bfloat16), "flash_qla")
    assert called
    assert capsys.readouterr().err == (
        "elman: kernels.backend=flash_qla: tilelang compiles FlashQLA's kernels at their first use "
        "on a machine, which takes about two minutes; later runs find them on disk\n"
    )
