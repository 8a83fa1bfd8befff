"""Every folder of Python files is a package of the wheel: an installed elman lacks none of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_with_code_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(settings["tool"]["setuptools"]["packages"])
    source = ROOT / "src"
    folders = {file.parent.relative_to(source) for file in source.glob("*/**/*.py")}
    assert {".".join(folder.parts) for folder in folders} <= packages
