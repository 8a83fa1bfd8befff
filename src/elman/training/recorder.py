"""Where a run's numbers go: metrics.jsonl, TensorBoard, Weights & Biases, result.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from elman.config import RunConfig, flatten
from elman.schema.training import LogConfig

METRICS, RESULT = "metrics.jsonl", "result.json"


class Recorder:
    """Appends records to a run's streams; nothing written is ever rewritten.

    Every record has ``kind`` and ``step``. Kinds: ``session`` (a start or a resumption), ``step``
    (one optimizer step), ``window`` (rates over some steps), ``validation``.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._stream = (folder / METRICS).open("a", encoding="utf-8")
        self._sinks = _open_sinks(folder, config)

    def steps(self, records: list[dict[str, Any]]) -> None:
        """Append optimizer steps, each with step, loss, lr and grad_norm."""
        for record in records:
            self._stream.write(json.dumps({"kind": "step", **record}) + "\n")
        self._stream.flush()
        for sink in self._sinks:
            for record in records:
                values = {key: value for key, value in record.items() if key != "step"}
                sink.scalars({f"train/{k}": v for k, v in values.items()}, record["step"])

    def event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Append one record of another kind; its numbers go to the dashboards too."""
        self._stream.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._stream.flush()
        numbers = {
            f"{kind}/{key}": value
            for key, value in values.items()
            if isinstance(value, int | float)
        }
        for sink in self._sinks:
            sink.scalars(numbers, step)

    def close(self) -> None:
        """Flush and close every stream."""
        self._stream.close()
        for sink in self._sinks:
            sink.close()


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        self._run = wandb.init(
            project=config.log.wandb_project,
            name=folder.name,
            dir=str(folder),
            config=flatten(config),
            resume="allow",
            id=folder.name.replace(":", "-"),
        )

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def _open_sinks(folder: Path, config: RunConfig) -> list[_TensorBoard | _WeightsAndBiases]:
    log: LogConfig = config.log
    sinks: list[_TensorBoard | _WeightsAndBiases] = []
    if log.tensorboard:
        sinks.append(_TensorBoard(folder))
    if log.wandb:
        sinks.append(_WeightsAndBiases(folder, config))
    return sinks


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Write ``result.json`` atomically; the result of an earlier session is kept, numbered."""
    path = folder / RESULT
    if path.exists():
        number = 1 + len(list(folder.glob("result-*.json")))
        os.replace(path, folder / f"result-{number:03d}.json")
    scratch = folder / f".{RESULT}.unfinished"
    with scratch.open("w", encoding="utf-8") as stream:
        json.dump(result, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(scratch, path)
    return path
