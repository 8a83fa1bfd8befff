"""The optimizers are PyTorch's to the bit, and nothing of a run imports Dynamo."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import torch

from elman.training.optim.eager import AdamW
from tests.small_run import E1


def test_adamw_has_the_bits_of_pytorchs() -> None:
    weights = [[torch.ones(3, 4, requires_grad=True)] for _ in range(2)]
    ours, theirs = (
        kind(weight, 0.1, fused=True, weight_decay=0.3)
        for kind, weight in zip((AdamW, torch.optim.AdamW), weights, strict=True)
    )
    for step in range(3):
        gradient = torch.randn(3, 4)
        for optimizer, (weight,) in zip((ours, theirs), weights, strict=True):
            optimizer.zero_grad()
            assert weight.grad is None
            weight.grad = gradient.clone()
            optimizer.step()
            assert weight.requires_grad
        if step == 1:
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        assert str(ours.state_dict()) == str(theirs.state_dict())
        assert torch.equal(*(weight for (weight,) in weights))


def test_a_run_imports_no_compiler(tmp_path: Path, text_file: Path) -> None:
    """Dynamo and sympy take more than a second, before the first step of every run."""
    code = """
import sys
from pathlib import Path
from elman.cli.main import main

def run(*arguments):
    assert main(arguments) == 0
    print("imported", [name for name in ("torch._dynamo", "sympy") if name in sys.modules])

for name in ("schedulefree", "adamw", "muon", "legacy"):
    run(*sys.argv[1:], f"optim={name}", "train.steps=2")
    run(f"train.resume={max(Path().glob('outputs/*/*'))}", "train.steps=3")
"""
    command = [sys.executable, "-c", code, *E1, f"data.path={text_file}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("imported []\n") == ended.stdout.count("imported ") == 8
