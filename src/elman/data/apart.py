"""Training text and held-out text of files of their own, as one source: the held-out text last."""

from __future__ import annotations

from typing import Any

from elman.data.files import ByteSource


class HeldApart(ByteSource):
    """Two sources, one after the other.

    Args:
        train: What is trained on. This source takes its files over, and closes them.
        held_out: What is held out; the same.
    """

    def __init__(self, train: ByteSource, held_out: ByteSource) -> None:
        self._parts = (train, held_out)
        self._label = train.label
        self._described: list[dict[str, Any]] | None = None
        self._join(train, held_out)

    @property
    def label(self) -> str:
        """That of the training text."""
        return self._label

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._descriptors = []
        for part in self._parts:
            part.close()

    def describe(self) -> dict[str, Any]:
        """Return :meth:`ByteSource.describe` of both texts, and what each part is.

        ``paths`` and ``packed`` are those of the training text; ``train`` and ``held_out`` describe
        the parts, with hashes of their own.
        """
        if self._described is None:
            own = super().describe()
            self._described = [own, *(part.describe() for part in self._parts)]
        own, train, held_out = self._described
        packed = {"packed": train["packed"]} if "packed" in train else {}
        keys = ("bytes", "sha256", "sample_sha256")
        return (
            own
            | {"paths": train["paths"]}
            | packed
            | {"train": {key: train[key] for key in keys}, "held_out": held_out}
        )
