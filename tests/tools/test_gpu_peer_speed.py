"""How ``peer_speed`` keeps a model that fails from touching another, without a GPU."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from elman.config.compose import compose_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("tools.gpu.peer_speed")


def rows(label: str, *ways: str) -> list[dict[str, Any]]:
    """Return a model's results."""
    return [{"model": label, "params": 7, "way": way, "tok_s": 1000.0} for way in ways]


def written(folder: Path, found: list[dict[str, Any]]) -> None:
    path = folder / "peer_speed.jsonl"
    assert not path.exists(), "an earlier process wrote this"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"part": "machine"}, *found]))


def test_a_model_that_cannot_be_captured_is_left_out_of_the_next_process(tool, capsys) -> None:
    asked: list[list[str]] = []

    def run(folder: Path, eager_only: Sequence[str]) -> int:
        asked.append(list(eager_only))
        found = [*rows("lstm", "eager"), *rows(tool.OURS, "eager", "graph")]
        spoilt = [{"model": "lstm", "spoilt": "RuntimeError: no graph of cuDNN"}]
        written(folder, found + ([] if eager_only else spoilt))
        return 0

    found = tool.in_processes("lstm", run)
    assert asked == [[], ["lstm"]]
    assert [row["model"] for row in found] == ["lstm", tool.OURS, tool.OURS, "lstm"]
    tool.show([{"baseline": "lstm"} | row for row in found])
    said = capsys.readouterr().out
    assert said.startswith("lstm: cannot be captured (RuntimeError: no graph of cuDNN); lstm again")
    assert "| lstm | 7 | 1K | - | not captured: RuntimeError: no graph of cuDNN |" in said
    assert f"| {tool.OURS} | 7 | 1K | 1K | 1.00x |" in said


def test_a_process_that_dies_is_an_error_of_its_baseline_alone(tool, capsys) -> None:
    found = tool.in_processes("gru", lambda folder, eager_only: -11)
    assert found == [{"model": "gru", "error": "its process ended with status -11"}]
    tool.show([{"baseline": "gru"} | row for row in found])
    assert "| gru | | its process ended with status -11 | | |" in capsys.readouterr().out


def test_the_first_error_of_a_chain_is_the_reason(tool) -> None:
    error = RuntimeError("the capture ended")
    error.__context__ = ValueError("the cause\nand a trace")
    assert tool.first_cause(error) == "ValueError: the cause"


def test_every_packaged_peer_stands_beside_its_package(tool) -> None:
    device = torch.device("cpu")
    for name in tool.BASELINES:
        config = compose_config([f"model={name}"]).model  # exists, and of the size that is timed
        ways = tool.ways(name, device)
        assert len(ways) == (1 if name in tool.WITHOUT else 2 + ("transformers" in str(ways)))
        if name in tool.PACKAGE_ROWS:
            row = tool.PACKAGED[tool.PACKAGE_ROWS[name]]
            assert (row.dim, row.depth) == (config.dim, config.depth)
            for option, value in row.options.items():
                assert config.options[option] == value
