"""Writes src/elman/kernels/triton_choices.json from what runs on a GPU have tuned.

Run every packaged baseline once on the kind of GPU, with an empty table, and then

    python tools/gpu/choices.py sm_90 "$ELMAN_CACHE"

It keeps of each kernel few variants: one of them is at most 2 % slower than the fastest at every
size that was tuned. Other architectures in the table stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from elman.kernels.triton_choices import TABLE

ALLOWED = 1.02
"""Times of the fastest within which a variant is as good."""


def good(record: dict[str, Any]) -> dict[str, float]:
    """Return the variants that are as good as the fastest at one size, with their milliseconds."""
    found = record["ms"].items()
    times = {name: ms[0] if isinstance(ms, list) else float(ms) for name, ms in found}
    least = min(times.values())
    return {name: ms / least for name, ms in times.items() if ms <= ALLOWED * least}


def few(sizes: Sequence[dict[str, float]]) -> list[str]:
    """Return few variants of which at least one is good at every size."""
    left, kept = list(sizes), []
    while left:
        # The one that is good at most sizes; of several, the fastest over them.
        names = {name for size in left for name in size}
        best = min(
            sorted(names),
            key=lambda name: (
                -sum(name in size for size in left),
                sum(size.get(name, ALLOWED) for size in left),
            ),
        )
        kept.append(best)
        left = [size for size in left if best not in size]
    return sorted(kept)


def table_of(records: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the kept variants by kernel."""
    sizes: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for record in records:
        if record["ms"]:
            sizes[record["kernel"]].append(good(record))
    return {kernel: few(found) for kernel, found in sorted(sizes.items())}


def main(architecture: str, *folders: str) -> None:
    """Read the records below folders and write the table."""
    places = [path for folder in folders for path in Path(folder).rglob("*.json")]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(places)]
    tuned = [record for record in records if isinstance(record, dict) and "fastest" in record]
    found = json.loads(TABLE.read_text(encoding="utf-8")) | {architecture: table_of(tuned)}
    TABLE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    kept = found[architecture]
    count = sum(map(len, kept.values()))
    print(f"{architecture}: {count} variants of {len(kept)} kernels from {len(tuned)} sizes")


if __name__ == "__main__":
    main(*sys.argv[1:])
