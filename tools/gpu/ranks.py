"""One model on one and on two GPUs: equal bits, speed, shards, and what exactness costs.

bits    200 steps with ``parallel.exact=true`` on one and on two GPUs: every loss and weight equal
speed   bytes a second of a 102M E88 on one and on two GPUs: exact, not exact, and sharded
large   the same of a 1.3B E88, with the peak memory of a GPU
sums    the fixed tree's sum of that many gradients beside NCCL's own all_reduce

    python tools/gpu/run.py ranks [bits] [speed] [large] [sums] [limit=240]

It takes ``limit`` seconds at most; what no time is left for is reported as left out. On a CPU, tiny
models run through gloo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tools.gpu.instruments import equal
from tools.gpu.job import Check, Job, Row, read_rows
from tools.gpu.processes import item_command

RUNS = (
    "train.val_every=null",
    "train.save_minutes=null",
    "data.val_sample=512",
    "data.val_window=64",
    "log.every=10",
    "log.tensorboard=false",
)
EXACT = ("parallel.exact=true", "parallel.virtual_shards=4")
TERM_S = 20.0


@dataclass(frozen=True)
class Sizes:
    """What is trained on a kind of device.

    Args:
        common: Overrides of the model of every comparison.
        exact_steps: Steps whose losses are compared.
        timed: Overrides of the runs of that model that are only timed: the rows of all GPUs.
        timed_steps: Their steps.
        large: Overrides of the large model.
        large_steps: Its steps.
        reduced: Numbers of gradients to sum.
    """

    common: tuple[str, ...]
    exact_steps: int
    timed: tuple[str, ...]
    timed_steps: int
    large: tuple[str, ...]
    large_steps: int
    reduced: tuple[int, ...]


SIZES = {
    "cuda": Sizes(
        ("model=e88f_h32n16_2432x20", "train.batch_size=64", "train.chunk_size=256"),
        200,
        ("train.batch_size=128", "train.chunk_size=512"),
        60,
        (
            "model=e88_h32n64_3072x20",
            "model.depth=51",
            "model.expected_params=null",
            "train.batch_size=32",
            "train.chunk_size=512",
        ),
        12,
        (101_846_464, 1_300_000_000),
    ),
    "cpu": Sizes(
        ("model=e88_tiny", "model.dim=128", "model.depth=1", "train.batch_size=8"),
        6,
        ("train.chunk_size=64",),
        6,
        ("model=e88_tiny", "model.depth=2", "train.batch_size=8"),
        3,
        (100_000,),
    ),
}


class Bench:
    """The runs of all parts, which share a folder and a time limit."""

    def __init__(self, device: str, limit_s: float) -> None:
        self._place = tempfile.TemporaryDirectory()
        self.folder = folder = Path(self._place.name)
        self.device, self.sizes = device, SIZES[device]
        self._until = time.monotonic() + limit_s
        line = b"def add(left, right):\n    return left + right\n\n\n"
        (folder / "text.txt").write_bytes((line * 3000)[: 1 << 17])

    def left(self) -> float:
        """Return the seconds that are left."""
        return self._until - time.monotonic()

    def train(self, name: str, ranks: int, steps: int, *overrides: str) -> Any:
        """Train in a folder ``name`` and return its result, or why there is none."""
        place = self.folder / name
        argv = ["-m", "elman", *overrides, *RUNS, f"train.steps={steps}"]
        argv += [f"train.device={self.device}", f"data.path={self.folder / 'text.txt'}"]
        argv += [f"hydra.run.dir={place}"]
        said = self._run(ranks, argv)
        path = place / "result.json"
        if not path.exists():
            return {"status": "no result", "said": said[-2000:], **self._last_window(name)}
        result = json.loads(path.read_text())
        keys = ("status", "error", "params", "steps", "loss", "tok_s", "peak_memory_bytes")
        return {key: result.get(key) for key in (*keys, "graph", "parallel")}

    def _last_window(self, name: str) -> dict[str, Any]:
        """Return the last rates that a run recorded which did not come to its result."""
        path = self.folder / name / "metrics.jsonl"
        records = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        windows = [record for record in records if record["kind"] == "window"]
        return {"last_window": windows[-1]} if windows else {}

    def sums(self, job: Job) -> list[Row]:
        """Return the times of both sums on two ranks."""
        out = self.folder / "sums"
        numbers = ",".join(map(str, self.sizes.reduced))
        said = self._run(2, item_command(job, numbers, out)[1:])
        rows = read_rows(out / "rank-0" / f"{job.name}.jsonl")[1:]
        return rows or [{"passed": False, "error": said[-2000:]}]

    def _run(self, ranks: int, argv: list[str]) -> str:
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if ranks == 1:
            command = [sys.executable, *argv]
            environment["CUDA_VISIBLE_DEVICES"] = "0"
        else:
            start = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
            # A port of its own for every start.
            command = [sys.executable, *start, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
            command += argv
        if self.left() < 15 + TERM_S:
            return "left out: no time"
        with subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                return process.communicate(timeout=max(1.0, self.left() - TERM_S))[0]
            except subprocess.TimeoutExpired:
                process.terminate()  # torchrun ends its ranks
                try:
                    said = process.communicate(timeout=TERM_S)[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    said = process.communicate()[0]
                return f"{said}\nstopped: it did not end in time"

    def losses(self, name: str) -> list[float]:
        """Return the recorded loss of every step of a run."""
        path = self.folder / name / "metrics.jsonl"
        records = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        return [record["loss"] for record in records if record["kind"] == "step"]

    def same_weights(self, left: str, right: str) -> bool:
        """Whether the last checkpoints of two runs have the same bits."""
        saved = []
        for name in (left, right):
            found = sorted((self.folder / name / "checkpoints").glob("step-*"))
            if not found:
                return False
            saved.append(load_file(found[-1] / "model.safetensors"))
        return equal(saved[0], saved[1])


CUT = ("parallel.shard=full", "optim=adamw")


@cache
def bench_of(device: str, limit_s: float) -> Bench:
    """Return the runs of this process."""
    return Bench(device, limit_s)


def bits(job: Job) -> None:
    """Train with exact sums on one and on two GPUs, and compare every loss and weight."""
    bench = bench_of(job.device, job.settings["limit"])
    sizes = bench.sizes
    for ranks in (1, 2):
        name = f"exact-{ranks}"
        report_run(job, name, bench.train(name, ranks, sizes.exact_steps, *sizes.common, *EXACT))
    one, other = bench.losses("exact-1"), bench.losses("exact-2")
    equal_losses = len(one) == sizes.exact_steps and one == other
    equal_weights = bench.same_weights("exact-1", "exact-2")
    found = {"equal_losses": equal_losses, "equal_weights": equal_weights}
    passed = equal_losses and equal_weights
    job.report({"what": "bits", **found, "steps_compared": len(one), "passed": passed})


def report_run(job: Job, name: str, run: Row) -> None:
    """Report a run, which must have ended well."""
    job.report({"run": name, **run, "passed": run["status"] == "ok"})


def speed(job: Job) -> None:
    """Time the model of the comparison."""
    sizes = bench_of(job.device, job.settings["limit"]).sizes
    _times(job, "timed", sizes.timed_steps, *sizes.common, *sizes.timed)


def large(job: Job) -> None:
    """Time the large model."""
    sizes = bench_of(job.device, job.settings["limit"]).sizes
    _times(job, "large", sizes.large_steps, *sizes.large)


def sums(job: Job) -> None:
    """Time both sums as two ranks of torchrun."""
    for row in bench_of(job.device, job.settings["limit"]).sums(job):
        job.report(row)


def _times(job: Job, name: str, steps: int, *overrides: str) -> None:
    """Train with the same rows on one GPU and on two, in every way."""
    ways: dict[str, tuple[int, tuple[str, ...]]] = {
        "one": (1, ()),
        "plain": (2, ("parallel.exact=false",)),
        "exact": (2, ("parallel.virtual_shards=2",)),
        "sharded": (2, CUT),
        "one-adamw": (1, ("optim=adamw",)),
    }
    bench, runs = bench_of(job.device, job.settings["limit"]), {}
    for way, (ranks, more) in ways.items():
        runs[way] = bench.train(f"{name}-{way}", ranks, steps, *overrides, *more)
        report_run(job, way, runs[way])
    speedup = {way: _ratio(runs[way], runs["one"]) for way in ("plain", "exact")}
    speedup["sharded"] = _ratio(runs["sharded"], runs["one-adamw"])
    job.report({"what": "speedup", **speedup})


def _ratio(left: dict[str, Any], right: dict[str, Any]) -> float | None:
    rates = left.get("tok_s"), right.get("tok_s")
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def time_sums(job: Job, numbers: str) -> None:
    """Time both sums of so many numbers as one rank of torchrun; rank 0 reports milliseconds."""
    from elman.base.rank_place import rank_place
    from elman.distributed.team import joined, own_device

    place = rank_place()
    own = own_device(torch.device(job.device), place)
    team = joined(place, own)
    for count in map(int, numbers.split(",")):
        flat_n = torch.randn(-(-count // place.size) * place.size, device=own)
        times: dict[str, float] = {}
        for name, add in (("tree", team.tree_sum), ("all_reduce", team.plain_sum)):
            seconds = []
            for _ in range(6):
                team.gather(0.0)
                if job.device == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                add(flat_n)
                if job.device == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
            times[name] = 1e3 * min(seconds)
        if place.leads:
            job.report({"numbers": count, **{f"{name}_ms": ms for name, ms in times.items()}})
    team.leave()


CHECK = Check(
    {"bits": bits, "speed": speed, "large": large, "sums": sums},
    settings={"limit": 240.0},
    item=time_sums,
    on_cpu=("bits", "speed", "large", "sums"),
    gpus=2,
)
