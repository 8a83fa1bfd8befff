"""The table of variants keeps few of them, one for every size that was tuned."""

from __future__ import annotations

import json
from pathlib import Path

from tools.gpu import choices


def record(kernel: str, **ms: float) -> dict[str, object]:
    return {"kernel": kernel, "fastest": min(ms, key=ms.__getitem__), "key": "1", "ms": ms}


def test_a_variant_that_is_nearly_the_fastest_everywhere_stands_for_several(
    tmp_path: Path, monkeypatch
) -> None:
    table = tmp_path / "table" / "choices.json"
    table.parent.mkdir()
    table.write_text('{"sm_80": {"other": ["a"]}}')
    monkeypatch.setattr(choices, "TABLE", table)
    folder = tmp_path / "cache"
    folder.mkdir()
    records = [
        record("scan", a=1.0, b=1.01, c=2.0),
        record("scan", a=3.0, b=2.0, c=1.99),
        record("scan", a=9.0, b=9.0, c=4.0),
        record("gate", a=1.0, b=3.0),
    ]
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))
    (folder / "parity.json").write_text('{"checks": []}')
    choices.main("sm_90", str(folder))
    found = json.loads(table.read_text())
    assert found == {"sm_80": {"other": ["a"]}, "sm_90": {"gate": ["a"], "scan": ["a", "c"]}}
