"""Compares the packaged baselines with plain PyTorch on a GPU, then measures tokens per second.

    python tools/gpu/gpu_baselines.py --out DIR [--rounds 7] [--only fla-gdn] [--no-speed]

Needs torch and the packages, but no configuration (no Hydra). Parity: one layer of each baseline
runs in every way, with the same weights, and is compared with plain PyTorch in fp64 on the same
GPU. The figures are relative L2 error and cosine of the output, the final state, the input's
gradient and every parameter's gradient, in one call and in two calls with a carried state. The
package's own layer is compared, too, if it can be imported. Speed: eager training steps of whole
models, medians of interleaved rounds. Everything goes to DIR/gpu_baselines.json, rewritten after
each result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman.kernels.packages import (
    PACKAGES,
    import_kernels,
    importable,
    installed_version,
    package_problem,
)
from elman.models.backends import computation_path
from elman.models.cells.channel_delta.gdn2_layer import GatedDeltaNet2
from elman.models.cells.channel_delta.kda_layer import KimiDeltaAttention
from elman.models.cells.channel_delta.rwkv7_layer import Rwkv7TimeMix
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.gated_delta.deltaproduct_layer import GatedDeltaProduct
from elman.models.cells.gated_delta.fla_gdn_layer import GatedDeltaNet
from elman.models.cells.ssd.mamba2_layer import Mamba2
from elman.models.cells.ssd.mamba3_layer import Mamba3
from elman.models.language_model import LanguageModel

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


def main() -> None:
    arguments = parse()
    device = torch.device(arguments.device)
    if arguments.ieee:
        # Triton reads it when it compiles a kernel.
        os.environ["TRITON_F32_DEFAULT"] = "ieee"
    chosen = {name: row for name, row in BASELINES.items() if arguments.only in name}
    path = Path(arguments.out) / "gpu_baselines.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"environment": environment(device), "parity": {}, "speed": {}}
    report["arguments"] = vars(arguments)
    for name, row in chosen.items():
        report["parity"][name] = parity(row, device, arguments.steps)
        save(path, report)
    if not arguments.no_speed:
        for result in speed(chosen, device, arguments):
            report["speed"] = result
            save(path, report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", required=True, help="folder of gpu_baselines.json")
    parser.add_argument("--only", default="", help="part of a baseline's name")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=513, help="steps of time in the parity part")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps-a-round", type=int, default=10)
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--plain", action="store_true", help="time plain PyTorch, too")
    parser.add_argument(
        "--ieee",
        action="store_true",
        help="the packages' fp32 products in full precision, not TF32: for parity, not for speed",
    )
    return parser.parse_args()


def save(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def environment(device: torch.device) -> dict[str, Any]:
    names = ("torch", "triton", "causal-conv1d", "tilelang", "einops", "fla-core", *PACKAGES)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "versions": {name: installed_version(name) for name in names},
        "problems": {name: package_problem(name, device) for name in PACKAGES},
        "tolerance": ARCHITECTURE_TOLERANCE,
    }


# ---------------------------------------------------------------------------------------- parity


def parity(row: Baseline, device: torch.device, steps: int) -> dict[str, Any]:
    """Return the errors of every way of computing one layer, by way and tensor."""
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
    wanted = gradients(truth, x_btd, weight_btd)
    found: dict[str, Any] = {}
    for name, (make, autocast) in ways(row, device).items():
        try:
            layer = make()
            layer.load_state_dict(truth.state_dict())
            for split in (0, steps // 2) if isinstance(layer, Mixer) else (0,):
                key = f"{name}, carried state" if split else name
                with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
                    got = gradients(layer, x_btd.float(), weight_btd.float(), split)
                found[key] = {part: errors(got[part], wanted[part]) for part in got}
                show(key, found[key])
        except Exception as error:  # the other ways are still worth their time
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"  {name}: {found[name]['error'][:300]}", flush=True)
    return found


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


def errors(got: Tensor, wanted: Tensor) -> dict[str, float]:
    got = got.double()
    difference = (got - wanted).norm() / wanted.norm()
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0)
    return {"relative_l2": difference.item(), "cosine": cosine.item()}


def show(name: str, found: dict[str, dict[str, float]]) -> None:
    worst = max(found, key=lambda part: found[part]["relative_l2"])
    print(
        f"  {name}: y {found['y']['relative_l2']:.1e}, worst {worst} "
        f"{found[worst]['relative_l2']:.1e}, cosine {found[worst]['cosine']:.6f}",
        flush=True,
    )


# ----------------------------------------------------------------------------------------- speed


class Training:
    """Training steps of one model: bf16 autocast, fp32 weights, fused AdamW, clip 1.

    Args:
        model: The model, on its device.
        rows: Rows of a batch.
        steps: Bytes predicted in a row.
    """

    def __init__(self, model: LanguageModel, rows: int, steps: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        # Capturable: the same step, eager or in a graph.
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
        self.tokens = torch.randint(256, (rows, steps + 1), device=self.device, dtype=torch.uint8)

    def tune(self) -> None:
        """Compile all Triton kernels of a step at once, as a training run does."""
        if importable("triton"):
            from elman.kernels.triton_ahead import compile_ahead

            compile_ahead(self._passes)  # what this computes is of no use
            self.optimizer.zero_grad(set_to_none=True)

    def _passes(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss, _ = self.model.loss(self.tokens)
        loss.backward()

    def step(self) -> None:
        self._passes()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def rate(self, steps: int) -> float:
        """Return predicted bytes per second over some steps."""
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize(self.device)
        predicted = self.tokens.shape[0] * (self.tokens.shape[1] - 1)
        return steps * predicted / (time.perf_counter() - start)


def speed(
    chosen: dict[str, Baseline], device: torch.device, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the results so far after each round of all models."""
    trainings: dict[str, Training] = {}
    results: dict[str, Any] = {}
    for name, row in chosen.items():
        for backend in ("triton", "reference") if arguments.plain else ("triton",):
            key = f"{name}, {backend}"
            try:
                trainings[key], results[key] = start(row, backend, device, arguments)
            except Exception as error:
                results[key] = {"error": f"{type(error).__name__}: {error}"}
            print(f"  {key}: {results[key]}"[:400], flush=True)
            yield results
    for _ in range(arguments.rounds):
        for key, training in trainings.items():
            rates = results[key]["rounds"]
            rates.append(round(training.rate(arguments.steps_a_round)))
            results[key]["tok_s"] = statistics.median(rates)
        yield results
    for key in trainings:
        rates = results[key]["rounds"]
        print(f"  {key}: {results[key]['tok_s']:,} tok/s ({min(rates):,} to {max(rates):,})")


def start(
    row: Baseline, backend: str, device: torch.device, arguments: argparse.Namespace
) -> tuple[Training, dict[str, Any]]:
    """Build a model, tune its kernels, and measure what a step needs."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    torch.manual_seed(0)
    make = partial(row.layer, row.dim, backend=backend, device=device, **row.options)
    layers = [make() for _ in range(row.depth)]
    for index, one in enumerate(layers):
        one.place(index, layers)
    model = LanguageModel(row.dim, layers, device=device)
    training = Training(model, arguments.batch_size, arguments.chunk_size)
    for _ in range(3):
        training.step()
    torch.cuda.synchronize(device)
    return training, {
        "path": computation_path(row.layer.cell, backend),
        "params": model.num_params(),
        "batch_size": arguments.batch_size,
        "chunk_size": arguments.chunk_size,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) - before,
        "rounds": [],
        "tok_s": None,
    }


if __name__ == "__main__":
    main()
