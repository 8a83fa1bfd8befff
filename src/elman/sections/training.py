"""Groups ``data``, ``train``, ``kernels`` and ``log``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from elman.base.errors import UserError
from elman.sections.budget import Budgets
from elman.sections.section import Count, NonNegative, Positive, Section, Switch, no_number, rounded

DataFormat = Literal["auto", "raw", "text", "jsonl", "json", "parquet", "arrow"]
"""How files become bytes; :class:`DataConfig` explains each."""


SEPARATOR = b"\x1e"
"""The byte between two documents."""

BYTE_VALUES = 256
MOST_LEARNED = 2**20
"""Most tokens that ``bpe`` learns: the package reserves memory for all of them."""
BYTES, BPE, TIKTOKEN = "bytes", "bpe", "tiktoken:"
"""Values of ``data.tokenizer``, and how one begins; every other one names a file."""


class DataConfig(Section):
    """Group ``data``: what is read, and how much of its tail is held out.

    Args:
        path: A file, a glob, a folder, or a list of them; null is the Python standard library's own
            text. Of globs and folders, files named test are left, and files named validation,
            valid, val or dev are held out.
        val_path: What is held out, in place of a tail: named in the same way.
        format: ``raw``: every file's bytes as they are. ``text``: .gz, .zst, .xz and .bz2
            decompressed. ``jsonl``, ``json``, ``parquet``, ``arrow``: the documents in ``field`` of
            each line, element or row, joined by the byte 0x1e; JSON may be compressed. ``auto``:
            each file's first bytes and name decide; ``text`` if they do not.
        field: Field with a document's text; a dot descends, as in ``meta.text``.
        val_bytes: Length of the held-out tail in bytes; null is 5 % of the data, at most 4 MiB.
        val_sample: Bytes predicted at each validation, at fixed positions of the tail.
        val_window: Bytes predicted from each of those positions, starting from zero state. It does
            not follow ``train.chunk_size``, so that runs with different chunks stay comparable.
        reset_at_documents: Zero the model's state after every byte 0x1e, so that no document sees
            the one before it: in training, in validation, and wherever the trained model runs.
        tokenizer: What a token is. ``bytes``: a byte. ``bpe``: pairs of bytes, learned from the
            training part; ``bpe:<number>`` also sets ``vocab_size``. ``tiktoken:<name or file>``:
            an encoding of tiktoken. Anything else: a ``tokenizer.json`` of Hugging Face's
            tokenizers.
        vocab_size: With ``bpe``, how many tokens are learned. Otherwise it follows the tokenizer.
    """

    path: str | list[str] | None = None
    val_path: str | list[str] | None = None
    format: DataFormat = "auto"
    field: str = "text"
    val_bytes: Count | None = None
    val_sample: Count = 65536
    val_window: Count = 512
    reset_at_documents: bool = False
    tokenizer: str = BYTES
    vocab_size: Count | None = None

    @property
    def has_bytes(self) -> bool:
        """Whether a token is a byte."""
        return self.tokenizer == BYTES

    @property
    def reset_after(self) -> int | None:
        """The byte after which the state is zeroed, or None."""
        return SEPARATOR[0] if self.reset_at_documents else None

    @model_validator(mode="before")
    @classmethod
    def _with_size(cls, section: Any) -> Any:
        return with_token_count(section) if isinstance(section, Mapping) else section

    @model_validator(mode="after")
    def _each_is_read(self) -> Self:
        refuse_unread("data", self.path or self.val_path, self.format, self.field)
        if self.val_path is not None and self.val_bytes is not None:
            raise UserError(
                f"data.val_bytes={self.val_bytes}: not read with data.val_path, whose files are "
                f"held out whole; drop one of them"
            )
        self._check_tokens()
        return self

    def _check_tokens(self) -> None:
        """Raise UserError on a number of tokens that is missing, or that nothing reads."""
        if not self.tokenizer:
            raise UserError(f"data.tokenizer: names nothing; type data.tokenizer={BYTES}")
        if self.has_bytes and self.vocab_size is not None:
            raise UserError(
                f"data.vocab_size={self.vocab_size}: read only with data.tokenizer={BPE}; type "
                f"data.tokenizer={BPE}:{self.vocab_size}, in a sweep beside bytes, too, or drop it"
            )
        if self.tokenizer == BPE and (self.vocab_size or 0) <= BYTE_VALUES:
            wrong = f"data.tokenizer={BPE}: needs data.vocab_size, how many tokens are learned"
            if self.vocab_size is not None:
                wrong = (
                    f"data.tokenizer={BPE}:{self.vocab_size}: needs more than {BYTE_VALUES} "
                    f"tokens, since the first {BYTE_VALUES} are the bytes"
                )
            raise UserError(f"{wrong}; type data.tokenizer={BPE}:8192")
        if self.tokenizer == BPE and (self.vocab_size or 0) > MOST_LEARNED:
            raise UserError(
                f"data.tokenizer={BPE}:{self.vocab_size}: learns at most {MOST_LEARNED} tokens"
            )


def with_token_count(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return group ``data`` with ``bpe:<number>`` as its tokenizer and its number of tokens.

    Raises:
        UserError: it is no number, or ``vocab_size`` is another one.
    """
    typed, before = str(section.get("tokenizer")), section.get("vocab_size")
    kind, sized, size = typed.partition(":")
    if kind != BPE or not sized:
        return dict(section)
    if not size.isdecimal():
        raise UserError(
            f"data.tokenizer={typed}: expected a number of tokens, as in data.tokenizer={BPE}:8192"
        )
    if before not in (None, int(size)):
        raise UserError(f"data.vocab_size={before}: data.tokenizer={typed} says another; drop it")
    return {**section, "tokenizer": BPE, "vocab_size": int(size)}


