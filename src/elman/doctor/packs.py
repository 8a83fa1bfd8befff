"""Whether the packed texts in the cache still have the bytes that were packed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from elman.base.units import size_text
from elman.data.pack_check import checked_packs
from elman.doctor.findings import Finding, Mark

_AREA = "packed data"


def packed_data(reading: Callable[[Path], None]) -> list[Finding]:
    """Read every pack whole; return a line for all that are whole, and one for each damaged one.

    Args:
        reading: Called with the folder of each pack before it is read.
    """
    packs = list(checked_packs(reading))
    whole = [pack for pack in packs if not pack.problem]
    found = []
    if whole:
        number = "1 pack" if len(whole) == 1 else f"{len(whole)} packs"
        size = size_text(sum(pack.bytes for pack in whole))
        found.append(Finding(_AREA, "whole", Mark.OK, f"{size} in {number}, all read"))
    for pack in packs:
        if pack.problem:
            said = f"{pack.folder}: {pack.problem}; a run packs it again once it is removed"
            mend = f"rm -r {shlex.quote(str(pack.folder))}"
            found.append(Finding(_AREA, "damaged", Mark.BROKEN, said, mend))
    return found
