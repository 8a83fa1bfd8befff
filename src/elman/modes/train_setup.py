"""What one process trains with, and what its checks found before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elman.config.run_config import RunConfig
from elman.data.text import AnyRunData
from elman.distributed.division import Division
from elman.distributed.team import Joined, Team
from elman.evaluation.validation import uses_bf16
from elman.models.language_model import LanguageModel
from elman.models.mixed import paths


@dataclass(frozen=True)
class TrainingSetup:
    """What one process trains with.

    Args:
        config: The run's configuration.
        folder: The run folder.
        data: The open data.
        device: Where the model lives.
        backend: The backend that was chosen; of a mixed stack those of its parts, joined.
        graph: Whether the pass is replayed as a CUDA graph.
        team: The ranks that train the model.
        division: The parts of a batch, and which of them this rank computes.
    """

    config: RunConfig
    folder: Path
    data: AnyRunData
    device: torch.device
    backend: str
    graph: bool
    team: Team
    division: Division

    @property
    def precision(self) -> str:
        """``bf16`` or ``fp32``: the numbers of the products."""
        return "bf16" if uses_bf16(self.device, self.config.train.precision) else "fp32"

    @property
    def path(self) -> str | None:
        """In words, what computes a baseline."""
        settings = {"device_type": self.device.type, "precision": self.precision}
        return paths(self.config.model, self.backend, **settings)

    @property
    def one_pass(self) -> RunConfig:
        """The configuration of one pass with the chosen backend, which keeps less than loops.

        It names the precision, too.
        """
        kernels = self.config.kernels.model_copy(update={"backend": self.backend})
        train = self.config.train.model_copy(
            update={"batch_size": self.division.rows, "precision": self.precision}
        )
        return self.config.model_copy(update={"kernels": kernels, "train": train})

    def cut(self, model: LanguageModel) -> None:
        """Leave a part of a model on this rank, if ``parallel.shard`` says so."""
        if self.config.parallel.shard == "none":
            return
        from elman.distributed.sharding import shard_mesh, shard_model  # the import takes time

        assert isinstance(self.team, Joined), "divide refuses it for one process"
        device = next(model.parameters()).device
        mesh = shard_mesh(self.config.parallel.shard, self.team.hosts, device.type)
        shard_model(model, mesh)


@dataclass
class Findings:
    """What was found before the first step; None for what was not looked at.

    Args:
        estimate: Bytes that a step needs.
        parity: How the kernels compare with the reference.
        norm_parity: The same of the norm's kernels.
    """

    estimate: int | None = None
    parity: dict[str, Any] | None = None
    norm_parity: dict[str, Any] | None = None
