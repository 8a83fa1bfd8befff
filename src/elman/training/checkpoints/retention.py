"""Why checkpoints are saved, and which of them are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum


class SaveReason(Enum):
    """A reason to save a checkpoint: its number among ranks, and its words in the run's log.

    A checkpoint is kept as one of the newest ``train.keep_checkpoints``, whatever it was saved for;
    that of the smallest ``val_bpb`` is kept for good (:func:`kept`).
    """

    STEPS = 1, "train.save_every steps have passed"
    MINUTES = 2, "train.save_minutes have passed"
    RETRY = 3, "the last attempt failed, and the disk may have room again"
    BEST = 4, "its val_bpb is the smallest so far"
    MADE_UP = 5, "its validation, which a signal had stopped, is made up for"
    END = 6, "training has ended"
    FAILURE = 7, "training cannot go on"

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text

    @property
    def repeats(self) -> bool:
        """Whether it saves a step that is saved already: the run has learned more about it."""
        return self is SaveReason.MADE_UP

    @property
    def required(self) -> bool:
        """Whether the run fails if it cannot be saved; else the next save tries again."""
        return self is SaveReason.END


def reason_of(number: float) -> SaveReason | None:
    """Return the reason of a number that ranks exchanged; None for 0."""
    return next((reason for reason in SaveReason if reason.number == number), None)


def names_to_keep(names: Sequence[str], newest: int, best: Collection[str]) -> set[str]:
    """Return the folders to keep.

    Args:
        names: Those of all whole checkpoints, oldest first.
        newest: ``train.keep_checkpoints``.
        best: That of the best checkpoint, and the one that ``best`` still names, if there are any.
    """
    return {*names[-newest:], *best}
