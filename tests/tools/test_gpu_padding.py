"""``padding`` as far as a machine without a GPU can run it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from elman.ops.common import padding
from elman.ops.linear import padded_factors

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of the CPU be padded."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(padding, "DEVICE", "cpu")


def rows_of(place: Path, *words: str) -> tuple[int, list[dict]]:
    run, job = (importlib.import_module(f"tools.gpu.{name}") for name in ("run", "job"))
    status = run.main(["padding", *words, "--device=cpu", f"--out={place}"])
    return status, job.read_rows(place / "padding.jsonl")[1:]


def test_products_agree_with_fp64_as_well_as_plain_ones(tmp_path: Path) -> None:
    status, rows = rows_of(tmp_path, "products")
    assert status == 0
    assert len(rows) == 5
    assert all(row["passed"] and 0 < row["errors"]["padded"] < 0.01 for row in rows)


def test_a_product_with_a_wrong_column_is_found(tmp_path: Path, monkeypatch) -> None:
    linear = importlib.import_module("elman.ops.linear")

    def shifted(x, weight):
        x, filled = padded_factors(x, weight)
        return x, filled.roll(1, 0)

    monkeypatch.setattr(linear, "padded_factors", shifted)
    status, rows = rows_of(tmp_path, "products")
    assert status == 1
    assert not any(row["passed"] for row in rows)


@pytest.mark.slow
def test_gradients_of_a_model_agree_with_fp64(tmp_path: Path) -> None:
    status, rows = rows_of(tmp_path, "gradients", "--only=kda")
    assert status == 0, rows
    (row,) = rows
    assert row["model"] == "kda"
    assert 0 < row["recomputed"] < 0.1
