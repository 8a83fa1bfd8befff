"""What newcomers type who know other programs: one line each, with what to type here."""

from __future__ import annotations

import shlex

import pytest

from elman.cli.main import main
from elman.config.suggestions import choice_named, choices

MEANT = {
    "help": "type elman --help",
    "version": "type elman --version",
    "-V": "did you mean --version?",
    "-v": "did you mean --version?",
    "list": "type elman mode=models",
    "--list-models": "did you mean mode=models?",
    "run": "drop it: elman trains",
    "train": "did you mean mode=train?",
    "train model=e1": "did you mean mode=train?",
    "test": "did you mean mode=eval?",
    "models": "did you mean mode=models?",
    "eval outputs/x": "did you mean mode=eval eval.checkpoint=outputs/x?",
    "sample outputs/x": "did you mean mode=generate generate.checkpoint=outputs/x?",
    "report outputs/x": "did you mean mode=report report.dir=outputs/x?",
    "sweep model=e1,e42": "type elman -m model=e1,e42",
    "--sweep model=e1,e42": "did you mean -m?",
    "model e1": "did you mean model=e1?",
    "model": "type model=<name>; `elman mode=models` lists them",
    "benchmark e75_100m": "did you mean benchmark=e75_100m?",
    "e1": "did you mean model=e1?",
    "E75h4n32": "did you mean model=e75h4n32?",
    "e75_100m": "did you mean benchmark=e75_100m?",
    "parity": "did you mean mode=parity?",
    "s5": "did you mean data=s5?",
    "foo.txt": "did you mean data.path=foo.txt?",
    "config.yaml": "--config-dir DIR",
    "--model e1": "did you mean model=e1?",
    "--model=gpt2": "did you mean model=llama?",
    "--level E75h4n32": "did you mean model=e75h4n32?",
    "level=E75h4n32": "did you mean model=e75h4n32?",
    "--arch transformer": "did you mean model=llama?",
    "--optimizer adam": "did you mean optim=adamw?",
    "optimizer=adam": "did you mean optim=adamw?",
    "train.optimizer=adam": "did you mean optim=adamw?",
    "--data foo.txt": "did you mean data.path=foo.txt?",
    "--data s3": "did you mean data=s3?",
    "data=foo.txt": "did you mean data.path=foo.txt?",
    "data=wikitext": "data.path=<file> names text",
    "--mode test": "did you mean mode=eval?",
    "mode=test": "did you mean mode=eval?",
    "mode=sample": "did you mean mode=generate?",
    "mode=compare": "did you mean mode=report?",
    "model=E88_h8n32": "did you mean model=e88e_h8_75m?",
    "model=E88_h16n32_gate": "did you mean model=e88b_nonorm?",
    "model=mamba-2": "did you mean model=mamba2?",
    "model=gated_deltanet": "did you mean model=fla-gdn?",
    "model=GatedDeltaNet": "did you mean model=fla-gdn?",
    "model=transformer": "did you mean model=llama?",
    "model=e75_100m": "did you mean benchmark=e75_100m?",
    "--json": "every run writes result.json",
    "--config foo.yaml": "--config-dir DIR",
    "--cpu": "did you mean train.device=cpu?",
    "--gpu": "did you mean train.device=cuda?",
    "--lr 3e-4": "did you mean optim.lr=3e-4?",
    "-lr 3e-4": "did you mean optim.lr=3e-4?",
    "lr=3e-4": "did you mean optim.lr=3e-4?",
    "train.lr=3e-4": "did you mean optim.lr=3e-4?",
    "steps=100": "did you mean train.steps=100?",
    "--max_steps 100": "did you mean train.steps=100?",
    "seed=3": "did you mean train.seed=3?",
    "--epochs 3": "did you mean train.minutes=...?",
    "time=10": "did you mean train.minutes=...?",
    "gpus=2": "did you mean launcher.gpus_per_job=2?",
    "--gpus 2": "did you mean launcher.gpus_per_job=2?",
    "gpus=[0,1]": "did you mean launcher.gpus=[0,1]?",
    "nproc_per_node=2": "did you mean launcher.gpus_per_job=2?",
    "fp16=true": "did you mean train.precision=...?",
    "--compile": "did you mean train.compile=true?",
    "--dry-run": "did you mean sweep.dry_run=true?",
    "--output_dir x": "did you mean hydra.run.dir=x?",
    "name=x": "did you mean hydra.run.dir=x?",
    "--checkpoint x": "did you mean mode=eval eval.checkpoint=x?",
    "prompt=hello": "did you mean mode=generate generate.prompt=hello?",
    "params=100M": "did you mean mode=solve solve.params=100M?",
    "--verbose": "train.log",
    "--help-all": "did you mean --help?",
}


@pytest.mark.parametrize("typed", MEANT)
def test_a_habit_is_answered_in_one_line(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(typed)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"elman: error: {shlex.split(typed)[0].partition('=')[0]}")
    assert MEANT[typed] in said.err


def test_a_flag_unlike_any_other_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--frobnicate"])
    assert capsys.readouterr().err.endswith("unknown flag; `elman --help` lists the flags\n")


def test_a_label_leads_to_a_model_only_as_a_whole() -> None:
    known = choices("model")
    assert choice_named("model", "E88_h8n32", known) == "e88e_h8_75m"
    assert choice_named("model", "E88_h8n3", known) is None
    assert (
        choice_named("model", "E88_h8n32", ["e1"]) is None
    )  # a model that this command does not see
