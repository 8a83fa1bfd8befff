"""Every task that a command can see: the files of group ``data`` that name one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from elman.base.errors import UserError
from elman.base.yaml_file import parsed_yaml
from elman.config.catalog import SHIPPED, Place, group_files
from elman.config.validate import validate_data
from elman.sections.tasks import TaskConfig

GROUP = "data"


@dataclass(frozen=True)
class ListedTask:
    """One task's file.

    Args:
        name: Value of ``data=``.
        config: Its settings.
        length: Length of its training rows, or None if the file names none.
    """

    name: str
    config: TaskConfig
    length: int | None


def listed_tasks(places: Sequence[Place] = (SHIPPED,)) -> list[ListedTask]:
    """Return every task in some places, in alphabetical order.

    Args:
        places: The search path as Hydra has it: schemes and paths.

    Raises:
        UserError: a task's file is wrong.
    """
    found = []
    for name, file in sorted(group_files(GROUP, places).items()):
        try:
            content = parsed_yaml(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            raise UserError(f"{file}: not valid YAML; fix it") from None
        section = content.get(GROUP) if isinstance(content, Mapping) else None
        if isinstance(section, Mapping) and "task" in section:
            found.append(_listed(name, section, content.get("train")))
    return found


def _listed(name: str, section: Mapping[str, Any], train: Any) -> ListedTask:
    config = validate_data(section)
    assert isinstance(config, TaskConfig)
    length = train.get("chunk_size") if isinstance(train, Mapping) else None
    return ListedTask(name, config, length)
