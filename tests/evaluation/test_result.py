"""``result.json`` as a type: a run writes what is declared; what older runs lack has a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from elman.base.exit_status import ExitStatus, RunStatus
from elman.cli.main import main
from elman.evaluation.result import DEFINITIONS, RunResult


def parts(model: BaseModel, name: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield a result and its parts with their dotted names."""
    yield name, model
    for key in type(model).model_fields:
        if isinstance(part := getattr(model, key), BaseModel):
            yield from parts(part, f"{name}.{key}")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data=parity", "train.until_accuracy=0.01", "train.steps=4", "data.lengths=[8]"),
        ("optim=muon", "data.reset_at_documents=true"),
        ("model.dim=65536", "train.batch_size=4096"),
    ],
    ids=["text", "task", "muon", "oom"],
)
def test_a_run_writes_only_fields_that_are_declared(train, overrides: tuple[str, ...]) -> None:
    written = train(*overrides).result
    result = RunResult.model_validate(written)
    assert {name: part.model_extra for name, part in parts(result) if part.model_extra} == {}
    assert list(result.tree()) == list(written)
    assert written["definitions"] == DEFINITIONS


def test_a_command_prints_what_every_field_means(capsys) -> None:
    assert main(["mode=report", "report.result_schema=true"]) == ExitStatus.OK
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["status"]
    speed = schema["properties"]["tok_s"]
    assert (speed["description"], speed["unit"]) == (DEFINITIONS["tok_s"], "bytes/s")


def test_every_field_says_what_it_is() -> None:
    schema = RunResult.model_json_schema()
    objects = {"": schema} | schema["$defs"]
    silent = [
        f"{name}.{key}"
        for name, one in objects.items()
        for key, field in one.get("properties", {}).items()
        if not field.get("description")
    ]
    assert silent == []


def test_an_older_result_has_the_values_of_what_it_lacks() -> None:
    result = RunResult.model_validate({"status": "ok"})
    assert (result.status, result.steps, result.budget) == (RunStatus.OK, None, {})
    assert (result.parallel.ranks, result.data.reset_at_documents) == (1, False)
    assert result.tree() == {"status": "ok"}


def test_a_field_of_a_newer_version_stays_as_it_is() -> None:
    newer: dict[str, Any] = {"status": "ok", "later": {"a": [1]}, "seconds": {"train": 1.5, "b": 2}}
    assert RunResult.model_validate(newer).tree() == newer


def test_a_number_that_json_does_not_have_counts_as_missing() -> None:
    result = RunResult.model_validate(json.loads('{"status": "nan", "loss": NaN, "steps": 3}'))
    assert (result.loss, result.steps) == (None, 3)


def test_only_what_is_set_is_written_and_a_set_value_keeps_its_type() -> None:
    result = RunResult(status=RunStatus.OK, error=None)
    result.budget = {"steps": {"limit": 4, "spent": 4}}
    result.peak_memory_bytes = 5
    text = json.dumps(result.tree())
    assert text == (
        '{"status": "ok", "error": null, "budget": {"steps": {"limit": 4, "spent": 4}}, '
        '"peak_memory_bytes": 5}'
    )
