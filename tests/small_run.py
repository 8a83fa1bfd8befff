"""The smallest run of E1: its settings, its text, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elman.cli.main import main

E1 = (
    "model=e1",
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=2",
    "train.chunk_size=16",
    "data.val_sample=64",
    "data.val_window=16",
    "log.every=1",
    "log.plot=false",
)
TEXT = b"def add(left, right):\n    return left + right\n" * 99
Elman = Callable[..., tuple[int, str]]
"""Runs a command line; returns its exit status and all that it said."""


def elman_said(capfd: pytest.CaptureFixture[str], *always: str) -> Elman:
    """Return a function that runs commands in this process, each with these arguments first."""

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        status = main([*always, *arguments])
        return status, "".join(capfd.readouterr())

    return call
