"""What older runs did where they lack a setting: one line for each setting that came later.

Who adds a setting adds its line to ``NEWER``; for a kind of budget, ``since`` of its declaration
is that line. Then the names of runs that do not use it stay, old runs and new ones are compared,
and an old run resumes as it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from elman.sections.budget import KINDS
from elman.sections.parallel import ParallelConfig
from elman.sections.section import Section


class NewerSetting(NamedTuple):
    """A setting that older runs do not have.

    Args:
        section: Its section.
        key: Its key there.
        before: The value with which a run does what every run did before there was the setting.
        since: Date and commit that brought it.
    """

    section: str
    key: str
    before: object
    since: str


NEWER = (
    NewerSetting("data", "reset_at_documents", False, "2026-11-23, d827866"),
    NewerSetting("data", "val_path", None, "2026-11-27, 650946f"),
    NewerSetting("data", "tokenizer", "bytes", "2026-11-28, ca59918"),
    NewerSetting("data", "vocab_size", None, "2026-11-28, ca59918"),
    NewerSetting("model", "vocab_size", 256, "2026-11-23, 9d1eb09"),
    NewerSetting("optim", "matrix_precision", "auto", "2026-11-27, da53e07"),
    NewerSetting("optim", "warmup_share", None, "2026-11-27, b87bee8"),
    NewerSetting("train", "until_accuracy", None, "2026-11-23, 9d1eb09"),
    *(NewerSetting("train", kind.key, None, kind.since) for kind in KINDS if kind.since),
    NewerSetting("train", "data_seed", None, "2026-11-27, a961165"),
    NewerSetting("train", "max_step_hours", 24.0, "2026-11-27, 894e228"),
    NewerSetting("train", "checkpoints", True, "2026-11-27, 82d914d"),
    NewerSetting("log", "plot", True, "2026-11-27, 82d914d"),
    # Old runs had no overlap. It changes the last bits of few long rows on a GPU, and no name.
    NewerSetting("train", "overlap", "auto", "2026-11-28, d97bad4"),
    NewerSetting("log", "trackio", False, "2026-11-28, c1819db"),
    NewerSetting("log", "trackio_project", "elman", "2026-11-28, c1819db"),
)
_NEWER_SECTIONS: dict[str, Section] = {"parallel": ParallelConfig()}  # 2026-11-23, 249ca19


def without_newer(tree: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a configuration without newer settings that change nothing: as an older one."""
    changed = {
        name: section
        for name, section in tree.items()
        if name not in _NEWER_SECTIONS or section != _NEWER_SECTIONS[name].model_dump()
    }
    same = {(one.section, one.key): one.before for one in NEWER}
    return {
        name: {k: v for k, v in section.items() if (name, k) not in same or same[name, k] != v}
        if isinstance(section, dict)
        else section
        for name, section in changed.items()
    }


def with_newer(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the newer settings that it lacks: it does the same with them."""
    whole = {name: section.model_dump() for name, section in _NEWER_SECTIONS.items()} | dict(tree)
    for one in NEWER:
        if isinstance(section := whole.get(one.section), Mapping):
            whole[one.section] = {one.key: one.before, **section}
    return whole
