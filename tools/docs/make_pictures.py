"""Makes the pictures of the README from a real run: `pip install pyte`, then run this script.

It runs ``elman`` in its own pseudo-terminal, and a terminal emulator draws the output. It saves one
SVG with the screen during the run and at the end, and the run's loss curve unchanged.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 112, 34
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MID_RUN_SECONDS = 40.0


def screen_text(screen: pyte.Screen) -> Text:
    """Return the screen's content with its colours, without trailing blank lines."""
    lines = []
    for row in range(LINES):
        line = Text()
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            style = " ".join(
                part
                for part in (
                    "bold" if cell.bold else "",
                    cell.fg if cell.fg not in ("default", "") and cell.fg.isalpha() else "",
                )
                if part
            )
            line.append(cell.data, style.replace("brown", "yellow"))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def record(command: list[str], folder: str) -> tuple[Text, Text]:
    """Run ``command`` in a terminal and return its screen in mid-run and at the end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    environment = os.environ | {
        "COLUMNS": str(COLUMNS),
        "LINES": str(LINES),
        "TERM": "xterm-256color",
    }
    process = subprocess.Popen(
        command, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    began, middle = time.monotonic(), Text()
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            stream.feed(os.read(master, 65536))
        except OSError:  # the terminal is gone with its last process
            break
        if not middle and time.monotonic() - began > MID_RUN_SECONDS:
            middle = screen_text(screen)
    if process.wait():
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return middle, screen_text(screen)


def main() -> None:
    """Record the default run."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="elman-") as folder:
        middle, end = record([str(Path(sys.executable).parent / "elman")], folder)
        for name, text in (("first-run-progress", middle), ("first-run", end)):
            with open(os.devnull, "w") as nowhere:
                console = Console(record=True, width=COLUMNS, file=nowhere)
                console.print(Text("$ elman\n") + text, soft_wrap=True)
            console.save_svg(str(PICTURES / f"{name}.svg"), title="elman")
        curve = next(Path(folder).glob("outputs/*/*/loss.png"))
        shutil.copy(curve, PICTURES / "first-run-loss.png")


if __name__ == "__main__":
    main()
