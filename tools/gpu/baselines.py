"""The packaged baselines against plain PyTorch in fp64, on the same GPU.

    python tools/gpu/run.py baselines [--only fla-gdn] [steps=513] [ieee=true]

One layer of each baseline runs in every way, with the same weights. The figures are relative L2
error and cosine of the output, the final state, the input's gradient and each parameter's gradient,
in one call and in two calls with a carried state. The package's own layer is compared, too, if it
can be imported. ``steps`` are those of time; with ``ieee=true`` the packages' fp32 products have
full precision, not TF32. ``elman mode=bench bench.level=step`` measures tokens per second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman.kernels.packages import PACKAGES, import_kernels, installed_version, package_problem
from elman.models.cells.channel_delta.gdn2_layer import GatedDeltaNet2
from elman.models.cells.channel_delta.kda_layer import KimiDeltaAttention
from elman.models.cells.channel_delta.rwkv7_layer import Rwkv7TimeMix
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.gated_delta.deltaproduct_layer import GatedDeltaProduct
from elman.models.cells.gated_delta.fla_gdn_layer import GatedDeltaNet
from elman.models.cells.ssd.mamba2_layer import Mamba2
from elman.models.cells.ssd.mamba3_layer import Mamba3
from tools.gpu.instruments import cosine, distance
from tools.gpu.job import Check, Job, Row

ARCHITECTURE_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Relative L2 error that a kernel of our own may have (lm-and-training specification 7)."""


class Baseline(NamedTuple):
    """One row: a model of the published size."""

    layer: Any  # a class of layers
    dim: int
    depth: int
    options: dict[str, Any]


BASELINES = {
    "mamba2_896x20": Baseline(Mamba2, 896, 20, {}),
    "fla-gdn_768x20_e2": Baseline(GatedDeltaNet, 768, 20, {"expansion": 2.0}),
    "fla-gdn_768x20_e1": Baseline(GatedDeltaNet, 768, 20, {"expansion": 1.0}),
    "gdn-neg_768x21": Baseline(
        GatedDeltaNet, 768, 21, {"expansion": 2.0, "allow_neg_eigval": True}
    ),
    "kda_1024x21": Baseline(KimiDeltaAttention, 1024, 21, {}),
    "deltaproduct_640x22": Baseline(GatedDeltaProduct, 640, 22, {}),
    "rwkv7_1152x16": Baseline(Rwkv7TimeMix, 1152, 16, {}),
    "gdn2_896x19": Baseline(GatedDeltaNet2, 896, 19, {}),
    "mamba3_896x20": Baseline(Mamba3, 896, 20, {}),
}
"""Kernels of deltaproduct and mamba3 take no fp32: that part of their parity is an error line."""
Tensors = dict[str, Tensor]


def parity(job: Job) -> None:
    """Compare every way of computing one layer of every baseline."""
    if job.settings["ieee"]:
        # Triton reads it when it compiles a kernel.
        os.environ["TRITON_F32_DEFAULT"] = "ieee"
    device = torch.device(job.device)
    job.report(versions(device) | {"tolerance": ARCHITECTURE_TOLERANCE})
    for name in job.chosen(BASELINES):
        compare(job, name, BASELINES[name], device)


def versions(device: torch.device) -> Row:
    """Return the versions of the packages, and why some cannot be used."""
    names = ("torch", "triton", "causal-conv1d", "tilelang", "einops", "fla-core", *PACKAGES)
    return {
        "what": "versions",
        "versions": {name: installed_version(name) for name in names},
        "problems": {name: package_problem(name, device) for name in PACKAGES},
    }


