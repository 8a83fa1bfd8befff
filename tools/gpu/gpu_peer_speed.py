"""Times every baseline beside its best public implementation on a GPU, in one run.

    python tools/gpu/gpu_peer_speed.py --out DIR [--rounds 3] [--only mamba2] [--first-use]

The table has training steps of models of about 102M parameters at 32 rows of 512 bytes in bf16,
eager and replayed as one CUDA graph: forward, backward, clipping and AdamW. A baseline, its public
implementation and E88 are timed in turn, in interleaved rounds; figures are medians. Public are:
for llama, torch.compile of PyTorch alone and, where transformers is installed, its compiled
LlamaForCausalLM; for mamba2 and the peers that flash-linear-attention and mamba-ssm have, the layer
of the package itself (with causal-conv1d if that is installed); for lstm and gru, cuDNN in bf16;
none for slstm and m2rnn. What cannot run is recorded, and the others
still run: every baseline has a process of its own. A step that cannot be captured spoils its
process, so another one times the group again, that model eagerly only, and the reason is printed.
Everything goes to DIR/gpu_peer_speed.json, rewritten after each baseline.

--first-use measures instead how long the command takes until its first step is done, for every
baseline in turn: once with empty caches and once again with what the first run left there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from first_use import first_uses  # type: ignore[import-not-found]
from gpu_baselines import (  # type: ignore[import-not-found]
    BASELINES as PACKAGED,
)
from gpu_baselines import (
    Training,
    environment,
    own_layer,
)
from gpu_models import (  # type: ignore[import-not-found]
    WARMUP,
    captured,
    guarded,
    save,
    time_rounds,
)
from torch import Tensor, nn

from elman.config.compose import compose_config
from elman.kernels.packages import import_kernels, importable
from elman.models.backends import choose_backend, computation_path
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.sections.model import ModelConfig

OURS = "e88f_h32n16_2432x20"
PACKAGE_ROWS = {
    "gdn-neg": "gdn-neg_768x21",
    "kda": "kda_1024x21",
    "gdn2": "gdn2_896x19",
    "deltaproduct": "deltaproduct_640x22",
    "rwkv7": "rwkv7_1152x16",
    "mamba3": "mamba3_896x20",
}
"""By model: the row of gpu_baselines.py of the same sizes, which knows the package's layer."""
WITHOUT = ("slstm", "m2rnn")
"""Models without a public implementation that installs without a build."""
BASELINES = ("llama", "mamba2", "fla-gdn", "lstm", "gru", *PACKAGE_ROWS, *WITHOUT)
SPOILT = 9
"""Exit status of a process in which a capture failed."""
Make = Callable[[], nn.Module]


