"""The table names the fastest variant of each size that was tuned."""

from __future__ import annotations

import json
from pathlib import Path

from tools.gpu import choices


def record(kernel: str, size: str, **ms: float) -> dict[str, object]:
    fastest = min(ms, key=ms.__getitem__)
    return {"kernel": kernel, "size": size, "fastest": fastest, "key": "1", "ms": ms}


def test_each_size_has_the_variant_that_was_the_fastest_over_all_runs(
    tmp_path: Path, monkeypatch
) -> None:
    table = tmp_path / "table" / "choices.json"
    table.parent.mkdir()
    table.write_text('{"sm_80": {"other": {"K=1": "a"}}, "sm_90": {"scan": {"K=1": "a"}}}')
    monkeypatch.setattr(choices, "TABLE", table)
    folder = tmp_path / "cache"
    folder.mkdir()
    records = [
        record("scan", "K=64", a=1.0, b=1.01, c=2.0),
        record("scan", "K=64", a=3.0, b=2.0, c=1.99),
        record("scan", "K=128", a=9.0, b=9.0, c=4.0),
        record("gate", "K=64", a=1.0, b=float("inf")),
    ]
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))
    (folder / "parity.json").write_text('{"checks": []}')
    choices.main("sm_90", str(folder))
    assert json.loads(table.read_text()) == {
        "sm_80": {"other": {"K=1": "a"}},
        "sm_90": {"gate": {"K=64": "a"}, "scan": {"K=1": "a", "K=64": "b", "K=128": "c"}},
    }
