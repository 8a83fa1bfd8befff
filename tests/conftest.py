"""What every test shares: a private cache, and the rule that required tests are never skipped."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.base.exit_status import ExitStatus
from elman.base.live_line import PROGRESS_VARIABLE
from elman.base.signals import received
from elman.kernels.compiler import compiler_problem


def pytest_report_header() -> str | None:
    """Say first what this machine lacks for the tests of the CPU's kernels."""
    problem = compiler_problem()
    return None if problem is None else f"tests of kernels for a CPU cannot run: {problem}"


def pytest_configure() -> None:
    """Choose Triton's interpreter; let processes that tests start hear signals as a terminal's do.

    Progress is silenced: what a command prints must not depend on how busy the machine is.

    What a script starts in the background ignores SIGINT, and what nohup starts ignores SIGHUP; so
    do their children.
    """
    # A GPU that a test begins to use has this, too; kept for it, a seed takes half a millisecond.
    torch.manual_seed(0)
    # Before anything imports triton: its interpreter runs elman's own Triton kernels without a GPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault(PROGRESS_VARIABLE, "off")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # No test pulls the plug: files need not be on the disk before the next line. Closed ones fail.
    os.fsync = os.fstat
    # Twenty thousand tests stay alive: scanning them for garbage took half of their collection.
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again from here on, but not among what the collection of tests made."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give every test the same random numbers, whichever tests ran before it in this process.

    A command has a process of its own, which no signal has reached before it.

    What is marked ``compiler`` is skipped where there is none; in CI it fails instead.
    """
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    received.clear()
    wanted = os.environ.get("CI") != "true" and item.get_closest_marker("compiler")
    if wanted and (problem := compiler_problem()):
        pytest.skip(problem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail a test that leaves a handler of SIGINT: the next Ctrl-C would end these tests."""
    yield
    if (handler := signal.getsignal(signal.SIGINT)) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail(f"this test leaves a handler of SIGINT: {handler!r}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what fails for want of a C++ compiler; in CI, no skip of a ``required`` test counts.

    Continuous integration has a compiler: there such a test fails.
    """
    report = yield
    problem = None if os.environ.get("CI") == "true" or not report.failed else compiler_problem()
    if problem is not None and problem in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {problem}")
    if os.environ.get("CI") == "true" and report.skipped and item.get_closest_marker("required"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is required and was skipped: {report.longrepr}"
    _encode(report)
    return report


def _encode(report: pytest.TestReport) -> None:
    """Write what is not UTF-8, such as the name of a folder, in letters: workers send UTF-8."""
    report.sections = [(name, _letters(text)) for name, text in report.sections]
    if report.longrepr is not None and (text := str(report.longrepr)) != _letters(text):
        report.longrepr = _letters(text)


def _letters(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """Return a file of 64 KiB of learnable text."""
    path = tmp_path / "text.txt"
    line = b"def add(left, right):\n    return left + right\n\n\n"
    path.write_bytes((line * (1 + 65536 // len(line)))[:65536])
    return path


# The smallest run that still has every part: a layer, a schedule, a validation. Drawing its losses
# would take a third of its time.
TINY = (
    "model.dim=128",
    "model.depth=1",
    "model.n_heads=2",
    "model.n_state=8",
    "train.batch_size=4",
    "train.chunk_size=16",
    "train.steps=6",
    "train.val_every=3",
    "data.val_sample=256",
    "data.val_window=16",
    "optim.warmup_steps=2",
    "log.every=2",
    "log.tensorboard=false",
    "log.plot=false",
)


@dataclass(frozen=True)
class Run:
    """A finished run of the trainer: its folder, exit status and result."""

    folder: Path
    status: ExitStatus
    result: dict[str, Any]

    def weights(self) -> dict[str, Any]:
        """Return the newest kept weights."""
        from safetensors.torch import load_file

        newest = sorted((self.folder / "checkpoints").glob("step-*"))[-1]
        return load_file(newest / "model.safetensors")

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of one kind in metrics.jsonl."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Callable[..., Run]:
    """Return a function that trains the tiny run with more overrides, in this process."""
    from elman.config.compose import compose_config
    from elman.modes.train import run
    from elman.runs.prepared import PreparedRun

    def start(*overrides: str, folder: str = "run") -> Run:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        named = {override.split("=")[0] for override in overrides}
        tiny = [setting for setting in TINY if setting.split("=")[0] not in named]
        if "data" in named:  # a task, which has no text
            tiny = [setting for setting in tiny if not setting.startswith("data.")]
        elif "data.path" not in named:
            tiny.append(f"data.path={text_file}")
        status = run(PreparedRun(compose_config([*tiny, *overrides]), place))
        return Run(place, status, json.loads((place / "result.json").read_text()))

    return start
