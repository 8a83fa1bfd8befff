"""Folders of sweeps and runs as training leaves them, written without training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.evaluation.result import DEFINITIONS, METRICS_VERSION
from elman.runs.folder import write_config

BATCH, CHUNK = 4, 32
USUAL = (
    "train.steps=40",
    f"train.batch_size={BATCH}",
    f"train.chunk_size={CHUNK}",
    "log.every=5",
    "optim.warmup_steps=0",
)
RESULT: dict[str, Any] = {
    "status": "ok",
    "error": None,
    "contended": None,
    "cell": "e1",
    "config_hash": "0123abcd",
    "started": "2026-11-20T16:23:35+00:00",
    "ended": "2026-11-20T16:23:55+00:00",
    "params": 90432,
    "steps": 40,
    "tokens": 40 * BATCH * CHUNK,
    "loss": 1.5,
    "loss_steps": 100,
    "bpb": 1.5 / math.log(2),
    "val_bpb": 2.5,
    "val_tokens": 65536,
    "val_step": 40,
    "best_val_bpb": 2.5,
    "tok_s": 1000.0,
    "peak_memory_bytes": 386_715_648,
    "data_wait_share": 0.007,
    "mfu": None,
    "seconds": {"train": 120.0, "validation": 8.7, "checkpoint": 0.7},
    "backend": "cpu",
    "path": None,
    "slow_path": False,
    "data": {
        "paths": ["/there/book.txt"],
        "bytes": 11_354_835,
        "sha256": "e6238bcc603bfe7b",
        "sample_sha256": None,
        "train_bytes": 10_787_094,
        "val_bytes": 567_741,
    },
    "environment": {
        "elman": "0.1.0",
        "revision": "bcab3e900362",
        "device": "cpu",
        "device_name": "AMD EPYC",
        "packages": {"torch": "2.13.0", "triton": None},
    },
    "metrics_version": METRICS_VERSION,
    "definitions": DEFINITIONS,
}


@cache
def config_of(*overrides: str) -> RunConfig:
    """Return a composed configuration."""
    return compose_config(list(overrides))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with changes, sections merged."""
    tree = deepcopy(dict(base))
    for key, value in changes.items():
        inside = isinstance(value, dict) and isinstance(tree.get(key), dict)
        tree[key] = merged(tree[key], value) if inside else value
    return tree


def records(losses: Sequence[float], first: int = 1, every: int = 5) -> Iterable[dict[str, Any]]:
    """Yield what a session records that begins before step ``first``."""
    yield {"kind": "session", "step": first - 1, "batch_size": BATCH, "chunk_size": CHUNK}
    for step, loss in enumerate(losses, first):
        yield {"kind": "step", "step": step, "loss": loss, "lr": 3e-4, "grad_norm": 1.0}
        if step % every == 0:
            yield {
                "kind": "window",
                "step": step,
                "loss": loss,
                "bpb": loss,
                "tok_s": 1000.0,
                "train_seconds": 3.0 * step,
                "data_wait_seconds": 0.1,
                "peak_memory_bytes": 1,
            }


def make_run(
    folder: Path,
    *overrides: str,
    losses: Sequence[float] | None = None,
    result: Mapping[str, Any] | None = None,
    no_result: bool = False,
) -> Path:
    """Write a run folder; ``result`` changes what the result file of a good run says.

    The held-out bits are as many as the nats of the loss, unless they are given.
    """
    folder.mkdir(parents=True)
    named = {text.split("=")[0] for text in overrides}
    usual = [text for text in USUAL if text.split("=")[0] not in named]
    config = config_of(*usual, *overrides)
    write_config(folder, config)
    losses = [5.0 - 0.05 * n for n in range(40)] if losses is None else losses
    lines = [json.dumps(record) + "\n" for record in records(losses)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if not no_result:
        told = dict(result or {})
        if math.isfinite(told.get("loss", math.nan)):
            told = {"val_bpb": told["loss"]} | told
        whole = merged({**RESULT, "model": config.model.name}, told)
        (folder / "result.json").write_text(json.dumps(whole))
    return folder


class FakeSweep:
    """A sweep folder that grows job by job."""

    def __init__(self, folder: Path, **top: Any) -> None:
        self.folder = folder
        self.jobs: list[dict[str, Any]] = []
        self.top = {
            "command": "elman -m model=e1,e42",
            "arguments": ["model=e1,e42"],
            "mode": "train",
            "benchmark": None,
            "started": "2026-11-20T16:23:16+00:00",
            "ended": "2026-11-20T16:26:18+00:00",
        } | top
        folder.mkdir(parents=True)

    def job(
        self,
        *overrides: str,
        status: str = "ok",
        started: bool = True,
        tuning: Mapping[str, Any] | None = None,
        **of_run: Any,
    ) -> Path:
        """Add a job; ``tuning``: its phase in a tuned sweep; ``of_run`` is for :func:`make_run`."""
        number = len(self.jobs) + 1
        named = dict(text.split("=", 1) for text in overrides)
        model = named.get("model", "e88_tiny")
        folder = self.folder / f"{number:02d}_{model}"
        if started:
            make_run(folder, *overrides, **of_run)
        self.jobs.append(
            {
                "number": number,
                "model": model,
                "seed": int(named.get("train.seed", 42)),
                "swept": list(overrides),
                "command": " ".join(["elman", *overrides]),
                "folder": folder.name,
                "status": status,
                "tuning": tuning,
            }
        )
        self.write()
        return folder

    def tuned(
        self,
        arm: str,
        phase: str,
        lr: float,
        score: float | None,
        *,
        seed: int,
        status: str = "ok",
        common: bool = False,
        trial: int | None = None,
    ) -> Path:
        """Add a job of a tuned sweep: a run of a model at a rate, with its held-out bits."""
        told = {"arm": arm, "phase": phase, "trial": trial, "values": {"optim.lr": lr}}
        result = {"loss": score} if status == "ok" else {"status": status, "error": "it failed"}
        overrides = (f"model={arm}", f"train.seed={seed}", f"optim.lr={lr:g}")
        tuning = told | {"common": common}
        return self.job(*overrides, status=status, tuning=tuning, result=result)

    def failed(self, *overrides: str, status: str, error: str, **result: Any) -> Path:
        """Add a job that wrote how it failed."""
        ended = {"status": status, "error": error, **result}
        return self.job(*overrides, status=status, result=ended)

    def write(self) -> None:
        """Write ``sweep.json``."""
        (self.folder / "sweep.json").write_text(json.dumps(self.top | {"jobs": self.jobs}))
