"""Makes the picture of docs/tuning.md: ``python tools/docs/make_tuning_picture.py SWEEP_FOLDER``.

It is the first figure that a paper has of the trials of a tuned sweep, on white.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elman.report.comparison.ink import LIGHT, figure_bytes
from elman.report.comparison.plots import page_pictures
from elman.report.comparison.report_data import make_report

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "tuning.svg"


def main(sweep: Path) -> None:
    """Write the picture of a sweep's trials over its first key."""
    (tuned,) = page_pictures(make_report([sweep])).tuned
    text = figure_bytes(tuned.plots[0].figure)["svg"].decode()
    back = f'<svg style="background:{LIGHT["back"]}" '
    PICTURE.write_text(text.replace("<svg ", back, 1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
