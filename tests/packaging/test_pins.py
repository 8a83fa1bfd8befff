"""Checks run with the pinned tools, by whatever door, and users' bounds stay open."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = [Requirement(line).name for line in PROJECT["optional-dependencies"]["dev"]]
PINNED = (ROOT / "constraints-dev.txt").read_text()
PINS = dict(re.findall(r"^(\S+)==(\S+)(?: ;.*)?$", PINNED, re.MULTILINE))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


@pytest.mark.required
@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_is_pinned_and_is_what_runs(tool: str) -> None:
    assert tool in PINS, "run make pins"
    found = next((one.version for one in distributions(name=tool)), "missing")
    if found != PINS[tool]:
        pytest.skip(f"{tool} is {found}, not {PINS[tool]}; make test installs the pinned ones")


def test_hooks_run_the_pinned_tools_of_the_environment() -> None:
    """No hook has a version of its own: each runs what ``make test`` has installed."""
    assert [source["repo"] for source in HOOKS] == ["local"]
    for hook in HOOKS[0]["hooks"]:
        tool = re.match(r"\.venv/bin/(\S+)", hook["entry"])
        assert tool, hook["entry"]
        assert tool[1] in TOOLS
        assert hook["language"] == "system"
        assert "additional_dependencies" not in hook


def test_users_are_not_held_to_the_developers_versions() -> None:
    for line in PROJECT["dependencies"]:
        assert "==" not in str(Requirement(line).specifier)
    pinned = re.findall(r"^[^#\s]\S*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [Requirement(line).name for line in pinned] == ["torch"]
