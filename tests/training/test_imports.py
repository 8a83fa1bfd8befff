"""What a run imports: each of these takes a second, and only some runs need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elman.config.compose import compose_config
from elman.modes import train as mode
from tests.small_run import E1, TEXT

LATE = ("torch._dynamo", "sympy", "matplotlib", "torch.distributed.fsdp", "submitit")
CODE = f"""
import sys
from elman.cli.main import main
for optim in sys.argv[1].split():
    status = main(["optim=" + optim, *sys.argv[2:]])
    print("imported:", *(name for name in {LATE!r} if name in sys.modules))
    if status:
        sys.exit(status)
"""
# No kernel, whose proof at its first use imports more.
SMALL = (
    "kernels.backend=reference",
    *E1,
    *("train.steps=2", "data.path=text.txt", "log.tensorboard=false"),
)


def imported(place: Path, optimizers: str, *overrides: str) -> set[str]:
    """Return which of these modules a run with each optimizer has imported."""
    (place / "text.txt").write_bytes(TEXT)
    command = [sys.executable, "-c", CODE, optimizers, *SMALL, *overrides]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [one for one in done.stdout.splitlines() if one.startswith("imported:")]
    assert len(lines) == len(optimizers.split())
    return set(lines[-1].split()[1:])


def test_a_run_that_does_not_compile_leaves_out_what_compiles(tmp_path: Path) -> None:
    assert imported(tmp_path, "adamw muon schedulefree legacy") == set()


def test_a_run_imports_what_its_settings_need(tmp_path: Path) -> None:
    needed = imported(tmp_path, "adamw", "log.plot=true", "train.activation_checkpointing=true")
    assert needed >= {"torch._dynamo", "matplotlib"}


def test_operations_of_a_baseline_are_counted_without_what_compiles() -> None:
    code = (
        "import sys; from elman.config.compose import compose_config\n"
        "from elman.training.flops import flops_per_byte\n"
        "for name in ('llama', 'fla-gdn', 'kda', 'rwkv7', 'mamba3'):\n"
        "    config = compose_config(['model=' + name])\n"
        "    assert flops_per_byte(config.model, config.train) > 0\n"
        "    assert 'torch._dynamo' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_proof_is_made_without_what_compiles() -> None:
    code = (
        "import sys; from elman.config.compose import compose_config\n"
        "from elman.parity.experiment import Run\n"
        "from elman.parity.proof import prove_norms, prove_runs\n"
        "model = compose_config(['model=e88_tiny']).model\n"
        "runs = [Run('reference', 'cpu', 'fp32'), Run('reference', 'cpu', 'bf16')]\n"
        "assert prove_runs(model, runs, seed=1, quick=True).passed\n"
        "assert prove_norms(64, runs, seed=1, quick=True).passed\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'sympy'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_fails_ahead_of_a_run_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> float:
        raise RuntimeError("a cell's plain form fails on the meta device")

    monkeypatch.setattr(mode, "flops_per_byte", fails)
    mode.prepare_ahead(compose_config(["model=e1", "log.plot=false"]))
