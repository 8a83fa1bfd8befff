"""``mode=probe``: what a model's state remembers, as numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console

from elman.base import run_files
from elman.base.consoles import say, table_console
from elman.base.disk import say_unwritten
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, RunStatus
from elman.base.live_line import PLAIN_SECONDS, ProgressBar
from elman.base.typed_in import shortest
from elman.base.whole_file import put_json
from elman.config.run_config import RunConfig
from elman.data.choosing import chosen_line, chosen_to_score
from elman.data.files import ByteSource
from elman.data.opening import open_files
from elman.data.text import open_text
from elman.devices.environment import choose_device, device_name, revision
from elman.evaluation.validation import uses_bf16
from elman.models.mixed import resolved_backends
from elman.probe.chunks import LONGEST_CHUNK, Reader, Text, evenly
from elman.probe.kept import KeptParts
from elman.probe.measure import Subject, measure
from elman.probe.result import DEFINITIONS, PROBE_VERSION, ProbeResult
from elman.report.probe.views import views_of
from elman.report.probe.write import print_and_write
from elman.runs.folder import RunLock, write_config
from elman.runs.prepared import PreparedRun
from elman.sections.probe import SHORTEST, ProbeConfig
from elman.sections.training import DataConfig
from elman.training.checkpoints.loading import load, saved_config, slow_path_note
from elman.training.checkpoints.store import Checkpoint, find_checkpoint

_LENGTH = {"cuda": 131_072, "cpu": 8_192}
_DOCUMENTS, _FEWEST = 8, 2
# A pass that learns nothing keeps one layer's tensors only, so it can have more positions.
_TIMES_A_TRAINED_BATCH = 4
# A call has the states before it, those after it, and what its layers compute in fp32.
_SHARE_OF_STATES = 8


def run(job: PreparedRun) -> ExitStatus:
    """Measure what ``config.probe`` asks for, write ``probe.json`` and its page.

    Raises:
        UserError: no such checkpoint, data or device, or the text is too short.
    """
    config, folder = job.config, job.folder
    assert config.probe is not None
    assert folder is not None
    settings, console = config.probe, table_console()
    checkpoint = find_checkpoint(settings.checkpoint)
    trained = saved_config(checkpoint)
    device = choose_device(settings.device, "probe.device")
    with RunLock(folder), _opened(settings, trained, device, console) as text:
        write_config(folder, config)
        reader = _reader(config, checkpoint, trained, device, console)
        backend = config.kernels.backend
        result = _described(settings, checkpoint, trained, reader, text, backend)
        facts = result.model_dump() | {"meta": checkpoint.meta, "revision": revision()}
        kept = KeptParts(facts | {"changes": settings.changes, "bytes": text.fingerprint()})
        with ProgressBar("starting", Console(stderr=True), quiet=PLAIN_SECONDS) as bar:
            subject = Subject(reader, text, settings.seed, settings.changes)
            measure(subject, settings.parts, result, kept, bar.begin, bar.show)
        tree = result.model_dump()
        failure: OSError | None = None
        try:
            put_json(folder / run_files.PROBE, tree)
            kept.forget()
        except OSError as error:
            failure = error
    written = print_and_write(console, views_of([tree]), folder, paper=settings.paper)
    say(console, f"everything about it: {shortest(folder)}")
    if failure is not None:
        say_unwritten(folder / run_files.PROBE, failure)
    if failure is not None or not written:
        return ExitStatus.FAILED
    return result.status.exit_status


@contextmanager
def _opened(
    settings: ProbeConfig, trained: RunConfig, device: torch.device, console: Console
) -> Iterator[Text]:
    """Yield the documents that are read."""
    if not isinstance(trained.data, DataConfig):
        raise UserError(
            f"probe.checkpoint={settings.checkpoint}: learned a task, whose symbols are no text; "
            "name a run that learned text"
        )
    if not trained.data.has_bytes:
        raise UserError(
            f"probe.checkpoint={settings.checkpoint}: its tokens are data.tokenizer="
            f"{trained.data.tokenizer}, and a probe reads byte by byte; name a run of "
            "data.tokenizer=bytes"
        )
    usual = _LENGTH[device.type]
    if settings.path is None:
        with open_text(trained.data, trained.train.chunk_size, console.print) as data:
            yield _documents(settings, data.source, data.train_bytes, usual)
        return
    chosen = chosen_to_score(settings.path, settings.format, settings.field, "probe.path")
    if left := chosen_line(chosen, "probing on"):
        say(console, f"files: {left}")
    with open_files(chosen.train, settings.field, "probe.path") as source:
        yield _documents(settings, source, 0, usual)


def _documents(settings: ProbeConfig, source: ByteSource, first: int, usual: int) -> Text:
    """Return evenly spaced stretches of the text from byte ``first`` on.

    Without ``probe.length`` they have the usual length, halved until enough of them fit.
    """
    size = len(source) - first
    length = settings.length or usual
    while settings.length is None and length > SHORTEST:
        if (length + 1) * (settings.documents or _FEWEST) <= size:
            break
        length //= 2
    row = length + 1
    fitting = size // row
    count = settings.documents or min(_DOCUMENTS, fitting)
    if count < _FEWEST or count > fitting:
        longest = size // max(_FEWEST, settings.documents or 0) - 1
        shorter = f"type probe.length={longest} or less, or " if longest >= SHORTEST else ""
        raise UserError(
            f"probe.length={length}: {max(_FEWEST, count)} documents need "
            f"{max(_FEWEST, count) * row:,} bytes, "
            f"but {source.label} has {size:,} to read; {shorter}name more text with "
            "probe.path=<file>"
        )
    return Text(source, evenly(count, first, len(source) - row), length)


def _reader(
    config: RunConfig,
    checkpoint: Checkpoint,
    trained: RunConfig,
    device: torch.device,
    console: Console,
) -> Reader:
    """Return the model, ready to read."""
    settings, backend, slow = config.probe, config.kernels.backend, config.baseline.allow_slow
    assert settings is not None
    window = _window(settings, trained)
    train = trained.train

    def limit(own: int) -> int:
        return settings.window or own or train.chunk_size

    model = load(checkpoint.path, device, backend, slow, context=limit)
    if note := slow_path_note(checkpoint.path, device, backend, slow):
        say(console, note)
    positions = _TIMES_A_TRAINED_BATCH * train.batch_size * train.chunk_size
    reader = Reader(model, device, train.precision, train.chunk_size, positions)
    reader.row_bytes = _row_bytes(reader, window)
    if device.type == "cuda":
        reader.state_bytes = torch.cuda.mem_get_info(device)[0] // _SHARE_OF_STATES
    return reader


def _row_bytes(reader: Reader, window: int | None) -> int:
    """Return the bytes of the states of one row, after as many bytes as an attention attends to."""
    tokens_1t = torch.zeros(1, min(window or 1, LONGEST_CHUNK), dtype=torch.long)
    _, states = reader(tokens_1t.to(reader.device), None)
    size = sum(part.nbytes for state in states for part in state.values())
    return size * (window or 1) // tokens_1t.shape[1]


def _window(settings: ProbeConfig, trained: RunConfig) -> int | None:
    """Return how many bytes the longest attention attends to; None for a model without one."""
    model = trained.model
    contexts = [part.options["context"] for part in model.parts() if "context" in part.options]
    if not contexts:
        if settings.window is not None:
            raise UserError(
                f"probe.window={settings.window}: cell {model.cells} has no attention; drop it"
            )
        return None
    limits = [one or trained.train.chunk_size for one in contexts]
    assert all(isinstance(one, int) for one in limits)
    return settings.window or int(max(limits))


def _described(
    settings: ProbeConfig,
    checkpoint: Checkpoint,
    trained: RunConfig,
    reader: Reader,
    text: Text,
    backend: str,
) -> ProbeResult:
    """Return a result without numbers."""
    label = text.source.label
    return ProbeResult(
        status=RunStatus.OK,
        backend=resolved_backends(trained.model, backend, reader.device, allow_slow=True),
        checkpoint=str(checkpoint.path.absolute()),
        step=checkpoint.step,
        model=trained.model.name,
        cell=trained.model.cells,
        params=reader.model.num_params(),
        precision="bf16" if uses_bf16(reader.device, reader.precision) else "fp32",
        device=device_name(reader.device),
        trained_length=reader.trained,
        length=text.length,
        documents=text.documents,
        window=_window(settings, trained),
        text=f"held-out tail of {label}" if settings.path is None else label,
        seed=settings.seed,
        probe_version=PROBE_VERSION,
        definitions=DEFINITIONS,
    )
