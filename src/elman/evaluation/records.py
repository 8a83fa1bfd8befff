"""``metrics.jsonl``: every kind of record in it, each field with its definition and unit.

Dashboards show the same numbers as ``kind/field``.
"""

from __future__ import annotations

from elman.evaluation.fields import Number, Part, Whole, number


class Record(Part):
    """One line."""

    step: Whole = number("optimizer steps so far; of kind step: the number of this step, from 1")


class Session(Record):
    """A start, or a resume."""

    batch_size: Whole = number("train.batch_size of the session", "rows")
    chunk_size: Whole = number("train.chunk_size of the session", "bytes")
    flops_per_byte: Number = number(
        "as in result.json; null unless train.flops limits the run", "FLOP/byte"
    )


class Step(Record):
    """One optimizer step."""

    loss: Number = number(
        "mean nats per predicted byte of the batch of this step, before its update; of a task: "
        "nats per answer; null if it was not finite",
        "nats",
    )
    lr: Number = number("learning rate of this step: optim.lr, as its schedule has it")
    grad_norm: Number = number(
        "norm of the gradient over all weights, before it was clipped; null if it was not finite"
    )
    applied: bool = number("the update was made; it is not if it was not finite", default=True)


class Window(Record):
    """Some steps: those since the last window, ``log.every`` as a rule."""

    loss: Number = number("mean loss of these steps", "nats")
    bpb: Number = number("loss / ln 2", "bits")
    tok_s: Number = number(
        "predicted bytes per second of training time in these steps; of a task: positions",
        "bytes/s",
    )
    train_seconds: Number = number(
        "training time so far, over all sessions, without validation and checkpoints", "s"
    )
    data_wait_seconds: Number = number(
        "time spent waiting for batches so far, over all sessions", "s"
    )
    peak_memory_bytes: Number = number(
        "GPU: largest memory held by tensors so far; CPU: largest resident size of the process",
        "bytes",
    )


class Validation(Record):
    """A validation."""

    val_bpb: Number = number("as in result.json, with the weights of this step", "bits")
    val_tokens: Whole = number("held-out bytes that val_bpb predicts; of a task: answers", "bytes")
    accuracy: Number = number("of a task: share of right answers; null for text", "share")


class Test(Record):
    """The test of a task at its end: ``accuracy at <length>``, a share, for each tested length."""


KINDS: dict[str, type[Record]] = {
    "session": Session,
    "step": Step,
    "window": Window,
    "validation": Validation,
    "test": Test,
}
"""The records by their ``kind``."""
