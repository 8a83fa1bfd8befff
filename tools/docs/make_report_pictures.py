"""Makes the pictures of a report: ``python tools/docs/make_report_pictures.py SWEEP_FOLDER``.

It needs Chromium, and for the printed page ``pdftoppm`` (apt-get install chromium poppler-utils).
The page names the sweep's folder as if it were in a user's home.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import make_report

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
HOME = "/home/you/elman"
# No window of a headless Chromium is narrower than 500 pixels, but a frame in it may be.
NARROW, NARROW_HIGH = 400, 1500
FRAME = """<!DOCTYPE html><html><body style="margin:0"><iframe src="page.html"
style="border:0;width:%dpx;height:%dpx"></iframe></body></html>"""
DARK = "--blink-settings=preferredColorScheme=0"
PAGES, DOTS_PER_INCH, GAP = 3, 72, 16


def browse(folder: Path, page: str, *arguments: str) -> None:
    """Open a page of a folder in a headless Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or "google-chrome"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", *arguments]
    subprocess.run([*command, (folder / page).as_uri()], check=True, capture_output=True)


def screenshot(folder: Path, name: str, page: str, size: tuple[int, int], *more: str) -> None:
    """Save what a window of some size shows as docs/pictures/report-``name``.png."""
    path = PICTURES / f"report-{name}.png"
    window = f"--window-size={max(size[0], 500)},{size[1]}"
    browse(folder, page, f"--screenshot={path}", window, *more)
    save([Image.open(path).crop((0, 0, *size))], path)


def printed(folder: Path) -> None:
    """Save the first printed pages, side by side."""
    paper = folder / "page.pdf"
    browse(folder, "page.html", f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    command = ["pdftoppm", "-png", "-r", str(DOTS_PER_INCH), "-l", str(PAGES), str(paper)]
    subprocess.run([*command, str(folder / "sheet")], check=True)
    sheets = [Image.open(path) for path in sorted(folder.glob("sheet*.png"))]
    save(sheets, PICTURES / "report-print.png")


def save(pictures: Sequence[Image.Image], path: Path) -> None:
    """Save pictures side by side, in 256 colors so that the file is small."""
    gaps = GAP * (len(pictures) - 1)
    size = (sum(one.width for one in pictures) + gaps, max(one.height for one in pictures))
    whole, left = Image.new("RGB", size, "#9aa1a8"), 0
    for one in pictures:
        whole.paste(one.convert("RGB"), (left, 0))
        left += one.width + GAP
    few = whole.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main(sweep: Path) -> None:
    """Take every picture of the report of a sweep."""
    text = page_text(make_report([sweep]))
    root = next(parent.parent for parent in sweep.parents if parent.name == "outputs")
    text = text.replace(str(root), HOME)
    with tempfile.TemporaryDirectory(prefix="elman-") as scratch:
        folder = Path(scratch)
        (folder / "page.html").write_text(text, encoding="utf-8", errors="replace")
        (folder / "frame.html").write_text(FRAME % (NARROW, NARROW_HIGH))
        screenshot(folder, "light", "page.html", (1200, 2150))
        screenshot(folder, "dark", "page.html", (1200, 2150), DARK)
        screenshot(folder, "narrow", "frame.html", (NARROW, NARROW_HIGH))
        printed(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
