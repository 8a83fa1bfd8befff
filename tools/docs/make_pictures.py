"""Makes the pictures of the default run, and every number that the pages have from it.

On a machine that does nothing else, type ``pip install pyte``, then
``python tools/docs/make_pictures.py``. It runs ``elman`` for its minute in a pseudo-terminal, whose
screen a terminal emulator draws. Where other work went on it writes nothing, unless told. From that
one run it writes:

- ``docs/pictures/first-run.svg``, the screen at the end, and ``first-run-loss.png``, its curve;
- ``docs/pictures/first-run.json``: when and where it ran, and its numbers;
- the line below the pictures in README.md, and the row of the default in docs/performance.md.

A test compares the picture with what a run of today prints.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    import pyte

COLUMNS, LINES = 112, 40
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
SCREEN, CURVE, NUMBERS = (PICTURES / f"first-run{end}" for end in (".svg", "-loss.png", ".json"))
# A home for the picture, instead of the folders of the machine that made it.
HOME = "/home/you"
BUSY = "--beside-other-work"
# Each number that a page has from the run stands in a line that one of these finds.
_CAPTION = re.compile(r"^\*One run of .*\*$", re.MULTILINE)
_ROW = re.compile(r"^\| the default, \d+ \w+ \d{4}.* \|.*\|$", re.MULTILINE)
# Width of a character in rich's SVG.
_WIDE = 12.2


def screen_text(screen: pyte.Screen, folder: str) -> Text:
    """Return the screen's content with its colors, without trailing blank lines."""
    lines = []
    for row in range(LINES):
        line = Text()
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            color = cell.fg if cell.fg.isalpha() and cell.fg != "default" else ""
            style = " ".join(part for part in ("bold" * cell.bold, color) if part)
            line.append(cell.data, style.replace("brown", "yellow"))
        line.rstrip()
        lines.append(_at_home(line, folder))
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def _at_home(line: Text, folder: str) -> Text:
    """Return a line that names no folder of this machine."""
    for place in (folder, str(Path.home())):
        if place in line.plain:
            line = Text(line.plain.replace(place, HOME))
    return line


def record(command: list[str], folder: str) -> Text:
    """Run ``command`` in a terminal and return its screen at the end."""
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=os.environ | size
    )
    os.close(slave)
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            stream.feed(os.read(master, 65536))
        except OSError:  # the terminal is gone with its last process
            break
    if process.wait():
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return screen_text(screen, folder)


def numbers_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the pages tell of a run, from its ``result.json``."""
    environment = result["environment"]
    names = ("device_name", "instructions", "threads", "revision")
    kept = ("ended", "backend", "steps", "tokens", "tok_s", "val_bpb", "contended")
    return {key: result[key] for key in kept} | {key: environment[key] for key in names}


def day(numbers: dict[str, Any]) -> str:
    """Return the date of the run, as in ``27 November 2026``."""
    ended = datetime.fromisoformat(numbers["ended"])
    return f"{ended.day} {ended:%B %Y}"


def beside(numbers: dict[str, Any]) -> str:
    """Return what a reader must know of the run's speed."""
    return ", beside other work" if numbers["contended"] else ""


def caption(numbers: dict[str, Any]) -> str:
    """Return the line of the front page below the pictures."""
    return (
        f"*One run of {day(numbers)}, {numbers['threads']} threads of an {numbers['device_name']} "
        f"({numbers['instructions']}){beside(numbers)}, backend {numbers['backend']}: "
        f"{numbers['steps']:,} steps, "
        f"val_bpb {numbers['val_bpb']:.3f}.*"
    )


def row(numbers: dict[str, Any]) -> str:
    """Return the row of the default in docs/performance.md."""
    return (
        f"| the default, {day(numbers)}{beside(numbers)} | {numbers['steps']:,} | "
        f"{numbers['tokens'] / 1e6:.2f} M | "
        f"{round(numbers['tok_s'], -2):,.0f} | {numbers['val_bpb']:.3f} |"
    )


PAGES = ((ROOT / "README.md", _CAPTION, caption), (ROOT / "docs/performance.md", _ROW, row))
"""Each page, the line of it that tells numbers of the run, and what writes that line."""


def picture_lines(svg: str) -> list[str]:
    """Return the text of a picture, line by line."""
    found: dict[int, list[str]] = {}
    for at, line, text in re.findall(
        r'<text class="[^"]*-r\d+" x="([\d.]+)"[^>]*-line-(\d+)\)">([^<]*)</text>', svg
    ):
        letters = found.setdefault(int(line), [])
        start = round(float(at) / _WIDE)
        letters.extend(" " * (start - len(letters)))
        letters[start:] = unescape(text).replace("\xa0", " ")
    return ["".join(found[line]).rstrip() for line in sorted(found)]


def save(screen: Text, run: Path) -> None:
    """Write the pictures, the numbers and the lines of the pages from one run."""
    numbers = numbers_of(json.loads((run / "result.json").read_text()))
    if numbers["contended"] and BUSY not in sys.argv:
        sys.exit(f"other work went on beside the run; stop it, or type {BUSY}: nothing was written")
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text("$ elman\n") + screen, soft_wrap=True)
    console.save_svg(str(SCREEN), title="elman")
    shutil.copy(run / "loss.png", CURVE)
    NUMBERS.write_text(json.dumps(numbers, indent=2) + "\n")
    for page, pattern, line in PAGES:
        page.write_text(pattern.sub(line(numbers).replace("\\", r"\\"), page.read_text()))


def main() -> None:
    """Record the default run; a shorter one before it builds and checks the kernels."""
    command = str(Path(sys.executable).parent / "elman")
    with tempfile.TemporaryDirectory(prefix="elman-") as folder:
        subprocess.run(
            [command, "train.steps=1", "hydra.run.dir=first"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        screen = record([command], folder)
        (result,) = Path(folder).glob("outputs/*/*/result.json")
        save(screen, result.parent)


if __name__ == "__main__":
    main()
