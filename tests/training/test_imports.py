"""What a run imports: each of these takes a second, and only some runs need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_run import TEXT

LATE = ("torch._dynamo", "sympy", "matplotlib", "torch.distributed.fsdp")
CODE = f"""
import sys
from elman.cli.main import main
status = main(sys.argv[1:])
print("imported:", *(name for name in {LATE!r} if name in sys.modules))
sys.exit(status)
"""
SMALL = (
    *("model.dim=128", "model.depth=1", "model.n_heads=2", "model.n_state=8"),
    *("train.batch_size=2", "train.chunk_size=16", "data.val_sample=64", "data.val_window=16"),
    *("train.steps=2", "data.path=text.txt", "hydra.run.dir=run", "log.tensorboard=false"),
)


def imported(place: Path, *overrides: str) -> set[str]:
    """Return which of these modules a run has imported."""
    (place / "text.txt").write_bytes(TEXT)
    command = [sys.executable, "-c", CODE, *SMALL, *overrides]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("imported:")]
    return set(line.split()[1:])


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_a_run_that_does_not_compile_leaves_out_what_compiles(tmp_path: Path, optim: str) -> None:
    assert imported(tmp_path, f"optim={optim}", "log.plot=false") == set()


def test_a_run_imports_what_its_settings_need(tmp_path: Path) -> None:
    needed = imported(tmp_path, "train.activation_checkpointing=true")
    assert needed >= {"torch._dynamo", "matplotlib"}
