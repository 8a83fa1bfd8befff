"""``mode=eval``: bits per byte of a checkpoint, on its own held-out bytes or on any file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from rich.console import Console

from elman.base.consoles import say, table_console
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.live_line import ProgressBar
from elman.config.run_config import RunConfig
from elman.data.choosing import chosen_line, chosen_to_score
from elman.data.opening import open_files
from elman.data.text import open_text
from elman.data.windows import (
    as_tokens,
    contiguous_chunks,
    contiguous_tokens,
    document_batches,
    scoring_batches,
    validation_batches,
    validation_windows,
)
from elman.devices.environment import choose_device
from elman.evaluation.validation import Scored, score, score_in_order
from elman.models.language_model import LanguageModel
from elman.modes.task_answers import print_answers
from elman.report.summary import measures_table
from elman.runs.prepared import PreparedRun
from elman.sections.modes import EvalConfig
from elman.sections.tasks import TaskConfig
from elman.sections.training import DataConfig
from elman.training.checkpoints.loading import load, saved_config, slow_path_note
from elman.training.checkpoints.store import find_checkpoint
from elman.training.display import WAIT_SECONDS


def run(job: PreparedRun) -> ExitStatus:
    """Print bits per byte and what exactly was measured.

    Raises:
        UserError: no such checkpoint, data or device.
    """
    config = job.config
    assert config.eval is not None
    assert job.folder is None
    settings = config.eval
    checkpoint = find_checkpoint(settings.checkpoint)
    trained = saved_config(checkpoint)
    device = choose_device(settings.device, "eval.device")
    model = load(
        checkpoint.path,
        device=device,
        backend=config.kernels.backend,
        allow_slow=config.baseline.allow_slow,
    )
    console = table_console()
    allow_slow, backend = config.baseline.allow_slow, config.kernels.backend
    if note := slow_path_note(checkpoint.path, device, backend, allow_slow):
        say(console, note)
    if isinstance(trained.data, TaskConfig):
        print_answers(console, settings, trained, model, device)
        return ExitStatus.OK
    if settings.lengths is not None:
        raise UserError(
            f"eval.lengths: {settings.checkpoint} learned text, which has no answers; drop it"
        )
    if settings.path is None:
        bpb, predicted, meaning = _held_out(settings, trained, model, device, console)
    else:
        bpb, predicted, meaning = _file(settings, trained, model, device, console)
    table = measures_table()
    table.add("bits per byte", f"{bpb:.6f}", meaning)
    table.add("bytes predicted", f"{predicted:,}", "")
    if model.tokenizer is not None:
        table.add("tokenizer", model.tokenizer.name, f"{model.tokenizer.vocab_size:,} tokens")
    table.add("checkpoint", f"step {checkpoint.step:,}", str(checkpoint.path))
    table.add("model", trained.model.name, f"{model.num_params():,} parameters")
    table.print(console)
    return ExitStatus.OK


def _held_out(
    settings: EvalConfig,
    trained: RunConfig,
    model: LanguageModel,
    device: torch.device,
    console: Console,
) -> tuple[float, int, str]:
    """Score the run's own held-out windows: the definition of ``val_bpb``."""
    for key in ("max_bytes", "carry_state", "document_window"):
        if getattr(settings, key) not in (None, False):
            raise UserError(f"eval.{key}: read only with eval.path; add eval.path=<file>")
    train, held_out = trained.train, trained.data
    assert isinstance(held_out, DataConfig)
    rows = settings.batch_size or train.batch_size
    with open_text(held_out, train.chunk_size, partial(say, console), model.tokenizer) as data:
        windows = validation_windows(data, held_out.val_window, held_out.val_sample)
        batches = validation_batches(data, held_out.val_window, held_out.val_sample, rows)
        total = len(windows) * held_out.val_window
        scored = as_tokens(batches, model.tokenizer)
        with ProgressBar("scoring", console, quiet=WAIT_SECONDS) as bar:
            show = partial(bar.show, total=total)
            bpb, predicted = score(model, scored, device, train.precision, show)
    meaning = f"the run's held-out text in windows of {held_out.val_window}, each from zero state"
    return bpb, predicted, meaning + _with_resets(trained)


def _file(
    settings: EvalConfig,
    trained: RunConfig,
    model: LanguageModel,
    device: torch.device,
    console: Console,
) -> tuple[float, int, str]:
    """Score any bytes, in windows from zero state or in order with carried state."""
    assert settings.path is not None
    assert isinstance(trained.data, DataConfig)
    train, limit = trained.train, settings.max_bytes
    rows = settings.batch_size or train.batch_size
    chosen = chosen_to_score(settings.path, settings.format, settings.field, "eval.path")
    if left := chosen_line(chosen, "scoring"):
        say(console, f"files: {left}")
    with open_files(chosen.train, settings.field, "eval.path") as source:
        total = min(len(source) - 1, limit or len(source))
        with ProgressBar("scoring", console, quiet=WAIT_SECONDS) as bar:
            show = partial(bar.show, total=total)
            if settings.carry_state:
                chunks: Iterable[Scored]
                if model.tokenizer is None:
                    chunks = contiguous_chunks(source, train.chunk_size, limit)
                else:
                    chunks = contiguous_tokens(source, train.chunk_size, model.tokenizer, limit)
                bpb, predicted = score_in_order(model, chunks, device, train.precision, show)
                meaning = f"{source.label} in order, state carried throughout"
                return bpb, predicted, meaning + _with_resets(trained)
            batches: Iterable[Scored]
            if settings.document_window is None:
                window = trained.data.val_window
                meaning = f"{source.label} in windows of {window}, each from zero state"
                batches = as_tokens(scoring_batches(source, window, rows, limit), model.tokenizer)
            else:
                window = settings.document_window
                meaning = f"{source.label}, each document by itself, in windows of {window} tokens"
                batches = document_batches(source, window, rows, model.tokenizer)
            bpb, predicted = score(model, batches, device, train.precision, show)
    return bpb, predicted, meaning + _with_resets(trained)


def _with_resets(trained: RunConfig) -> str:
    """Return what a run's way with documents adds to the meaning of a number."""
    return ", also zero after each byte 0x1e" if trained.data.reset_at_documents else ""
