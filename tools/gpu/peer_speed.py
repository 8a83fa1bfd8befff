"""Every baseline beside its best public implementation: training steps, eager and replayed.

    python tools/gpu/run.py peer_speed [--only mamba2] [rounds=3] [batch_size=32] [chunk_size=512]

The table has training steps of models of about 102M parameters at 32 rows of 512 bytes in bf16,
eager and replayed as one CUDA graph: forward, backward, clipping and AdamW. A baseline, its public
implementation and E88 are timed in turn, in interleaved rounds; figures are medians. Public are:
for llama, torch.compile of PyTorch alone and, where transformers is installed, its compiled
LlamaForCausalLM; for mamba2 and the peers that flash-linear-attention and mamba-ssm have, the layer
of the package itself (with causal-conv1d if that is installed); for lstm and gru, cuDNN in bf16;
none for slstm and m2rnn. What cannot run is reported, and the others still run: every baseline has
a process of its own. A step that cannot be captured spoils its process, so another one times the
group again, that model eagerly only, and the reason is printed.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.config.compose import compose_config
from elman.kernels.packages import import_kernels, importable
from elman.models.backends import choose_backend, computation_path
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.sections.model import ModelConfig
from tools.gpu.baselines import BASELINES as PACKAGED
from tools.gpu.baselines import own_layer, versions
from tools.gpu.instruments import interleaved, recorded
from tools.gpu.job import Check, Job, Row, read_rows
from tools.gpu.processes import item_command

OURS = "e88f_h32n16_2432x20"
PACKAGE_ROWS = {
    "gdn-neg": "gdn-neg_768x21",
    "kda": "kda_1024x21",
    "gdn2": "gdn2_896x19",
    "deltaproduct": "deltaproduct_640x22",
    "rwkv7": "rwkv7_1152x16",
    "mamba3": "mamba3_896x20",
}
"""By model: the row of ``baselines`` of the same sizes, which knows the package's layer."""
WITHOUT = ("slstm", "m2rnn")
"""Models without a public implementation that installs without a build."""
BASELINES = ("llama", "mamba2", "fla-gdn", "lstm", "gru", *PACKAGE_ROWS, *WITHOUT)
WARMUP = 3
Make = Callable[[], nn.Module]


