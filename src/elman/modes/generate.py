"""``mode=generate``: a checkpoint continues a prompt, byte by byte, or several prompts together."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.live_line import LiveLine
from elman.base.named_path import readable_file, writable_file
from elman.base.output import note
from elman.data.tokenizers.tokenizer import utf8_decoder
from elman.devices.environment import choose_device
from elman.evaluation.generation import START, Writer
from elman.evaluation.sampling import Sampling
from elman.evaluation.text_state import load_text_state, save_text_state
from elman.evaluation.validation import uses_bf16
from elman.kernels.driver import cuda_problem
from elman.models.backends import REFERENCE
from elman.models.language_model import LanguageModel
from elman.runs.prepared import PreparedRun
from elman.sections.modes import GenerateConfig
from elman.sections.tasks import TaskConfig
from elman.training.checkpoints.loading import load, saved_config, slow_path_note
from elman.training.checkpoints.store import Checkpoint, find_checkpoint

# Below this many multiplications a step, threads cost more than they save: they wait for each
# other several times a layer and, on a busy machine, for a free core.
_FEW = 2**24
# A model writes any byte. An escape or a bell would act on a terminal, so it gets their pictures.
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROL |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


def run(job: PreparedRun) -> ExitStatus:
    """Print the prompts and their continuations to standard output; a single one is streamed.

    Raises:
        UserError: there is no such checkpoint, state or device.
    """
    config = job.config
    assert config.generate is not None
    assert job.folder is None
    settings = config.generate
    checkpoint = find_checkpoint(settings.checkpoint)
    if isinstance(data := saved_config(checkpoint).data, TaskConfig):
        raise UserError(
            f"generate.checkpoint={settings.checkpoint}: it learned the task {data.task}, which "
            "has no text to continue; elman mode=eval eval.checkpoint=... tests its answers"
        )
    _check_top_k(settings.top_k, saved_config(checkpoint).model.vocab_size)
    save_state = settings.save_state  # looked at before a long text is written in vain
    save_to = None if save_state is None else writable_file("generate.save_state", save_state)
    if settings.state is not None:
        readable_file("generate.state", settings.state)
    device = choose_device(settings.device, "generate.device")
    backend, allow_slow = config.kernels.backend, config.baseline.allow_slow
    model = load(checkpoint.path, device=device, backend=backend, allow_slow=allow_slow)
    if slow := slow_path_note(checkpoint.path, device, backend, allow_slow):
        note(slow)  # the text alone is the output
    kernels = device.type == "cuda" and backend != REFERENCE and cuda_problem() is None
    writer = _writer(settings, checkpoint, model, kernels=kernels)
    prompts = _read(settings, writer, _identity(checkpoint))
    with _threads_for(model, len(prompts)):
        count = (
            _stream(writer, settings) if len(prompts) == 1 else _collect(writer, prompts, settings)
        )
    note(count)
    if save_to is not None:
        save_text_state(save_to, writer, _identity(checkpoint))
    return ExitStatus.OK


def _check_top_k(top_k: int, vocabulary: int) -> None:
    """Raise UserError on more tokens than there are."""
    if top_k > vocabulary:
        raise UserError(
            f"generate.top_k={top_k}: the model has {vocabulary:,} tokens; "
            f"use {vocabulary} or less, or 0 for all"
        )


def _writer(
    settings: GenerateConfig, checkpoint: Checkpoint, model: LanguageModel, *, kernels: bool
) -> Writer:
    precision = settings.precision
    if precision == "auto":
        precision = saved_config(checkpoint).train.precision
    device = next(model.parameters()).device
    if settings.graph is True and device.type != "cuda":
        raise UserError(
            f"generate.graph=true: a CUDA graph needs a GPU, and the model is on {device.type}; "
            "use generate.graph=auto"
        )
    return Writer(
        model,
        Sampling(settings.temperature, settings.top_k, settings.top_p),
        seed=settings.seed,
        bf16=uses_bf16(device, precision),
        kernels=kernels,
        graph=None if settings.graph == "auto" else settings.graph,
        fused=_fused(settings, device),
    )


def _fused(settings: GenerateConfig, device: torch.device) -> bool | None:
    if settings.fused is True and device.type != "cuda":
        raise UserError(
            f"generate.fused=true: its kernel needs a GPU, and the model is on {device.type}; "
            "use generate.fused=auto"
        )
    if settings.fused == "auto":
        return None if device.type == "cuda" and settings.graph is not False else False
    return settings.fused


def _read(settings: GenerateConfig, writer: Writer, model: str) -> list[str]:
    """Feed the prompts to the writer, after a saved state if any; return each row's prompt."""
    given = [settings.prompt] if isinstance(settings.prompt, str) else settings.prompt
    if not given:
        raise UserError("generate.prompt=[]: an empty list; name at least one prompt")
    prompts = [prompt for prompt in given for _ in range(settings.samples)]
    rows = [_bytes_of(prompt) for prompt in prompts]
    if settings.state is None:
        writer.read([row or START for row in rows])
        return prompts
    saved = load_text_state(Path(settings.state).expanduser(), writer, model)
    if prompts == [""]:
        return [""] * saved
    if saved != len(prompts) or not all(rows):
        raise UserError(
            f"generate.prompt: the saved state has {saved} texts and {len(prompts)} prompts were "
            f"given; give {saved} prompts that are not empty, or none"
        )
    writer.read(rows)
    return prompts


