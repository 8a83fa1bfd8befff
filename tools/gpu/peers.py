"""Every peer in one run: tokens per second with and without zeros in its products, and its kernels.

    python tools/gpu/run.py peers [table] [warm] [--only mamba2,lstm] [rounds=3] [profile=true]

``table`` times training steps, replayed as CUDA graphs, at 32 rows of 512 in bf16: as they come,
and, where a product is filled up with zeros, without the zeros in the same rounds. Then it replays
one step under PyTorch's profiler and names the kernels of its products and the slowest of the
others, in milliseconds a step. ``warm`` compiles everything and times nothing.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from elman.models.language_model import LanguageModel
from elman.ops.common.padding import MULTIPLE
from tools.gpu.instruments import interleaved, recorded
from tools.gpu.job import Check, Job, Row
from tools.gpu.padding import plain
from tools.gpu.peer_speed import OURS, WARMUP, Training, built

CUDNN = {"lstm on cuDNN": "lstm", "gru on cuDNN": "gru"}
"""Models that PyTorch's own networks run, by what a row calls them."""
PEERS = (
    *(OURS, "llama", "lstm", "gru", *CUDNN, "cudalstm", "slstm", "m2rnn", "mingru", "minlstm"),
    *("mamba2", "fla-gdn", "gdn-neg", "kda", "mamba3", "rwkv7", "gdn2", "deltaproduct"),
)
PRODUCTS = re.compile(r"gemm|nvjet|cutlass|xmma|cublas|splitK", re.IGNORECASE)
"""In the names of cuBLAS's kernels."""
SHOWN = 5
TAPS = 8
"""Most columns of a convolution's taps, which are in no product."""


def model_of(name: str) -> LanguageModel:
    """Return a peer as training builds it."""
    return built(CUDNN[name], backend="torch") if name in CUDNN else built(name)


def warm(job: Job) -> None:
    """Compile every kernel of every peer."""
    for name in job.chosen(PEERS):
        job.measure({"model": name}, partial(one_warm, job, name))


def one_warm(job: Job, name: str) -> Row:
    """Take one step of a peer."""
    training = training_of(job, name)
    training.step()
    torch.cuda.synchronize()
    return {}


def training_of(job: Job, name: str) -> Training:
    """Return the training steps of a peer, all kernels compiled."""
    training = Training(model_of(name), job.settings["batch_size"], job.settings["chunk_size"])
    training.tune()
    return training


def table(job: Job) -> None:
    """Time every peer and name its kernels."""
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    for name in job.chosen(PEERS):
        job.measure({"model": name}, partial(one_peer, job, name, stream))
        torch.cuda.empty_cache()


def one_peer(job: Job, name: str, stream: torch.cuda.Stream) -> Row:
    """Return what a step of a peer takes, and on what."""
    training = training_of(job, name)
    call = partial(recorded, training.step, warmup=WARMUP, stream=stream)
    graphs = {"padded" if zeros_in(training.model) else "": call()[0]}
    if "padded" in graphs:
        with plain():
            graphs["plain"] = call()[0]
    replays = {way: graph.replay for way, graph in graphs.items()}
    repeats = job.settings["steps_a_round"]
    row: Row = {"params": training.model.num_params()}
    for way, rounds in interleaved(replays, job.settings["rounds"], repeats=repeats).items():
        prefix = f"{way}_" if way else ""
        row[f"{prefix}tok_s"] = round(training.predicted / statistics.median(rounds))
        row[f"{prefix}step_ms"] = round(1e3 * statistics.median(rounds), 2)
    job.report({"model": name, **row})
    if not job.settings["profile"]:
        return {}
    kernels = {way: kernels_of(replay) for way, replay in replays.items()}
    return {f"{way} {key}".strip(): seen for way in kernels for key, seen in kernels[way].items()}


def zeros_in(model: LanguageModel) -> bool:
    """Return whether a matrix of a model has a size that zeros fill up."""
    sizes = (one.shape for one in model.parameters() if one.ndim == 2)
    return any(rows % MULTIPLE or columns % MULTIPLE for rows, columns in sizes if columns > TAPS)


def kernels_of(run: Callable[[], object]) -> Mapping[str, Mapping[str, str]]:
    """Return the slowest kernels of a run: those of products, and others."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    took: defaultdict[str, list[float]] = defaultdict(list)
    for event in seen.events() or ():
        if event.device_type.name == "CUDA":
            took[event.name].append(event.device_time / 1e3)
    groups: dict[str, dict[str, list[float]]] = {"products": {}, "others": {}}
    for name, times in took.items():
        groups["products" if PRODUCTS.search(name) else "others"][name] = times
    shown = {}
    for group, kernels in groups.items():
        slowest = sorted(kernels.items(), key=lambda one: -sum(one[1]))[:SHOWN]
        total = sum(map(sum, kernels.values()))
        shown[group] = {"all": f"{total:.2f} ms"} | {
            name[:90]: f"{sum(times):.2f} ms, {len(times)} times" for name, times in slowest
        }
    return shown


CHECK = Check(
    {"table": table, "warm": warm},
    default=("table",),
    names=lambda: PEERS,
    settings={
        "rounds": 3,
        "steps_a_round": 4,
        "batch_size": 32,
        "chunk_size": 512,
        "profile": True,
    },
)
