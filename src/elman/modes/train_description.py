"""What a training run says of itself: the lines at its start, and its ``result.json``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from elman.base.exit_status import RunStatus
from elman.base.phases import Phases
from elman.base.units import MEMORY
from elman.data.choosing import chosen_line
from elman.data.tasks.batches import TaskData
from elman.data.tasks.blind import chance
from elman.data.text import AnyRunData
from elman.data.token_windows import encoding_threads
from elman.devices.cpu import multiplies_bf16
from elman.devices.environment import describe_environment
from elman.distributed.team import Joined
from elman.evaluation.result import (
    DEFINITIONS,
    METRICS_VERSION,
    DataRead,
    Environment,
    RunResult,
    Seconds,
    SharedWork,
)
from elman.models.backends import on_slow_path, tuning_note
from elman.models.mixed import slow_notes
from elman.models.state_bytes import BF16_BYTES, state_bytes, state_size
from elman.modes.train_setup import Findings, TrainingSetup
from elman.ops import cross_entropy
from elman.runs.folder import config_hash
from elman.sections.model import VOCAB_SIZE
from elman.training.long_rows import rows_note
from elman.training.trainer import Trainer


def start_lines(setup: TrainingSetup, findings: Findings, trainer: Trainer) -> list[str]:
    """Return what a person is told when a run starts."""
    config, model, path = setup.config, setup.config.model, setup.path
    memory = f", about {MEMORY.text(findings.estimate, 1)} of memory" if findings.estimate else ""
    through = f" ({path})" if path else ""
    graph = ", replayed as a CUDA graph" if setup.graph else ""
    if (parts := trainer.state.model.time_parts) > 1:
        graph += f", layers side by side over {parts} parts of a row"
    optimizer = trainer.state.optimizer
    update = ", updated by one kernel" if optimizer.in_a_kernel else ""
    if optimizer.matrix_precision is not None:
        update = f", Muon in {optimizer.matrix_precision}"
    lines = [
        f"{model.name}: {model.cells} {model.dim}x{model.depth}, "
        f"{trainer.state.model.num_params():,} parameters, "
        f"backend {setup.backend}{through} on {setup.device}{graph}{update}{memory}"
        f"{_sharing(setup)}",
        f"data: {_told_data(setup)}",
        *_told_files(setup.data),
        *_told_loss(setup),
        f"run folder: {setup.folder}",
    ]
    asked = config.kernels.backend
    for slow in slow_notes(model, asked, setup.device, setup.backend):
        lines.append(f"{slow}; the result is marked")
    if note := tuning_note(path, setup.backend):
        lines.append(f"{note}; it is not counted")
    if note := optimizer.precision_note(setup.device):
        lines.append(note)
    if not isinstance(setup.data, TaskData):
        given = (setup.division.rows, config.train, setup.device)
        lines += [note] if (note := rows_note(trainer.state.model, *given)) else []
    if setup.precision == "bf16" and setup.device.type == "cpu" and not multiplies_bf16():
        lines.append(
            "train.precision=bf16: this CPU has no instructions for bf16 and is much faster with "
            "train.precision=fp32"
        )
    return lines


def _told_data(setup: TrainingSetup) -> str:
    """Say what is read, or which task is learned, with what guessing would reach."""
    data, config = setup.data, setup.config
    if isinstance(data, TaskData):
        settings = "".join(f" {k}={v}" for k, v in data.config.difficulty().items())
        guess = f"chance {chance(data.config, config.train.chunk_size):.3f}"
        rows = f"rows of {config.train.chunk_size}"
        return f"{data.label}{settings}, {rows}; {data.config.definition}; {guess}"
    source = data.describe()
    packed = source.get("packed")
    where = f", packed in {packed['file']}" if packed else ""
    zeroed = "; state zeroed after each 0x1e" if config.data.reset_at_documents else ""
    apart = f", {data.val_bytes:,} bytes held out" if data.chosen.held_out else ""
    read = data.train_bytes if apart else source["bytes"]
    return f"{read:,} bytes of {data.label}{where}{apart}{zeroed}{_told_tokens(source)}"


def _told_tokens(source: dict[str, Any]) -> str:
    """Say what the tokens are, if they are no bytes."""
    if (found := source.get("tokenizer")) is None:
        return ""
    threads = encoding_threads()
    return (
        f"; {found['vocab_size']:,} tokens of {found['name']}, {found['bytes_per_token']:.2f} "
        f"bytes each, encoded by {threads} thread{'s' if threads > 1 else ''}"
    )


def _told_files(data: AnyRunData) -> list[str]:
    """Return a line with the files of a glob or folder, unless all of them are trained on."""
    files = "" if isinstance(data, TaskData) else chosen_line(data.chosen)
    return [f"files: {files}"] if files else []


def _told_loss(setup: TrainingSetup) -> list[str]:
    """Say how the loss of a vocabulary of more than bytes passes through the head."""
    vocabulary = setup.config.model.vocab_size
    return [cross_entropy.path(_positions(setup), vocabulary)] if vocabulary > VOCAB_SIZE else []


def _positions(setup: TrainingSetup) -> int:
    """Return the predicted positions of a pass."""
    return setup.division.rows * setup.config.train.chunk_size


def _data_read(setup: TrainingSetup, tested: Collection[str]) -> DataRead:
    """Return what a run was trained on, with what guessing reaches in a task.

    Args:
        setup: What the process trained with.
        tested: The lengths at which a task was tested.
    """
    read = DataRead(**setup.data.describe())
    read.reset_at_documents = setup.config.data.reset_at_documents
    if isinstance(setup.data, TaskData):
        task = setup.data.config
        read.chance = chance(task, setup.config.train.chunk_size)
        read.chance_by_length = {length: chance(task, int(length)) for length in tested}
    return read


def run_result(
    setup: TrainingSetup,
    findings: Findings,
    trainer: Trainer | None,
    started: datetime,
    status: RunStatus,
    error: str | None,
    phases: Phases,
) -> RunResult:
    """Return what ``result.json`` says; every number in it has its definition beside it.

    Args:
        setup: What the process trained with.
        findings: What was found before the first step.
        trainer: What trained; None if nothing did.
        started: When the session began.
        status: How it ended.
        error: Why, in one line.
        phases: How the time before the first step was spent.
    """
    config = setup.config
    result = RunResult(
        status=status,
        error=error,
        contended=None,
        jobs_per_gpu=None,
        model=config.model.name,
        cell=config.model.cells,
        config_hash=config_hash(config),
        started=started.isoformat(timespec="seconds"),
        ended=datetime.now().astimezone().isoformat(timespec="seconds"),
        memory_estimate_bytes=findings.estimate,
        parallel=_shared_work(setup),
        environment=Environment(**describe_environment(setup.device)),
        metrics_version=METRICS_VERSION,
        definitions=DEFINITIONS,
    )
    if trainer is not None:
        _fill(result, setup, findings, trainer)
    result.data = _data_read(setup, result.accuracy_by_length)
    # Last of all, so that it counts the rest.
    work = 0.0 if trainer is None else trainer.totals.session_seconds
    spent = phases.seconds | {"end": phases.since() - work}
    result.seconds = Seconds(**result.seconds.model_dump(exclude_unset=True), **spent)
    return result


def _fill(result: RunResult, setup: TrainingSetup, findings: Findings, trainer: Trainer) -> None:
    """Set what is known once there is a model."""
    trainer.totals.fill(result)
    result.reload_difference_bpb = trainer.reload_difference
    result.backend, result.graph = setup.backend, setup.graph
    result.time_parts = trainer.state.model.time_parts
    if not isinstance(setup.data, TaskData):
        result.loss_chunk = trainer.state.model.chunk_of(_positions(setup))
    result.precision = setup.precision
    model, narrow = setup.config.model, BF16_BYTES if setup.precision == "bf16" else 4
    size = state_size(model, narrow_bytes=narrow)
    if size is not None:
        chunk = setup.config.train.chunk_size
        result.state_bytes = state_bytes(model, chunk, narrow_bytes=narrow)
        result.state_bytes_per_byte = size.per_byte
    result.parity, result.norm_parity = findings.parity, findings.norm_parity
    result.path, result.slow_path = setup.path, on_slow_path(setup.backend)
    result.matrix_precision = trainer.state.optimizer.matrix_precision


def _sharing(setup: TrainingSetup) -> str:
    """Return how a run shares its work as the end of a line for people; empty without ranks."""
    team, division, parallel = setup.team, setup.division, setup.config.parallel
    if team.place.alone and not division.exact:
        return ""
    how = [f"{team.place.size} ranks"] if not team.place.alone else []
    if division.exact:
        how.append(f"exact in {division.parts} virtual shards")
    if parallel.shard != "none":
        how.append(f"sharded ({parallel.shard}), launch by launch")
    if parallel.average_every:
        how.append(f"weights averaged every {parallel.average_every} steps")
    return f"; {', '.join(how)}"


def _shared_work(setup: TrainingSetup) -> SharedWork:
    """Return how a run shared its work, for its result."""
    team, division, parallel = setup.team, setup.division, setup.config.parallel
    return SharedWork(
        ranks=team.place.size,
        hosts=len(set(team.hosts)) if isinstance(team, Joined) else 1,
        shard=parallel.shard,
        exact=division.exact,
        virtual_shards=division.parts if division.exact else None,
        average_every=parallel.average_every,
    )
