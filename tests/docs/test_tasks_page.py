"""docs/tasks.md: the sweep that it shows compares something."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

from elman.config.compose import compose_config
from elman.sections.budget import BUDGETS

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_the_models_of_the_example_are_trained_alike() -> None:
    """Rows of another batch or budget are compared with none."""
    (line,) = re.findall(r"^elman -m (data=.*)$", PAGE.read_text(), re.MULTILINE)
    keys, values = zip(*(text.split("=") for text in shlex.split(line)), strict=True)
    told: dict[str, set[tuple[object, ...]]] = {}
    models = set()
    for each in itertools.product(*(text.split(",") for text in values)):
        config = compose_config([f"{key}={one}" for key, one in zip(keys, each, strict=True)])
        train = config.train
        alike = (train.batch_size, train.grad_accum, train.chunk_size, str(config.optim))
        budget = tuple(getattr(train, key) for key in BUDGETS)
        told.setdefault(each[keys.index("data")], set()).add((*alike, *budget))
        models.add(config.model.name)
    assert len(models) > 1
    assert all(len(conditions) == 1 for conditions in told.values())
