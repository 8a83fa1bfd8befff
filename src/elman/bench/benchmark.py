"""Runs a benchmark: builds the subjects, times them in turn, then examines each one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from typing import Any

import torch

from elman.base.errors import UserError
from elman.base.units import GPU_MEMORY
from elman.bench.build import layer_subjects, step_subjects
from elman.bench.entries import Entry, benched_models, entries
from elman.bench.floors import floor_seconds
from elman.bench.memory import peak_bytes, saved_bytes
from elman.bench.operations import PRODUCTS, look_into
from elman.bench.rank_memory import saved_by_shards
from elman.bench.rates import MachineRates, measure_rates
from elman.bench.replays import record_layers, refuse_without_gpu
from elman.bench.room import too_large
from elman.bench.rounds import Parts, Spread, ratios, time_rounds, totals
from elman.bench.subjects import Subject
from elman.config.run_config import RunConfig
from elman.devices.environment import choose_device, describe_environment
from elman.evaluation.validation import uses_bf16
from elman.models.backends import check_precision, on_slow_path, tuning_note
from elman.ops import cross_entropy
from elman.ops.dense.cuda.kernels import notes as dense_notes
from elman.ops.tape.cuda.kernels import notes as tape_notes
from elman.sections.tasks import TaskConfig
from elman.training.memory.estimate import BYTES_PER_PARAMETER

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


def run_benchmark(
    config: RunConfig, search: Sequence[str], say: Say, progress: Progress
) -> dict[str, Any]:
    """Time everything that ``config.bench`` names and return the result, ready for JSON.

    Args:
        config: The configuration.
        search: Overrides for finding the other models' files.
        say: Called with one line about each stage.
        progress: Called at each level with the number of finished measurements and of all.

    Raises:
        UserError: nothing can be timed, or the data or the device is missing.
    """
    settings = config.bench
    assert settings is not None
    device = choose_device(settings.device, "bench.device")
    refuse_without_gpu(settings.graph, device)
    models = benched_models(config, search)
    allow_slow = config.baseline.allow_slow
    chosen, notes = entries(models, settings.backends, device, allow_slow=allow_slow)
    if not chosen:
        raise UserError(f"bench.backends={','.join(settings.backends)}: {notes[0]}")
    precision = "bf16" if uses_bf16(device, settings.precision) else "fp32"
    try:
        for entry in chosen:
            check_precision(entry.backend, precision)
    except UserError as error:  # which names the settings of a training
        told = str(error).replace("kernels.backend", "bench.backends")
        raise UserError(told.replace("train.precision", "bench.precision")) from None
    levels = ("layer", "step") if settings.level == "both" else (settings.level,)
    say("measuring the machine")
    rates = measure_rates(device)
    rows: list[dict[str, Any]] = []
    for level, size in product(levels, settings.sizes):
        own = _sized(config, size)
        shortage = too_large(own, chosen, level, device)
        if shortage and not settings.shapes:
            raise UserError(
                f"bench.batch_size={size[0]}, bench.chunk_size={size[1]}: one {level} {shortage}; "
                "lower one of them"
            )
        left_out = f"one {level} of {_shape(size)} left out: "
        try:
            timed, said = (
                ([], [f"{left_out}it {shortage}"])
                if shortage
                else _level(own, chosen, level, device, rates, say, progress)
            )
        except torch.OutOfMemoryError:
            if not settings.shapes:
                raise
            timed, said = [], [f"{left_out}too little memory for it"]
        rows += timed
        notes += (one for one in said if one not in notes)
        _free_memory(device)
    if not rows:
        raise UserError(f"bench.shapes={','.join(settings.shapes)}: none fits into memory")
    return {
        "status": "ok",
        "model": config.model.name,
        "rows": rows,
        "notes": [*notes, *dense_notes(), *tape_notes()],
        "rates": {
            "multiplies": rates.multiplies,
            "tanhs": rates.tanhs,
            "copies": {str(size): rate for size, rate in sorted(rates.copies.items())},
        },
        "settings": settings.model_dump(),
        "environment": describe_environment(device),
    }


def _level(
    config: RunConfig,
    chosen: Sequence[Entry],
    level: str,
    device: torch.device,
    rates: MachineRates,
    say: Say,
    progress: Progress,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Time everything at one level and one shape; return its rows and notes."""
    settings = config.bench
    assert settings is not None
    with ExitStack() as stack:
        if level == "layer":
            layers, notes = layer_subjects(config, chosen, device)
            notes += record_layers(layers, settings.graph, device)
            subjects: list[Subject] = [*layers]
        else:
            subjects, notes = step_subjects(config, chosen, device, stack)
            if not isinstance(config.data, TaskConfig):
                positions = settings.batch_size * settings.chunk_size
                notes.append(cross_entropy.path(positions, config.model.vocab_size))
        timed = f"one {level}" if len(subjects) == 1 else f"{len(subjects)} {level}s"
        size = (settings.batch_size, settings.chunk_size)
        at = f" of {_shape(size)}" if settings.shapes else ""
        say(f"timing {timed}{at}, rounds: {settings.rounds}{_first(subjects)}")
        rows = _rows(subjects, settings.rounds, rates, progress)
        if level == "step":
            notes += _rank_notes(config, chosen, rows)
    sizes = {"batch_size": settings.batch_size, "chunk_size": settings.chunk_size}
    return [row | sizes for row in rows], notes


