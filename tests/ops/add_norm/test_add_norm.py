"""Residual add and RMSNorm on devices without the kernel: plain PyTorch, to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.kernels import driver
from elman.layers import E1
from elman.models import backends
from elman.models.blocks.norm import RMSNorm
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.ops.add_norm import op
from elman.ops.common.precision import no_autocast

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def plain(stream: Tensor, branch: Tensor | None, gain: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Lm-and-training specification 1.2: the sum, and its norm by PyTorch's own operator."""
    total = stream if branch is None else stream + branch
    return [total, nn.functional.rms_norm(total, gain.shape, gain, 1e-5).to(dtype)]


@pytest.mark.parametrize(
    ("wide", "branch", "dtype"),
    [(FP32, BF16, BF16), (FP32, FP32, FP32), (FP32, None, BF16), (FP64, FP64, FP64)],
    ids=["bf16", "fp32", "alone", "fp64"],
)
def test_the_reference_on_a_cpu_is_pytorchs_to_the_bit(wide, branch, dtype) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(37, backend="reference", dtype=wide)
    nn.init.normal_(norm.weight)
    leaves = [torch.randn(2, 5, 37, dtype=wide)]
    if branch is not None:
        leaves.append(torch.randn(2, 5, 37).to(branch))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    given = leaves[1] if len(leaves) > 1 else None
    with torch.autocast("cpu", BF16, enabled=dtype == BF16):
        found = norm(leaves[0], given)
    with no_autocast(leaves[0]):
        wanted = plain(leaves[0], given, norm.weight, dtype)
    results = []
    for outputs in (found, wanted):
        loss = sum((out.double().sin() * 3).sum() for out in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, [*leaves, norm.weight])])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("alone", [False, True], ids=["added", "alone"])
def test_gradients_are_those_of_small_differences(alone) -> None:
    torch.manual_seed(0)
    stream, branch, gain = (
        torch.randn(shape, dtype=FP64, requires_grad=True) for shape in ((2, 3, 5), (2, 3, 5), (5,))
    )

    def run(stream: Tensor, branch: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        given = None if alone else branch
        total, normed = op.add_rms_norm(stream, given, gain, FP64, backend="reference")
        return total * 1 if alone else total, normed + 0 * branch

    assert torch.autograd.gradcheck(run, (stream, branch, gain))


def test_keys_and_count_of_a_model() -> None:
    model = LanguageModel(8, [E1(8), E1(8)], backend="reference")
    names = [name for name in model.state_dict() if name.startswith(("norms", "final_norm"))]
    assert names == ["norms.0.weight", "norms.1.weight", "final_norm.weight"]
    assert model.num_params() == 256 * 8 + 3 * 8 + 2 * sum(p.numel() for p in E1(8).parameters())


@pytest.mark.parametrize("requested", ["auto", "reference"])
@pytest.mark.parametrize("name", ["e88_tiny", "mamba2"])
def test_the_norms_of_a_model_have_the_backend_that_was_asked_for(name, requested) -> None:
    config = compose_config([f"model={name}"]).model.model_copy(update={"wrapper": "rms"})
    config = config.model_copy(update={"expected_params": None})
    model = build_model(config, backend=requested, device="meta")
    assert {norm.backend for norm in (*model.norms, model.final_norm)} == {requested}


def test_a_model_takes_no_backend_that_there_is_not() -> None:
    with pytest.raises(UserError, match=r"^kernels\.backend=cdua: no such backend.*cuda"):
        LanguageModel(8, [], backend="cdua")


@pytest.mark.parametrize("device_type", ["meta", "mps"])
@pytest.mark.parametrize("requested", ["auto", "cpu", "cuda", "reference"])
def test_on_other_devices_pytorch_computes_the_norms(requested, device_type) -> None:
    assert backends.norm_backend(requested, device_type) == "reference"


ON_A_CPU = {"auto": "cpu", "cpu": "cpu"}


@pytest.mark.parametrize("requested", [*ON_A_CPU, "cuda", "triton", "reference", "torch"])
def test_on_a_cpu_its_kernel_computes_them_unless_another_backend_is_named(
    requested, monkeypatch
) -> None:
    monkeypatch.setattr(backends, "compiler_problem", lambda: None)
    assert backends.norm_backend(requested, "cpu") == ON_A_CPU.get(requested, "reference")


def test_without_a_compiler_pytorch_computes_the_norms_and_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(backends, "compiler_problem", lambda: "no C++ compiler; install one")
    backends._say_slow.cache_clear()
    assert {backends.norm_backend("auto", "cpu") for _ in range(2)} == {"reference"}
    said = "elman: using plain PyTorch, which is slow: no C++ compiler; install one\n"
    assert capsys.readouterr().err == said
    with pytest.raises(UserError, match=r"install one, or use kernels\.backend=reference"):
        backends.norm_backend("cpu", "cpu")
    backends._say_slow.cache_clear()


WANTED = {"auto": "cuda", "cuda": "cuda", "triton": "cuda", "torch": "reference"}


@pytest.mark.parametrize("requested", [*WANTED, "reference"])
def test_on_a_gpu_the_kernel_computes_them_unless_pytorch_is_named(requested, monkeypatch) -> None:
    monkeypatch.setattr(driver, "cuda_problem", lambda: None)
    assert backends.norm_backend(requested, "cuda") == WANTED.get(requested, "reference")


def test_where_no_kernel_can_run_pytorch_does_and_says_so(monkeypatch, capsys) -> None:
    """An error only where the kernel was asked for: also models without kernels have norms."""
    monkeypatch.setattr(driver, "cuda_problem", lambda: "NVRTC is missing; pip install it")
    backends._say_slow.cache_clear()
    assert {backends.norm_backend("auto", "cuda") for _ in range(2)} == {"reference"}
    said = "elman: using plain PyTorch, which is slow: NVRTC is missing; pip install it\n"
    assert capsys.readouterr().err == said
    with pytest.raises(UserError) as refused:
        backends.norm_backend("cuda", "cuda")
    assert str(refused.value) == (
        "kernels.backend=cuda: NVRTC is missing; pip install it, or use kernels.backend=reference"
    )
    backends._say_slow.cache_clear()
