"""The page about Python: every block runs, in the page's order, as in a notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
# A notebook's output streams have no file descriptor.
NOTEBOOK = """
import io, sys
class Stream(io.StringIO):
    def fileno(self):
        raise io.UnsupportedOperation("fileno")
screen, sys.stdout, sys.stderr = sys.stdout, Stream(), Stream()
"""
END = "\nprint(sys.stdout.getvalue(), file=screen)\n"


def test_the_blocks_of_the_page_run_in_order_as_in_a_notebook(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(NOTEBOOK + "\n".join(BLOCKS) + END, encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "147,968 parameters" in ended.stdout
    assert "ok" in ended.stdout
