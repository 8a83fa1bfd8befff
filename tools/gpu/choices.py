"""Writes src/elman/kernels/triton_choices.json from what runs on a GPU have tuned.

Run every packaged baseline once on the kind of GPU, with an empty table, and then

    python tools/gpu/choices.py sm_90 "$ELMAN_CACHE"

It names for each kernel and size the variant that was the fastest there over all runs.
Other architectures, kernels and sizes in the table stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from elman.kernels.triton_choices import TABLE


def relative(record: dict[str, Any]) -> dict[str, float]:
    """Return the time of each variant as a multiple of the fastest one's."""
    found = record["ms"].items()
    times = {name: ms[0] if isinstance(ms, list) else float(ms) for name, ms in found}
    least = min(times.values())
    return {name: ms / least for name, ms in times.items()}


def table_of(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the fastest variant by kernel and size."""
    runs: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for record in records:
        if record["ms"] and "size" in record:
            runs[record["kernel"], record["size"]].append(relative(record))
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for (kernel, size), times in sorted(runs.items()):
        everywhere = set.intersection(*map(set, times)) or set(times[0])
        found[kernel][size] = min(
            sorted(everywhere), key=lambda name: fmean(one.get(name, 1.0) for one in times)
        )
    return dict(found)


def main(architecture: str, *folders: str) -> None:
    """Read the records below folders and write the table."""
    places = [path for folder in folders for path in Path(folder).rglob("*.json")]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(places)]
    tuned = [record for record in records if isinstance(record, dict) and "fastest" in record]
    found = json.loads(TABLE.read_text(encoding="utf-8"))
    kernels = found.setdefault(architecture, {})
    for kernel, sizes in table_of(tuned).items():
        kernels[kernel] = kernels.get(kernel, {}) | sizes
    TABLE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    count = sum(map(len, kernels.values()))
    print(f"{architecture}: {count} sizes of {len(kernels)} kernels; read {len(tuned)} records")


if __name__ == "__main__":
    main(*sys.argv[1:])
