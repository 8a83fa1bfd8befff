"""Small trained models, and the folders that ``mode=export`` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from tests.small_run import TEXT

SIZES = ("model.dim=128", "model.depth=2", "train.batch_size=4", "train.chunk_size=32")
QUIET = ("log.tensorboard=false", "log.plot=false", "data.val_sample=256", "data.val_window=64")


class Exported(NamedTuple):
    """A run, and the folder of its model."""

    run: Path
    folder: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Return ``exported(*settings)``: trains a model for five steps and exports it, each once."""
    made: dict[tuple[str, ...], Exported] = {}

    def export(*settings: str) -> Exported:
        if settings not in made:
            place = tmp_path_factory.mktemp("exported")
            (place / "text.txt").write_bytes(TEXT)
            data = (f"data.path={place / 'text.txt'}", "data.val_bytes=1024", "train.steps=5")
            run = place / "run"
            overrides = (*SIZES, *QUIET, *data, *settings, f"hydra.run.dir={run}")
            assert main(overrides) == ExitStatus.OK
            command = (f"export.checkpoint={run}", f"export.to={place / 'out'}")
            assert main(["mode=export", *command]) == ExitStatus.OK
            made[settings] = Exported(run, place / "out")
        return made[settings]

    return export
