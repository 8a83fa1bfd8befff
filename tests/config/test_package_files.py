"""A package brings its YAML files along: no flag names their folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "adding-a-cell.md").read_text(encoding="utf-8")
MODEL = """\
# A small E1 of another package.
defaults: [/cell/e1@_here_, _self_]
dim: 128
depth: 2
expected_params: null
"""


def installed(site: Path, entry: str) -> None:
    """Write what pip would install of a package ``leaky`` with an entry point."""
    information = site / "leaky_cell-0.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky-cell\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(f"[elman.conf]\n{entry}\n")
    for name in ("brought", "e1"):
        file = site / "leaky" / "conf" / "model" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MODEL)
    (site / "leaky" / "__init__.py").touch()


def elman(site: Path, *typed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "elman", *typed],
        cwd=site.parent,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder of packages with the one of the guide's section."""
    (entry,) = re.findall(r'^\[project\.entry-points\."elman\.conf"\]\n(.*)\n', GUIDE, re.M)
    installed(tmp_path / "site", entry.replace('"', ""))
    return tmp_path / "site"


def test_a_model_of_a_package_is_found_without_a_flag(site: Path) -> None:
    told = elman(site, "model=brought", "--cfg", "job")
    assert told.returncode == 0, told.stderr
    assert re.search(r"^  dim: 128$", told.stdout, re.M)
    listed = elman(site, "mode=models", "models.filter=brought")
    assert (listed.returncode, "brought" in listed.stdout) == (0, True), listed.stderr
    dry = elman(site, "-m", "model=brought,e1", "sweep.dry_run=true", "sweep.equal_size=false")
    assert dry.returncode == 0, dry.stderr
    assert "114,890,880" in dry.stdout  # elman's own e1, not the package's


def test_an_entry_point_that_names_no_folder_is_one_line(tmp_path: Path) -> None:
    installed(tmp_path / "site", "leaky = leaky.nowhere")
    told = elman(tmp_path / "site", "mode=models")
    assert told.returncode == 2
    assert told.stderr == (
        "elman: error: entry point elman.conf:leaky = leaky.nowhere: no folder in an installed "
        "package; fix or reinstall the package that declares it\n"
    )
