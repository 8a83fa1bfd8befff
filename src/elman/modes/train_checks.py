"""What a training run is refused for before its first step.

Memory, kernels, room on the disk, and ranks that would begin differently.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from elman.base.errors import UserError
from elman.base.units import different_sizes
from elman.distributed.team import same_everywhere
from elman.models.language_model import LanguageModel
from elman.modes.train_setup import Findings, TrainingSetup
from elman.parity.gate import compiling_norm_kernels, require_norm_parity, require_stack_parity
from elman.parity.shapes import TrainedSizes
from elman.training.checkpoints.store import checkpoint_size
from elman.training.memory.advice import memory_advice
from elman.training.memory.estimate import available_memory, estimate_memory


def too_large(setup: TrainingSetup, findings: Findings) -> str | None:
    """Return why a step would get this process killed, before anything is allocated; else None."""
    available, one_pass = available_memory(setup.device), setup.one_pass
    findings.estimate = estimate_memory(one_pass).total
    if findings.estimate <= available:
        return None
    return memory_advice(setup.config, one_pass, available, findings.estimate)


def prove_kernels(setup: TrainingSetup, findings: Findings, say: Callable[[str], None]) -> None:
    """Refuse to train with a kernel that does not compute what the reference computes.

    Raises:
        ParityError: a kernel computes something else.
    """
    config, train = setup.config, setup.config.train
    arguments = (setup.device.type, setup.precision, setup.folder, say)
    requested = config.kernels.backend

    def check_norms() -> None:
        if findings.norm_parity is None:
            findings.norm_parity = require_norm_parity(config.model, requested, *arguments)

    with compiling_norm_kernels(config.model, requested, setup.device.type, setup.precision):
        findings.parity = require_stack_parity(
            config.model,
            setup.backend,
            *arguments,
            sizes=TrainedSizes(train.batch_size, train.chunk_size, train.tbptt),
            resets=config.data.reset_at_documents,
            meanwhile=check_norms,
        )
    check_norms()


def require_room(folder: Path, model: LanguageModel) -> None:
    """Refuse a run whose first checkpoint does not fit the disk: it would train for nothing.

    Raises:
        UserError: it does not fit.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    needed = checkpoint_size(weights, weights)  # every optimizer keeps as much, or more
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        needs, left = different_sizes(needed, free)
        raise UserError(
            f"{folder}: a checkpoint needs at least {needs} and the disk has {left} "
            "free; make room there, or name a folder on another disk with hydra.run.dir=<folder> "
            "(of a sweep: hydra.sweep.dir=<folder>)"
        )


def compare_starts(setup: TrainingSetup, model: LanguageModel, precision: str | None) -> None:
    """Raise UserError unless every rank has the data and the first weights of rank 0.

    So it has with Muon the precision of its products, which depends on the machine.
    """
    team = setup.team
    same_everywhere(team, "data", json.dumps(setup.data.identity()))
    try:
        same_everywhere(team, "products of Muon", str(precision))
    except UserError as error:
        raise UserError(f"{error}, or say optim.matrix_precision=fp32") from None
    if setup.config.parallel.shard == "none":
        total = sum(float(p.detach().double().sum()) for p in model.parameters())
        same_everywhere(team, "first weights", repr(total))