def compare(job: Job, name: str, row: Baseline, device: torch.device) -> None:
    """Report the errors of every way of computing one layer, by way and tensor."""
    steps = job.settings["steps"]
    torch.manual_seed(0)
    truth = row.layer(
        row.dim, backend="reference", device=device, dtype=torch.float64, **row.options
    )
    with torch.no_grad():
        for weight in truth.parameters():
            if not weight.any():  # the last projection of rwkv7, behind which nothing would show
                weight.normal_(std=0.05)
    x_btd = torch.randn(4, steps, row.dim, device=device, dtype=torch.float64)
    weight_btd = torch.randn_like(x_btd)
    exact = gradients(truth, x_btd, weight_btd)
    for way, (make, autocast) in ways(row, device).items():
        # A layer of the package has no state to carry.
        for split in (0,) if way.startswith("package's") else (0, steps // 2):

            def errors_of(
                make: Callable[[], nn.Module] = make, autocast: bool = autocast, split: int = split
            ) -> Row:
                layer = make()
                layer.load_state_dict(truth.state_dict())
                with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
                    found = gradients(layer, x_btd.float(), weight_btd.float(), split)
                return summary({part: errors(found[part], exact[part]) for part in found})

            job.measure({"baseline": name, "way": way, "carried": bool(split)}, errors_of)


def summary(found: dict[str, dict[str, float]]) -> Row:
    """Return errors of tensors, and the worst of them."""
    worst = max(found, key=lambda part: found[part]["relative_l2"])
    return {"y": found["y"]["relative_l2"], "worst": worst, **found[worst], "tensors": found}


def ways(row: Baseline, device: torch.device) -> dict[str, tuple[Callable[[], nn.Module], bool]]:
    """Return, by name, how a layer of fp32 weights is made and whether it runs under bf16."""
    found: dict[str, tuple[Callable[[], nn.Module], bool]] = {}
    for precision in ("fp32", "bf16"):
        autocast = precision == "bf16"
        for label, backend in (("plain", "reference"), ("package", "triton")):
            make = partial(row.layer, row.dim, backend=backend, device=device, **row.options)
            found[f"{label}, {precision}"] = (make, autocast)
        found[f"package's own layer, {precision}"] = (partial(own_layer, row, device), autocast)
    return found


def own_layer(row: Baseline, device: torch.device, index: int = 0) -> nn.Module:
    """Return the package's layer of the same sizes; its forward returns the output first.

    Args:
        row: The model.
        device: Where the layer is made.
        index: Of the layer in the model, from 0; rwkv7's first layer is another one.
    """
    if row.layer is Mamba2:
        module = import_kernels("mamba-ssm", "modules.mamba2")
        # Its fused path asserts that causal-conv1d is there.
        fused = module.causal_conv1d_fn is not None
        mamba2: nn.Module = module.Mamba2(
            row.dim, d_state=128, use_mem_eff_path=fused, device=device
        )
        return mamba2
    if row.layer is Mamba3:
        mamba3: nn.Module = import_kernels("mamba-ssm", "modules.mamba3").Mamba3(
            row.dim, device=device
        )
        return mamba3
    made = FLA_LAYERS[row.layer]
    layer_class = getattr(import_kernels("flash-linear-attention", f"layers.{made[0]}"), made[1])
    sizes: dict[str, Any] = {"hidden_size": row.dim}
    if row.layer is Rwkv7TimeMix:
        sizes |= {"layer_idx": index, "num_hidden_layers": row.depth}
    else:
        sizes |= {"head_dim": 128, "num_heads": row.dim // 128}
    if "expansion" in row.options:
        sizes["expand_v"] = row.options["expansion"]
    if "allow_neg_eigval" in row.options:
        sizes["allow_neg_eigval"] = row.options["allow_neg_eigval"]
    layer: nn.Module = layer_class(**sizes).to(device)
    return layer


FLA_LAYERS: dict[type[Mixer], tuple[str, str]] = {
    GatedDeltaNet: ("gated_deltanet", "GatedDeltaNet"),
    KimiDeltaAttention: ("kda", "KimiDeltaAttention"),
    GatedDeltaProduct: ("gated_deltaproduct", "GatedDeltaProduct"),
    Rwkv7TimeMix: ("rwkv7", "RWKV7Attention"),
    GatedDeltaNet2: ("gdn2", "GatedDeltaNet2"),
}
"""By our layer: the package's module and class."""


def gradients(layer: nn.Module, x_btd: Tensor, weight_btd: Tensor, split: int = 0) -> Tensors:
    """Return output, final state and all gradients of sum(weight * output), x cut at ``split``."""
    layer.zero_grad()
    x_btd = x_btd.detach().requires_grad_()
    state: Tensors = {}
    if isinstance(layer, Mixer):
        pieces = []
        for piece in (x_btd[:, :split], x_btd[:, split:]) if split else (x_btd,):
            y_btd, state = layer(piece, state or None)
            pieces.append(y_btd)
        y_btd = torch.cat(pieces, dim=1)
    else:
        returned = layer(x_btd)
        y_btd = returned[0] if isinstance(returned, tuple) else returned
    (y_btd.to(weight_btd.dtype) * weight_btd).sum().backward()
    assert x_btd.grad is not None
    found = {"y": y_btd, "dx": x_btd.grad} | {f"final {name}": one for name, one in state.items()}
    found |= {f"d{name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {name: one.detach() for name, one in found.items()}


def errors(result: Tensor, exact: Tensor) -> dict[str, float]:
    """Return the relative L2 error and the cosine of a tensor."""
    return {"relative_l2": distance(result, exact), "cosine": cosine(result, exact)}


CHECK = Check(
    {"parity": parity},
    names=lambda: BASELINES,
    settings={"steps": 513, "ieee": False},
    on_cpu=("parity",),
)