def main() -> int:
    """Measure; return 2 without a GPU."""
    arguments = parse()
    if not torch.cuda.is_available():
        print("gpu_peer_speed: torch sees no GPU here", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    if arguments.group:
        return group_times(arguments, device)
    path = Path(arguments.out) / "gpu_peer_speed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"environment": environment(device), "arguments": vars(arguments)}
    names = [name for name in BASELINES if arguments.only in name]
    if arguments.first_use:
        first_uses(names, report, path)
        return 0
    results = report["models"] = {}
    for name in names:
        add(name, results, *in_processes(name, partial(run_group, name, arguments)))
        save(path, report)
    show(results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", required=True, help="folder of gpu_peer_speed.json")
    parser.add_argument("--only", default="", help="part of a baseline's name")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-a-round", type=int, default=4)
    parser.add_argument("--first-use", action="store_true", help="times until the first step")
    # What this script gives to its own processes.
    parser.add_argument("--group", default="", help=argparse.SUPPRESS)
    parser.add_argument("--eager-only", action="append", default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


# ------------------------------------------------------------------------------ implementations


def ways(name: str, device: torch.device) -> dict[str, Make]:
    """Return a baseline of ours and its public implementations, by name."""
    found: dict[str, Make] = {name: partial(built, name)}
    config = compose_config([f"model={name}"]).model
    if name == "llama":
        found["llama, torch.compile of PyTorch alone"] = partial(compiled, name)
        if importable("transformers"):
            found["transformers' LlamaForCausalLM, compiled"] = partial(of_transformers, config)
    elif name == "mamba2":
        found["mamba-ssm's own layer"] = partial(in_the_same_model, config, mamba_layer, device)
    elif name == "fla-gdn":
        make = partial(in_the_same_model, config, gated_delta_layer, device)
        found["flash-linear-attention's own layer"] = make
    elif name in PACKAGE_ROWS:
        found[f"the package's own {name}"] = partial(of_package, config, name, device)
    elif name not in WITHOUT:
        found[f"{name}, bf16"] = partial(built, name, "model.network_dtype=bf16")
    return found


def built(name: str, *overrides: str, backend: str = "auto") -> LanguageModel:
    """Return a model of ours as training builds it."""
    config = compose_config([f"model={name}", *overrides]).model
    torch.manual_seed(0)
    return build_model(config, backend=backend, device="cuda")


def compiled(name: str) -> nn.Module:
    """Return a model of PyTorch's operators whose loss is compiled."""
    model = built(name, backend="torch")
    model.loss = torch.compile(model.loss)  # type: ignore[method-assign]
    return model


class Public(nn.Module):
    """A package's layer as one of a language model: no state, and the output alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_btd: Tensor, state: None) -> tuple[Tensor, dict[str, Tensor]]:
        returned = self.layer(x_btd)
        return (returned[0] if isinstance(returned, tuple) else returned), {}


class PublicRwkv7(Public):
    """RWKV-7's layer of the package: all layers behind the first read the values of the first."""

    def __init__(self, layer: nn.Module, first: dict[str, Tensor]) -> None:
        super().__init__(layer)
        self.first = first

    def forward(self, x_btd: Tensor, state: None) -> tuple[Tensor, dict[str, Tensor]]:
        y_btd, *_, self.first["v"] = self.layer(x_btd, v_first=self.first.get("v"))
        return y_btd, {}


def in_the_same_model(
    config: ModelConfig, make: Callable[[ModelConfig], nn.Module], device: torch.device
) -> nn.Module:
    """Return our language model around a package's layers."""
    torch.manual_seed(0)
    layers = [Public(make(config).to(device)) for _ in range(config.depth)]
    return LanguageModel(config.dim, layers, device=device)


def of_package(config: ModelConfig, name: str, device: torch.device) -> nn.Module:
    """Return our language model around the package's layers, each in its place."""
    row = PACKAGED[PACKAGE_ROWS[name]]
    assert (row.dim, row.depth) == (config.dim, config.depth), name
    torch.manual_seed(0)
    first: dict[str, Tensor] = {}
    made = [own_layer(row, device, index) for index in range(row.depth)]
    rwkv7 = name == "rwkv7"
    layers = [PublicRwkv7(one, first) if rwkv7 else Public(one) for one in made]
    return LanguageModel(row.dim, layers, device=device)


def mamba_layer(config: ModelConfig) -> nn.Module:
    module = import_kernels("mamba-ssm", "modules.mamba2")
    # Its fused path asserts that causal-conv1d is there.
    fused = module.causal_conv1d_fn is not None
    options = config.options
    layer: nn.Module = module.Mamba2(
        config.dim,
        d_state=options["n_state"],
        headdim=options["head_dim"],
        expand=int(options["expansion"]),
        use_mem_eff_path=fused,
    )
    return layer


def gated_delta_layer(config: ModelConfig) -> nn.Module:
    module = import_kernels("flash-linear-attention", "layers.gated_deltanet")
    heads = number(config, "n_heads") or config.dim // 128
    layer: nn.Module = module.GatedDeltaNet(
        hidden_size=config.dim,
        head_dim=number(config, "head_dim") or config.dim // heads,
        num_heads=heads,
        expand_v=config.options["expansion"],
    )
    return layer


def number(config: ModelConfig, name: str) -> int:
    """Return an option that is a whole number."""
    value = config.options[name]
    assert isinstance(value, int)
    return value


class Transformers(nn.Module):
    """LlamaForCausalLM of transformers with the loss of our models."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        from transformers import (  # type: ignore[import-not-found]
            LlamaConfig,
            LlamaForCausalLM,
        )

        heads = config.dim // number(config, "head_dim")
        sizes = LlamaConfig(
            vocab_size=256,
            hidden_size=config.dim,
            intermediate_size=width,
            num_hidden_layers=config.depth,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            tie_word_embeddings=True,
            use_cache=False,
        )
        self.model = LlamaForCausalLM(sizes)
        self.loss = torch.compile(self._loss)

    def _loss(self, tokens_bt1: Tensor) -> tuple[Tensor, None]:
        logits_btv = self.model(tokens_bt1[:, :-1].long()).logits
        targets_bt = tokens_bt1[:, 1:].long()
        loss = nn.functional.cross_entropy(logits_btv.flatten(0, 1).float(), targets_bt.flatten())
        return loss, None

    def num_params(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def of_transformers(config: ModelConfig) -> nn.Module:
    """Return the same sizes as a model of transformers."""
    width = number(config, "mlp_width") or -(-(8 * config.dim // 3) // 256) * 256
    torch.manual_seed(0)
    return Transformers(config, width).cuda()


# ----------------------------------------------------------------------------------------- times


def started(
    label: str, make: Make, group: dict[str, Training], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Build a model, take its first steps, and return what they needed."""
    torch.cuda.reset_peak_memory_stats()
    before, began = torch.cuda.memory_allocated(), time.perf_counter()
    training = Training(make(), arguments.batch_size, arguments.chunk_size)
    training.tune()
    for _ in range(WARMUP):
        training.step()
    torch.cuda.synchronize()
    group[label] = training
    found = {
        "params": training.model.num_params(),
        "path": path_of(label),
        "peak_gb": round((torch.cuda.max_memory_allocated() - before) / 1e9, 2),
        "first_steps_s": round(time.perf_counter() - began, 1),
    }
    print(f"{label}: {found}", flush=True)
    return found


def path_of(label: str) -> str | None:
    """Return in words what computes a model of ours."""
    if label not in (OURS, *BASELINES):
        return None
    config = compose_config([f"model={label}"]).model
    cell = registry.cell(config.cell)
    backend = choose_backend(cell, "auto", "cuda")
    given = {"device_type": "cuda", "precision": "bf16"}
    return computation_path(cell, backend, config.options, **given) or backend


def group_times(arguments: argparse.Namespace, device: torch.device) -> int:
    """Time a baseline, its public implementations and E88 in turn, eager and replayed.

    The results go to the file that ``--out`` names, rewritten after each.

    Returns:
        SPOILT where a step could not be captured: then nothing else can be measured here.
    """
    # All steps, since a model may keep a tensor of its last step, whose gradient stays there.
    torch.cuda.set_stream(stream := torch.cuda.Stream(device))
    name, path = arguments.group, Path(arguments.out)
    results: dict[str, Any] = {}
    group: dict[str, Training] = {}
    report: dict[str, Any] = {"models": results}
    for label, make in ({OURS: partial(built, OURS)} | ways(name, device)).items():
        results[label] = guarded(partial(started, label, make, group, arguments))
        save(path, report)
    found: dict[str, Any] = {label: {} for label in group}
    for label, row in found.items():
        results[label]["beside"] = {name: row}
    time_rounds(group, found, "eager", lambda training: training.step, arguments)
    save(path, report)
    graphs: dict[int, torch.cuda.CUDAGraph] = {}
    replayed = {k: one for k, one in group.items() if k not in arguments.eager_only}
    for label, training in replayed.items():
        try:
            graphs[id(training)] = captured(training, stream)
        except Exception as error:
            save(path, report | {"spoilt": [label, first_cause(error)]})
            return SPOILT
    time_rounds(replayed, found, "graph", lambda one: graphs[id(one)].replay, arguments)
    save(path, report)
    return 0


def first_cause(error: BaseException) -> str:
    """Return the first error of a chain: the end of a failed capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


# ------------------------------------------------------------------------------------- processes


def run_group(
    name: str, arguments: argparse.Namespace, path: Path, eager_only: Sequence[str]
) -> int:
    """Time a group in a process of its own, which writes to ``path``; return its exit status."""
    sizes = ("batch_size", "chunk_size", "rounds", "steps_a_round")
    command = [sys.executable, __file__, f"--out={path}", f"--group={name}"]
    command += [f"--{size.replace('_', '-')}={getattr(arguments, size)}" for size in sizes]
    command += [f"--eager-only={label}" for label in eager_only]
    return subprocess.run(command, check=False).returncode


def in_processes(
    name: str, run: Callable[[Path, Sequence[str]], int]
) -> tuple[dict[str, Any], dict[str, str], int]:
    """Time a group, again without each model that cannot be captured.

    Args:
        name: The baseline.
        run: Runs a process that writes to a file and captures all but some; returns its status.

    Returns:
        The results by model, why a model was not captured, and the last exit status.
    """
    reasons: dict[str, str] = {}
    while True:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "group.json"
            status = run(path, list(reasons))
            found = json.loads(path.read_text()) if path.exists() else {"models": {}}
        if status != SPOILT:
            return found["models"], reasons, status
        label, reason = found["spoilt"]
        assert label not in reasons, label
        reasons[label] = reason
        print(f"{label}: cannot be captured ({reason}); {name} again, it eagerly", flush=True)


def add(
    name: str, results: dict[str, Any], found: dict[str, Any], reasons: dict[str, str], status: int
) -> None:
    """Add a group's results to those of all."""
    for label, row in found.items():
        beside = results.setdefault(label, row).setdefault("beside", {})
        beside |= row.get("beside", {})
        if label in reasons and name in beside:
            beside[name]["graph"] = {"error": reasons[label]}
    if status:
        results.setdefault(name, {})["error"] = f"its process ended with status {status}"


def show(results: dict[str, Any]) -> None:
    """Print the table: each implementation beside E88 in the same rounds."""
    print("| model | parameters | eager tok/s | replayed tok/s | E88 replayed / this |")
    print("|---|---|---|---|---|")
    for label, row in results.items():
        if "error" in row:
            print(f"| {label} | | {row['error'][:100]} | | |")
        for name, rates in row.get("beside", {}).items():
            if label == OURS and name != next(iter(row["beside"])):
                continue
            eager, graph = (rates.get(way, {}).get("tok_s") for way in ("eager", "graph"))
            mine = results[OURS].get("beside", {}).get(name, {}).get("graph", {}).get("tok_s")
            ratio = f"{mine / graph:.2f}x" if mine and graph else ""
            if reason := rates.get("graph", {}).get("error"):
                ratio = f"not captured: {reason[:80]}"
            shown = [f"{rate / 1e3:,.0f}K" if rate else "-" for rate in (eager, graph)]
            print(f"| {label} | {row['params']:,} | {' | '.join(shown)} | {ratio} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
