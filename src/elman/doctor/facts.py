"""Facts about this machine: versions from metadata, and answers of separate processes.

Imports neither torch nor any package that it reports on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from elman.doctor.asking import Answered, ask
from elman.doctor.questions import QUESTIONS
from elman.kernels.cache import kernel_cache
from elman.kernels.packages import PACKAGES, installation_problem
from elman.kernels.triton_version import triton_version

OPTIONAL = (
    "triton",
    "mamba-ssm",
    "causal-conv1d",
    "flash-linear-attention",
    "flash-qla",
    "tilelang",
    "cuda-bindings",
    "wandb",
    "trackio",
    "pyarrow",
)
"""Distributions that no part of elman needs on every machine."""
# Questions about a distribution, asked only if it is installed.
_ABOUT = {"triton": "triton", "causal-conv1d": "causal-conv1d", "nvidia-ml-py": "nvml"}


@dataclass(frozen=True)
class Place:
    """A folder that elman writes to.

    Args:
        what: What elman writes there.
        path: The folder, which need not exist yet.
        free: Free bytes there.
        writable: Whether it, or its nearest existing parent, can be written.
    """

    what: str
    path: Path
    free: int
    writable: bool


@dataclass(frozen=True)
class Unmet:
    """A requirement of elman that the installed packages do not meet.

    Args:
        name: The distribution.
        found: Its installed version; None if it is missing.
        wanted: The requirement as ``pip`` reads it.
    """

    name: str
    found: str | None
    wanted: str


@dataclass(frozen=True)
class Facts:
    """All facts behind the verdicts.

    Args:
        versions: Version of each distribution; None if it is not installed.
        unmet: Requirements of elman that are not met.
        answers: How each question ended, by name, without the questions that were not asked.
        places: Folders for runs and kernels.
        visible: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        open: The questions that are not answered yet.
    """

    versions: Mapping[str, str | None]
    unmet: tuple[Unmet, ...]
    answers: Mapping[str, Answered]
    places: tuple[Place, ...]
    visible: str | None = None
    open: frozenset[str] = frozenset()

    def value(self, question: str) -> Mapping[str, Any]:
        """Return the answer to a question; empty if there is none."""
        return self.answers.get(question, Answered()).value

    def problem(self, question: str) -> str | None:
        """Return why a question has no answer; None if it has one or was not asked."""
        return self.answers.get(question, Answered()).problem

    def installed(self, name: str) -> Version | None:
        """Return the version of a distribution."""
        found = self.versions.get(name)
        return None if found is None else Version(found)

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that torch can use."""
        return list(self.value("torch").get("devices", ()))

    @property
    def capabilities(self) -> set[tuple[int, int]]:
        """Compute capabilities of the GPUs that torch can use."""
        return {tuple(gpu["capability"]) for gpu in self.gpus}

    @property
    def has_driver_gpus(self) -> bool:
        """Whether the driver shows a GPU, even if torch cannot use it."""
        return bool(self.value("nvml").get("devices"))


def gather(show: Callable[[list[str]], None] = lambda waiting: None) -> Iterator[Facts]:
    """Yield what is known of this machine, again after each answer; the last has all answers.

    Args:
        show: As in :func:`~elman.doctor.asking.ask`.
    """
    unmet = _unmet()
    names = {"torch", "numpy", "hydra-core", "nvidia-ml-py", *OPTIONAL}
    versions = {name: _version(name) for name in names} | {"triton": triton_version()}
    places = (_place("runs", Path("outputs")), _place("kernels", kernel_cache()))
    # No process is needed to say that a package is not there.
    missing = {name: text for name in PACKAGES if (text := installation_problem(name))}
    answers = {name: Answered({"problem": text}) for name, text in missing.items()}
    put = [
        question
        for question in QUESTIONS
        if question not in missing
        and all(versions[name] for name, about in _ABOUT.items() if about == question)
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts = Facts(versions, unmet, answers, places, visible, frozenset(put))
    for name, answer in ask(put, show):
        facts = replace(facts, answers={**facts.answers, name: answer}, open=facts.open - {name})
        yield facts


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _unmet() -> tuple[Unmet, ...]:
    """Return the requirements in elman's metadata that the installed packages do not meet."""
    try:
        lines = requires("elman") or []
    except PackageNotFoundError:
        return ()
    found = []
    for wanted in map(Requirement, lines):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        installed = _version(wanted.name)
        if installed is None or not wanted.specifier.contains(installed, prereleases=True):
            found.append(Unmet(wanted.name, installed, f"{wanted.name}{wanted.specifier}"))
    return tuple(found)


def _place(what: str, path: Path) -> Place:
    path = path.absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return Place(what, path, shutil.disk_usage(there).free, os.access(there, os.W_OK))
