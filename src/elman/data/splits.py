"""Tells from a file's name which split of a data set it belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Split = Literal["train", "validation", "test"]

_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}


def split_of(names: Sequence[str]) -> Split | None:
    """Return the split that names stand for, or None.

    A word counts if no letter stands beside it: ``test-00000-of-00001``, ``my_test.v2``, not
    ``latest`` or ``testimony``. Test comes before validation, and that before training: what is
    named test is never trained on, wherever it lies. A folder that names several splits, as in
    ``train-test-split``, names none.

    Args:
        names: The folders below what a user typed, and the file's name at the end.
    """
    *folders, file = [_splits_in(name) for name in names]
    found = set(file).union(*(splits for splits in folders if len(splits) == 1))
    order: tuple[Split, ...] = ("test", "validation", "train")
    return next((split for split in order if split in found), None)


def _splits_in(name: str) -> set[Split]:
    words = re.split(r"[\W\d_]+", name.lower())
    return {_WORDS[word] for word in words if word in _WORDS}