def _sized(config: RunConfig, size: tuple[int, int]) -> RunConfig:
    """Return the configuration of a benchmark at one shape."""
    assert config.bench is not None
    sizes = dict(zip(("batch_size", "chunk_size"), size, strict=True))
    return config.model_copy(update={"bench": config.bench.model_copy(update=sizes)})


def _shape(size: tuple[int, int]) -> str:
    return "{}x{}".format(*size)


def _free_memory(device: torch.device) -> None:
    """Free the memory of what was timed before the next is built."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _rank_notes(
    config: RunConfig, chosen: Sequence[Entry], rows: Sequence[dict[str, Any]]
) -> list[str]:
    """Add to each step's row its memory on each of ``bench.ranks``; return it in words too."""
    assert config.bench is not None
    ranks, notes = config.bench.ranks, []
    models = {(entry.model.name, entry.backend): entry for entry in chosen}
    for row in rows if ranks > 1 else ():
        entry = models.get((row["name"], row["backend"]))
        if entry is None:  # another project's implementation
            continue
        whole = BYTES_PER_PARAMETER * row["params"] + row["peak_bytes"]
        sharded = whole - saved_by_shards(entry.of_run(config), ranks)
        row["ranks"] = {"gpus": ranks, "whole_bytes": whole, "sharded_bytes": sharded}
        notes.append(
            f"{row['name']} {row['backend']}: a step on each of {ranks} GPUs takes "
            f"{GPU_MEMORY.text(whole, 2)}, with parallel.shard=full {GPU_MEMORY.text(sharded, 2)}: "
            "measured peak, and 16 bytes a parameter"
        )
    return notes


def _first(subjects: Sequence[Subject]) -> str:
    """Return a note about slow work before the rounds, if there is any."""
    notes = (tuning_note(subject.path, subject.backend) for subject in subjects)
    return next((f"; {note}" for note in notes if note), "")


def _rows(
    subjects: Sequence[Subject], rounds: int, rates: MachineRates, progress: Progress
) -> list[dict[str, Any]]:
    timed = time_rounds(subjects, rounds, progress)
    base = totals(timed[0], subjects[0].parts)
    return [
        _timing(subject, parts, base) | _inside(subject, rates)
        for subject, parts in zip(subjects, timed, strict=True)
    ]


def _timing(subject: Subject, timed: Sequence[Parts], base: Sequence[float]) -> dict[str, Any]:
    total = totals(timed, subject.parts)
    spread = Spread.of(total)
    return {
        "name": subject.name,
        "backend": subject.backend,
        "path": subject.path,
        "slow_path": on_slow_path(subject.backend),
        "replayed": subject.replayed,
        "level": subject.level,
        "params": subject.params,
        "seconds": {
            part: asdict(Spread.of([one[part] for one in timed])) for part in subject.parts
        },
        "total": asdict(spread),
        "ratio": asdict(ratios(total, base)),
        "tok_s": subject.tokens / spread.median,
        "loss_chunk": subject.loss_chunk,
        "rounds": [dict(one) for one in timed],
    }


def _inside(subject: Subject, rates: MachineRates) -> dict[str, Any]:
    """Return the times of an iteration's kernels and products, and the memory it needs."""
    operations = look_into(subject)
    kernels = {
        direction: {
            "seconds": operations.seconds[direction],
            "floor": floor_seconds(work, rates),
            "moved_bytes": work.moved,
            "multiplies": work.multiplies,
            "tanhs": work.tanhs,
        }
        for direction, work in operations.work.items()
    }
    return {
        "products": operations.seconds.get(PRODUCTS, 0.0),
        "slow_products": [
            {"factors": slow.factors, "size": slow.size, "seconds": seconds}
            for slow, seconds in sorted(operations.slow.items(), key=lambda one: -one[1])
        ],
        "kernels": kernels,
        "kernel_calls": operations.calls,
        "saved_bytes": saved_bytes(subject),
        "peak_bytes": peak_bytes(subject),
    }
