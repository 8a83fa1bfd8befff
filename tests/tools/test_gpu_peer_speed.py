"""How gpu_peer_speed.py keeps a model that fails from touching another, without a GPU."""

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

FOLDER = Path(__file__).parents[2] / "tools" / "gpu"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_peer_speed")


def row(name: str, *ways: str) -> dict[str, Any]:
    """Return a model's results in the group of a baseline."""
    return {"params": 7, "beside": {name: {way: {"tok_s": 1000.0} for way in ways}}}


def test_a_model_that_cannot_be_captured_is_left_out_of_the_next_process(tool, capsys) -> None:
    asked: list[list[str]] = []

    def run(path: Path, eager_only: Sequence[str]) -> int:
        assert not path.exists(), "an earlier process wrote this"
        asked.append(list(eager_only))
        models = {tool.OURS: row("lstm", "eager", "graph"), "lstm": row("lstm", "eager")}
        spoilt = {} if eager_only else {"spoilt": ["lstm", "RuntimeError: no graph of cuDNN"]}
        path.write_text(json.dumps({"models": models} | spoilt))
        return tool.SPOILT if spoilt else 0

    results: dict[str, Any] = {tool.OURS: row("llama", "eager", "graph")}
    tool.add("lstm", results, *tool.in_processes("lstm", run))
    assert asked == [[], ["lstm"]]
    assert set(results[tool.OURS]["beside"]) == {"llama", "lstm"}
    assert results["lstm"]["beside"]["lstm"]["eager"] == {"tok_s": 1000.0}
    tool.show(results)
    said = capsys.readouterr().out
    assert said.startswith("lstm: cannot be captured (RuntimeError: no graph of cuDNN); lstm again")
    assert "| lstm | 7 | 1K | - | not captured: RuntimeError: no graph of cuDNN |" in said


def test_a_process_that_dies_is_an_error_of_its_baseline_alone(tool, capsys) -> None:
    results: dict[str, Any] = {tool.OURS: row("llama", "eager"), "llama": row("llama", "eager")}
    tool.add("gru", results, *tool.in_processes("gru", lambda path, eager_only: -11))
    assert results["gru"] == {"error": "its process ended with status -11"}
    assert "error" not in results["llama"]
    tool.show(results)
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
