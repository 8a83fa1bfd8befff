"""A run begins with its GPU while torch is imported; a job that waits for a GPU does not."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.cli.main import main
from elman.devices import context
from tests.small_run import E1, TEXT


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set as soon as a context is made."""
    event = threading.Event()
    monkeypatch.setattr(context, "_make_context", event.set)
    return event


@pytest.mark.parametrize(
    ("device", "ranks", "wanted"),
    [("auto", None, True), ("cuda", "1", True), ("cpu", None, False), ("auto", "2", False)],
)
def test_one_process_begins_with_its_gpu(
    device: str, ranks: str | None, wanted: bool, begun, monkeypatch
) -> None:
    if ranks:
        for name, value in (("WORLD_SIZE", ranks), ("RANK", "0"), ("LOCAL_RANK", "0")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", "1")
    context.begin_with_gpu(device)
    assert begun.wait(30 if wanted else 0.1) == wanted


def test_a_job_that_waits_for_its_gpu_begins_with_none(begun, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(TEXT)
    text, folder = f"data.path={tmp_path}/text.txt", f"hydra.run.dir={tmp_path}/run"

    def wait() -> None:
        raise UserError("no place")

    assert main([*E1, text, folder], wait) == 2
    assert not begun.is_set()
    assert main([*E1, text, folder, "train.steps=1", "train.device=auto"]) == 0
    assert begun.is_set()


@pytest.mark.parametrize("broken", [True, False])
def test_a_driver_that_does_not_start_is_left_to_torch(broken: bool, monkeypatch) -> None:
    retained: list[Any] = []
    fake = SimpleNamespace(
        cuInit=lambda flags: 100 if broken else 0,
        cuDeviceGet=lambda device, index: 0,
        cuDevicePrimaryCtxRetain=lambda *arguments: retained.append(arguments),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    context._make_context()
    assert bool(retained) != broken