def table(job: Job) -> None:
    """Time every group in a process of its own, and print the table."""
    job.report(versions(torch.device("cuda")))
    for name in job.chosen(BASELINES):
        for row in in_processes(name, partial(run_group, job, name)):
            job.report({"baseline": name, **row})
    show(job.rows)


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
        from transformers import (
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


class Training:
    """Training steps of one model: bf16 autocast, fp32 weights, fused AdamW, clip 1.

    Args:
        model: The model, on its device: its ``loss`` takes bytes, its ``num_params`` counts.
        rows: Rows of a batch.
        steps: Bytes predicted in a row.
    """

    def __init__(self, model: Any, rows: int, steps: int) -> None:
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

    @property
    def predicted(self) -> int:
        """Return the bytes that a step predicts."""
        return self.tokens.shape[0] * (self.tokens.shape[1] - 1)


def started(job: Job, label: str, make: Make, group: dict[str, Training]) -> Row:
    """Build a model, take its first steps, and return what they needed."""
    torch.cuda.reset_peak_memory_stats()
    before, began = torch.cuda.memory_allocated(), time.perf_counter()
    training = Training(make(), job.settings["batch_size"], job.settings["chunk_size"])
    training.tune()
    for _ in range(WARMUP):
        training.step()
    torch.cuda.synchronize()
    group[label] = training
    return {
        "params": training.model.num_params(),
        "path": path_of(label),
        "peak_gb": round((torch.cuda.max_memory_allocated() - before) / 1e9, 2),
        "first_steps_s": round(time.perf_counter() - began, 1),
    }


def path_of(label: str) -> str | None:
    """Return in words what computes a model of ours."""
    if label not in (OURS, *BASELINES):
        return None
    config = compose_config([f"model={label}"]).model
    cell = registry.cell(config.cell)
    backend = choose_backend(cell, "auto", "cuda")
    given = {"device_type": "cuda", "precision": "bf16"}
    return computation_path(cell, backend, config.options, **given) or backend


def time_group(job: Job, name: str) -> None:
    """Time a baseline, its public implementations and E88 in turn, eager and replayed.

    Where a step cannot be captured, the last row names it as ``spoilt``: then nothing else can be
    measured in this process.
    """
    # All steps, since a model may keep a tensor of its last step, whose gradient stays there.
    device = torch.device("cuda")
    torch.cuda.set_stream(stream := torch.cuda.Stream(device))
    group: dict[str, Training] = {}
    for label, make in ({OURS: partial(built, OURS)} | ways(name, device)).items():
        job.measure({"model": label}, partial(started, job, label, make, group))
    time_rounds(job, group, "eager", {label: one.step for label, one in group.items()})
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for label in (label for label in group if label not in job.settings["eager_only"].split(";")):
        try:
            graphs[label], _ = recorded(group[label].step, warmup=WARMUP, stream=stream)
        except Exception as error:
            job.report({"model": label, "spoilt": first_cause(error)})
            return
    time_rounds(job, group, "graph", {label: graph.replay for label, graph in graphs.items()})


def time_rounds(
    job: Job, group: Mapping[str, Training], way: str, steps: Mapping[str, Callable[[], Any]]
) -> None:
    """Report tokens per second, all models in turn in every round."""
    repeats = job.settings["steps_a_round"]
    for label, rounds in interleaved(steps, job.settings["rounds"], repeats=repeats).items():
        rates = [round(group[label].predicted / took) for took in rounds]
        row = {"model": label, "params": group[label].model.num_params(), "way": way}
        job.report(row | {"tok_s": statistics.median(rates), "rounds": rates})


def first_cause(error: BaseException) -> str:
    """Return the first error of a chain: the end of a failed capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


# ------------------------------------------------------------------------------------- processes


def run_group(job: Job, name: str, place: Path, eager_only: Sequence[str]) -> int:
    """Time a group in a process of its own, which reports in a folder; return its exit status."""
    command = item_command(job, name, place, eager_only=";".join(eager_only))
    # What it reports is reported again when it has ended.
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def in_processes(name: str, run: Callable[[Path, Sequence[str]], int]) -> list[Row]:
    """Return the rows of a group, timed again without each model that cannot be captured.

    Args:
        name: The baseline.
        run: Runs a process that reports in a folder and captures all but some models; returns its
            exit status.
    """
    reasons: dict[str, str] = {}
    while True:
        with tempfile.TemporaryDirectory() as folder:
            status = run(Path(folder), list(reasons))
            rows = [row for row in read_rows(Path(folder) / "peer_speed.jsonl") if "model" in row]
        if not rows or "spoilt" not in rows[-1]:
            break
        label, reason = rows[-1]["model"], rows[-1]["spoilt"]
        assert label not in reasons, label
        reasons[label] = reason
        print(f"{label}: cannot be captured ({reason}); {name} again, it eagerly", flush=True)
    rows += [{"model": label, "way": "graph", "error": reason} for label, reason in reasons.items()]
    if status:
        rows.append({"model": name, "error": f"its process ended with status {status}"})
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table: each implementation beside E88 in the same rounds."""
    timed = {(r["baseline"], r["model"], r["way"]): r for r in rows if "way" in r}
    shown_before: set[str] = set()  # E88 is in every group
    print("| model | parameters | eager tok/s | replayed tok/s | E88 replayed / this |")
    print("|---|---|---|---|---|")
    for row in rows:
        if "error" in row and "way" not in row:
            print(f"| {row['model']} | | {row['error'][:100]} | | |")
    for (name, label, way), eager in timed.items():
        if way != "eager" or (label == OURS and OURS in shown_before):
            continue
        shown_before.add(label)
        graph = timed.get((name, label, "graph"), {})
        mine, other = timed.get((name, OURS, "graph"), {}).get("tok_s"), graph.get("tok_s")
        ratio = f"{mine / other:.2f}x" if mine and other else ""
        if reason := graph.get("error"):
            ratio = f"not captured: {reason[:80]}"
        shown = [f"{rate / 1e3:,.0f}K" if rate else "-" for rate in (eager["tok_s"], other)]
        print(f"| {label} | {eager['params']:,} | {' | '.join(shown)} | {ratio} |", flush=True)


CHECK = Check(
    {"table": table},
    names=lambda: BASELINES,
    # The last one is for the processes of the check itself.
    settings={
        "rounds": 3,
        "steps_a_round": 4,
        "batch_size": 32,
        "chunk_size": 512,
        "eager_only": "",
    },
    item=time_group,
)