def token_name(data: Mapping[str, Any]) -> str:
    """Return what people call the tokens of group ``data``: ``bpe of 512``, or a file's name."""
    tokenizer = str(data["tokenizer"])
    return f"{BPE} of {data['vocab_size']:,}" if tokenizer == BPE else Path(tokenizer).name


def refuse_unread(section: str, path: object, format_: DataFormat, field: str) -> None:
    """Raise UserError if nothing would read the format or the field of a section."""
    if not field:
        raise UserError(f"{section}.field: names nothing; type {section}.field=text")
    settings = ((f"{section}.format", format_, "auto"), (f"{section}.field", field, "text"))
    for name, value, usual in settings:
        if path is None and value != usual:
            raise UserError(f"{name}={value}: read only with {section}.path; name that, or drop it")
    if format_ in ("raw", "text") and field != "text":
        raise UserError(
            f"{section}.field={field}: {section}.format={format_} has no fields; drop one of them"
        )


class TrainConfig(Budgets):
    """Group ``train``. The first budget that is used up ends a run, and no step is cut short.

    Args:
        minutes: This and the other budgets: see :class:`~.budget.Budgets`.
        batch_size: Rows per micro-batch.
        chunk_size: Bytes predicted per row.
        seed: Seed of the initial weights, of random numbers in training, and of the data order.
        data_seed: Seed of the data order, if not ``seed``.
        grad_accum: Micro-batches per optimizer step.
        grad_clip: Largest global gradient norm; 0 is off.
        tbptt: Train on ``batch_size`` contiguous streams with carried states.
        compile: torch.compile the model.
        graph: Replay forward and backward pass as a CUDA graph. ``auto`` is yes on a GPU, unless
            the model runs a loop over time without kernels, ``profile`` is on, or
            :func:`~elman.sections.graphs.graph_conflict` names a conflict.
        overlap: Let the layers compute side by side where few long rows leave a GPU idle: parts of
            the time follow each other through them. ``auto`` does so in a CUDA graph.
        activation_checkpointing: Recompute each mixer in the backward pass.
        max_step_hours: A run whose first step would take longer is refused; null allows any.
        until_accuracy: Of a task: end as soon as a validation answers at least this share right.
        device: ``auto`` is the GPU if there is one.
        precision: ``auto`` is bf16 autocast on a GPU and fp32 on a CPU.
        deterministic: Refuse operations whose results vary from run to run.
        profile: Write a torch profiler trace of a few steps into the run folder.
        val_every: Optimizer steps between validations; null validates only at the end.
        save_every: Optimizer steps between checkpoints; null leaves it to ``save_minutes``.
        save_minutes: Minutes between checkpoints; null leaves it to ``save_every``.
        keep_checkpoints: How many of the newest checkpoints are kept; the best is always kept.
        checkpoints: Save checkpoints at all. A run without them costs less time and disk; it cannot
            be continued, scored again or sampled from.
        resume: Run folder to continue.
        init_from: Run folder or checkpoint whose weights a new run starts from.
    """

    batch_size: Count
    chunk_size: Count
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)]
    data_seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] | None = None
    grad_accum: Count = 1
    grad_clip: NonNegative = 1.0
    tbptt: bool = False
    compile: bool = False
    graph: Switch = "auto"
    overlap: Annotated[Literal["auto", False], no_number] = "auto"
    activation_checkpointing: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    deterministic: bool = False
    profile: bool = False
    val_every: Count | None = None
    save_every: Count | None = None
    save_minutes: Positive | None = None
    keep_checkpoints: Count = 2
    checkpoints: bool = True
    max_step_hours: Positive | None = 24.0
    until_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    resume: str | None = None
    init_from: str | None = None

    @property
    def seed_of_data(self) -> int:
        """The seed of the data order."""
        return self.seed if self.data_seed is None else self.data_seed


Backend = Literal["auto", "reference", "cpu", "cuda", "triton", "flash_qla", "torch"]


class KernelsConfig(Section):
    """Group ``kernels``: which implementation of the recurrence runs."""

    backend: Backend = "auto"


class BaselineConfig(Section):
    """Group ``baseline``: whether slow forms of models may be compared.

    Args:
        allow_slow: Let mamba2 and fla-gdn run as plain PyTorch on a GPU if their package is missing
            or ``kernels.backend=reference`` asks for it. Let a suite contain such rows, and cells
            without a kernel on a GPU. The results are marked. Only with it does ``mode=bench`` time
            the plain PyTorch form of the two on a GPU, and ``mode=parity`` check it there.
    """

    allow_slow: bool = False


class LogConfig(Section):
    """Group ``log``.

    Args:
        every: Optimizer steps between records and progress lines.
        tensorboard: Write TensorBoard events into the run folder.
        plot: Draw the losses into the run folder, as ``loss.png``.
        wandb: Also report to Weights & Biases (needs ``pip install 'elman[wandb]'``).
        wandb_project: Project name there.
        trackio: Also report to Trackio (needs ``pip install 'elman[trackio]'``).
        trackio_project: Project name there.
    """

    every: Count = 10
    tensorboard: bool = True
    plot: bool = True
    wandb: bool = False
    wandb_project: str = "elman"
    trackio: bool = False
    trackio_project: str = "elman"
