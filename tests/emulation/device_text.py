"""csrc/cuda/common/device.cuh and cluster.cuh as a text that a C++ compiler of the host takes.

Its inline assembly becomes calls of csrc/emulation/ptx.h, which runs it; nothing else changes but
the declaration of shared memory.
"""

from __future__ import annotations

import re
from pathlib import Path

from elman.kernels.sources import source_folder

_ASM = re.compile(r"\basm(?: volatile)?\s*\(")
_SHARED = re.compile(r"extern __shared__ __align__\(16\) unsigned char shared_memory\[\];")
_OPERAND = re.compile(r'"([=+]?)[a-z]"\s*\(')
_METHODS = {"=": "out", "+": "both", "": "in"}


def source(file: str = "device") -> str:
    """Return the text of a header of cuda/common as it is."""
    return (source_folder() / f"cuda/common/{file}.cuh").read_text()


def translated(text: str) -> str:
    """Return a text of device.cuh, of cluster.cuh or of both for the host."""
    made, count = _SHARED.subn("#define shared_memory (elman::emulation::shared.data())", text)
    assert count == ("__shared__" in text), "the declaration of shared memory is another one"
    pieces, at = [], 0
    for match in _ASM.finditer(made):
        end = _closing(made, match.end() - 1)
        pieces += [made[at : match.start()], _call(made[match.end() : end])]
        at = end + 1
    pieces.append(made[at:])
    return "".join(pieces)


def translate_in(root: Path) -> None:
    """Translate the headers of cuda/common within a copy of csrc."""
    for file in ("device", "cluster"):
        path = root / f"cuda/common/{file}.cuh"
        path.write_text(translated(path.read_text()))


def _call(statement: str) -> str:
    """Return the call that stands for what is between the parentheses of an asm statement."""
    text, outputs, inputs, *_ = [*_split(statement), "", "", ""]
    calls = [f"elman::emulation::Assembly({text.strip()})"]
    for part in (outputs, inputs):
        for match in _OPERAND.finditer(part):
            value = part[match.end() : _closing(part, match.end() - 1)]
            calls.append(f".{_METHODS[match[1]]}({value})")
    return "".join([*calls, ".run()"])


def _split(statement: str) -> list[str]:
    """Split a statement at its colons, but for those in strings and parentheses."""
    parts, depth, quoted = [""], 0, False
    for place, sign in enumerate(statement):
        quoted ^= sign == '"' and statement[place - 1 : place] != "\\"
        if not quoted:
            depth += (sign == "(") - (sign == ")")
            if sign == ":" and depth == 0:
                parts.append("")
                continue
        parts[-1] += sign
    return parts


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis that opens at a place is closed."""
    depth, quoted = 0, False
    for place in range(opening, len(text)):
        quoted ^= text[place] == '"'
        if not quoted:
            depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise AssertionError(text[opening : opening + 80])
