"""The notebook of docs/ runs from top to bottom, and stands there without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-sweep.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
# Each plot is counted where a notebook would show it.
SHOWN = """
import matplotlib.pyplot
matplotlib.pyplot.show = lambda: print("lines:", len(matplotlib.pyplot.gca().lines))
"""


def test_the_cells_run_in_order(tmp_path: Path) -> None:
    script = tmp_path / "cells.py"
    script.write_text("\n".join([SHOWN, *CODE]), encoding="utf-8")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "TMPDIR": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "e1 ok " in ended.stdout
    assert "minlstm ok " in ended.stdout
    assert "tok_s [bytes/s]: predicted bytes per second" in ended.stdout
    assert "lines: 2" in ended.stdout
    assert Path(ended.stdout.splitlines()[-1]).exists()


def test_it_stands_there_without_outputs() -> None:
    assert all(
        not cell["outputs"] and not cell["execution_count"] for cell in CELLS if "outputs" in cell
    )
