"""The sanitizers find nothing in the engines, and would find a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elman.kernels.compiler import find_compiler

pytestmark = pytest.mark.compiler

ENGINES = ("matrix", "channel", "add_norm", "cpu_matrix", "cpu_channel", "cpu_dense", "cpu_tape")
QUICK = (
    "matrix",
    "channel",
    "cpu_channel",
    "cpu_dense",
    "cpu_tape",
)  # to compile under the sanitizers


def sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run engines under the sanitizers."""
    compiler = find_compiler()
    assert compiler is not None
    asan = subprocess.run(
        [*compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    environment = os.environ | {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [sys.executable, "-m", "tests.emulation.sanitized", *arguments],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )


def expect_clean(engines: tuple[str, ...]) -> None:
    done = sanitized(*engines)
    wanted = [f"clean {name}" for name in engines]
    assert done.stdout.split("\n")[:-1] == wanted, done.stderr[-3000:]


@pytest.mark.required
def test_the_sanitizers_find_nothing() -> None:
    """Forward and back; they see what the emulator cannot, and the CPU engines."""
    expect_clean(QUICK)


@pytest.mark.slow
def test_the_sanitizers_find_nothing_in_the_other_engines() -> None:
    expect_clean(tuple(name for name in ENGINES if name not in QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_sanitizers_would_find_a_fault(engine) -> None:
    """And nothing in several plans and odd sizes."""
    done = sanitized("--planted", engine)
    assert done.stdout == f"noticed {engine}\nclean {engine}\n", done.stderr[-3000:]
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
