"""The emulation notices every fault that is planted in the kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elman.kernels.compiler import find_compiler
from tests.emulation.mutations import Mutation, mutations, noticed, outcome
from tests.emulation.planted import LATER

pytestmark = pytest.mark.compiler

ALL = mutations()
ENGINES = ("matrix", "channel", "add_norm", "cpu_matrix", "cpu_channel", "cpu_dense", "cpu_tape")
QUICK = (
    "matrix",
    "channel",
    "cpu_channel",
    "cpu_dense",
    "cpu_tape",
)  # to compile under the sanitizers


def _often() -> list[Mutation]:
    """Return one barrier of each kind that is left out, and one other fault of each file.

    They show that the emulation still knows every kind and looks at every file; the rest runs with
    the slow tests.
    """
    barriers = [one for one in ALL if one.what.endswith("left out")]
    edits = [one for one in ALL if one not in barriers and not one.what.endswith(LATER)]
    kinds = {re.findall(r"(\w+)(?:<\w+>)?\(", one.what)[0]: one for one in barriers}
    files = {one.file: one for one in reversed(edits)}
    return [*kinds.values(), *files.values()]


OFTEN = _often()


def test_the_sources_as_they_are_have_no_fault() -> None:
    assert outcome(None, "e88") == "-"


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, id=mutation.what, marks=[pytest.mark.slow] * (mutation not in OFTEN))
        for mutation in ALL
    ],
)
def test_a_planted_fault_is_noticed(mutation) -> None:
    said = outcome(mutation, "e88")
    assert noticed(said), said


# The barrier after the reads of a row is not there in cells that read nothing: e70, e73-full.
OTHERS = [
    pytest.param(plan, mutation, id=f"{plan}-{mutation.what}")
    for plan in ("e70", "e73-full", "e75")
    for mutation in ALL
    if mutation.compiled_for(plan)
]


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "mutation"), OTHERS)
def test_a_planted_fault_is_noticed_in_other_cells(plan, mutation) -> None:
    said = outcome(mutation, plan)
    assert noticed(said), said


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