def _bytes_of(prompt: str) -> bytes:
    """Return a prompt as typed: Python holds a byte that is not UTF-8 as half of a pair."""
    try:
        return prompt.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return prompt.encode(errors="surrogatepass")


def _identity(checkpoint: Checkpoint) -> str:
    """Return what tells one model's weights from another's, for people and for comparison."""
    path = checkpoint.path.resolve()
    name = path.parent.parent.name.encode(errors="backslashreplace").decode()
    return f"{name}, step {checkpoint.step}"


def _stream(writer: Writer, settings: GenerateConfig) -> str:
    """Print one text as it is generated, and return its speed in words."""
    assert isinstance(settings.prompt, str) or len(settings.prompt) == 1
    prompt = settings.prompt if isinstance(settings.prompt, str) else settings.prompt[0]
    # Bytes arrive in pieces; a character of several bytes arrives only when it is whole.
    decoder = utf8_decoder()
    # Until the first byte: kernels that compile say so on lines of their own.
    unsaid = decoder.decode(_bytes_of(prompt))
    clock = _Clock()
    for (piece,) in writer.write(settings.max_bytes):
        clock.count(len(piece))
        sys.stdout.write(unsaid + _shown(decoder.decode(piece)))
        sys.stdout.flush()
        unsaid = ""
    sys.stdout.write(unsaid + _shown(decoder.decode(b"", final=True)) + "\n")
    sys.stdout.flush()
    return clock.said(writer, 1)


def _collect(writer: Writer, prompts: list[str], settings: GenerateConfig) -> str:
    """Print several texts when all are complete, and return their speed in words."""
    clock, texts = _Clock(), [b""] * len(prompts)
    with LiveLine() as line:
        for pieces in writer.write(settings.max_bytes):
            clock.count(sum(map(len, pieces)))
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
            line.show(f"{len(texts[0])} of {settings.max_bytes} bytes")
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), start=1):
        print(f"--- {number} of {len(prompts)} ---")
        decoder = utf8_decoder()
        print(decoder.decode(_bytes_of(prompt)) + _shown(decoder.decode(text, final=True)))
    return clock.said(writer, len(prompts))


def _shown(text: str) -> str:
    """Return generated text without what would command a terminal; to a file or pipe, as it is."""
    return text.translate(_CONTROL) if sys.stdout.isatty() else text


class _Clock:
    """Bytes a second from the third piece on: before it, kernels are built and graphs recorded."""

    def __init__(self) -> None:
        self._pieces: list[tuple[float, int]] = [(time.perf_counter(), 0)]

    def count(self, size: int) -> None:
        """Note that so many bytes have arrived."""
        self._pieces.append((time.perf_counter(), size))

    def said(self, writer: Writer, rows: int) -> str:
        """Return the speed in words."""
        counted = self._pieces[2:] if len(self._pieces) > 3 else self._pieces
        seconds = max(counted[-1][0] - counted[0][0], 1e-9)
        rate = sum(size for _, size in counted[1:]) / seconds
        total = sum(size for _, size in self._pieces)
        how = "a CUDA graph replayed for each" if writer.replayed else "step by step"
        if writer.fused:
            how = "whole steps in one kernel"
        elif writer.unfused:
            how += f"; not whole steps in one kernel: {writer.unfused}"
        texts = f"{rows} texts together, " if rows > 1 else ""
        return f"{total:,} bytes, {rate:,.0f} bytes a second ({texts}{how})"


@contextmanager
def _threads_for(model: LanguageModel, rows: int) -> Iterator[None]:
    """Use one thread for steps that are too small for several."""
    before = torch.get_num_threads()
    if model.num_params() * rows <= _FEW:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
