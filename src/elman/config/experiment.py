"""Which settings make up an experiment: two runs that agree in all of them repeat each other."""

from __future__ import annotations

import json

from elman.config.run_config import RunConfig, flatten

WITHOUT_EFFECT = {
    "train": (
        "resume",
        "profile",
        "save_every",
        "save_minutes",
        "keep_checkpoints",
        "checkpoints",
        "max_step_hours",
    ),
}
"""Settings, by section, that save, log or show something, and change no number of a run."""
SECTIONS_WITHOUT_EFFECT = ("log", "baseline", "mode")


def same_run(config: RunConfig) -> str:
    """Return a text that is equal for two configurations whose runs would repeat each other.

    Seed, device and backend count: runs that differ in them are not the same run.
    """
    tree = {
        name: {k: v for k, v in section.items() if k not in WITHOUT_EFFECT.get(name, ())}
        for name, section in flatten(config).items()
        if name not in SECTIONS_WITHOUT_EFFECT and isinstance(section, dict)
    }
    return json.dumps(tree, sort_keys=True, default=str)
