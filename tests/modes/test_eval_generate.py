"""Scoring and sampling a checkpoint, and ``elman.load``."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elman
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.evaluation.generation import Writer, generate
from elman.modes import eval as eval_mode
from elman.modes import generate as generate_mode
from elman.ops.decode.reference import draw
from elman.report.comparison.runs import read_run
from elman.runs.prepared import PreparedRun


def scored(output: str) -> float:
    row = next(line for line in output.splitlines() if "bits per byte" in line)
    return float(row.split("│")[1])


@pytest.mark.parametrize("optim", ["adamw", "schedulefree"])
def test_eval_of_a_run_reproduces_its_val_bpb(train, capsys, optim: str) -> None:
    run = train(f"optim={optim}")
    capsys.readouterr()
    config = compose_config(["mode=eval", f"eval.checkpoint={run.folder}"])
    assert eval_mode.run(PreparedRun(config)) == ExitStatus.OK
    said = capsys.readouterr().out
    assert scored(said) == pytest.approx(run.result["val_bpb"], abs=5e-5)
    assert "the run's held-out text in windows of" in said


def test_eval_of_a_file_counts_every_byte_once(train, tmp_path: Path, capsys) -> None:
    run = train()
    text = tmp_path / "other.txt"
    text.write_bytes(bytes(range(256)) * 3 + b"tail")
    overrides = ["mode=eval", f"eval.checkpoint={run.folder}", f"eval.path={text}"]
    eval_mode.run(PreparedRun(compose_config(overrides)))
    windows = capsys.readouterr().out
    assert "771" in windows
    eval_mode.run(PreparedRun(compose_config([*overrides, "eval.carry_state=true"])))
    carried = capsys.readouterr().out
    assert "771" in carried
    assert "state carried" in carried
    assert scored(carried) != scored(windows)


def test_carried_state_scores_a_text_as_one_long_forward_does(
    train, tmp_path: Path, capsys
) -> None:
    run = train()
    capsys.readouterr()  # what the run said
    text = b"def add(left, right): return left + right # " * 4
    (tmp_path / "text").write_bytes(text)
    overrides = ["mode=eval", f"eval.checkpoint={run.folder}", f"eval.path={tmp_path / 'text'}"]
    eval_mode.run(PreparedRun(compose_config([*overrides, "eval.carry_state=true"])))
    model = elman.load(run.folder)
    with torch.no_grad():
        loss, _ = model.loss(torch.tensor([list(text)]))
    whole = loss.item() / torch.log(torch.tensor(2.0)).item()
    assert scored(capsys.readouterr().out) == pytest.approx(whole, abs=1e-4)


def test_documents_are_scored_each_by_itself(train, tmp_path: Path, capsys) -> None:
    run = train()
    capsys.readouterr()  # what the run said
    documents = [b"def add(left, right): return left + right", b"x", b"# caf\xc3\xa9 " * 5]
    (tmp_path / "text").write_bytes(b"\x1e".join(documents))
    overrides = ["mode=eval", f"eval.checkpoint={run.folder}", f"eval.path={tmp_path / 'text'}"]
    eval_mode.run(PreparedRun(compose_config([*overrides, "eval.document_window=16"])))
    model, nats = elman.load(run.folder), 0.0
    with torch.no_grad():
        for one in documents:
            ids = torch.tensor([[0x1E, *one]])
            for done in range(0, len(one), 16):
                end = min(done + 16, len(one))
                start = max(0, end - 16)
                logits = model(ids[:, start:end])[0][0, done - start :].double()
                nats += float(
                    torch.nn.functional.cross_entropy(
                        logits, ids[0, done + 1 : end + 1], reduction="sum"
                    )
                )
    count = sum(map(len, documents))
    assert scored(capsys.readouterr().out) == pytest.approx(nats / count / math.log(2), abs=2e-6)


def test_settings_of_documents_and_of_one_text_do_not_go_together(train) -> None:
    for override in ("eval.max_bytes=5", "eval.carry_state=true"):
        overrides = ["mode=eval", "eval.checkpoint=x", "eval.path=x", "eval.document_window=5"]
        with pytest.raises(UserError, match=r"not read with eval\.document_window"):
            compose_config([*overrides, override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("eval.max_bytes=5", "read only with eval.path"),
        ("eval.document_window=5", "read only with eval.path"),
        ("eval.path=/nowhere/at/all", "eval.path=/nowhere/at/all"),
        ("eval.checkpoint=/nowhere", "no such folder"),
    ],
)
def test_wrong_settings_of_eval_are_named(train, override: str, message: str) -> None:
    run = train()
    overrides = ["mode=eval", f"eval.checkpoint={run.folder}", override]
    with pytest.raises(UserError, match=message):
        eval_mode.run(PreparedRun(compose_config(overrides)))


def test_more_probable_tokens_than_there_are_cannot_be_asked_for(train) -> None:
    run = train()
    overrides = ["mode=generate", f"generate.checkpoint={run.folder}", "generate.top_k=257"]
    with pytest.raises(UserError, match=r"generate\.top_k=257: the model has 256 tokens; use 256"):
        generate_mode.run(PreparedRun(compose_config(overrides)))


def test_generate_prints_the_prompt_and_streams_its_continuation(train, capsys) -> None:
    run = train("train.steps=60", "optim.lr=0.01")
    capsys.readouterr()  # what the run said
    overrides = ["mode=generate", f"generate.checkpoint={run.folder}", "generate.prompt='def a'"]
    config = compose_config([*overrides, "generate.max_bytes=40"])
    assert generate_mode.run(PreparedRun(config)) == ExitStatus.OK
    first = capsys.readouterr().out
    assert first.startswith("def a")
    generate_mode.run(PreparedRun(config))
    assert capsys.readouterr().out == first
    generate_mode.run(PreparedRun(compose_config([*overrides, "generate.seed=1"])))
    assert capsys.readouterr().out != first


def test_a_byte_costs_the_same_late_as_early(train) -> None:
    model = elman.load(train().folder)
    calls: list[int] = []
    forward = model.forward

    def counting(tokens_bt, states=None):
        calls.append(tokens_bt.shape[1])
        return forward(tokens_bt, states)

    model.forward = counting  # type: ignore[method-assign]
    assert len(list(generate(model, b"prompt", 30))) == 30
    assert calls == [5] + [1] * 30


def test_generation_equals_forward_over_the_whole_text(train) -> None:
    model = elman.load(train("model.use_conv=true", "train.steps=40", "optim.lr=0.01").folder)
    text = list(b"def ") + list(generate(model, b"def ", 25, temperature=0))
    with torch.no_grad():
        logits_btv, _ = model(torch.tensor([text]))
    assert logits_btv[0, 3:-1].argmax(-1).tolist() == text[4:]


def test_characters_of_several_bytes_come_out_whole(train, capsys, monkeypatch) -> None:
    run = train()
    capsys.readouterr()  # what the run said
    pieces = [[b"\xc3"], ["é→".encode()[1:3]], ["→\n".encode()[1:] + b"\xff"]]
    monkeypatch.setattr(Writer, "write", lambda self, count: iter(pieces))
    config = compose_config(["mode=generate", f"generate.checkpoint={run.folder}"])
    generate_mode.run(PreparedRun(config))
    assert capsys.readouterr().out == "é→\n\ufffd\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_bytes_that_command_a_terminal_do_not_reach_one(
    train, capsys, monkeypatch, terminal: bool
) -> None:
    run = train()
    capsys.readouterr()  # what the run said
    pieces = [[b"a\x1b["], [b"2J\x07\n"], ["\x9b".encode()]]
    monkeypatch.setattr(Writer, "write", lambda self, count: iter(pieces))
    config = compose_config(["mode=generate", f"generate.checkpoint={run.folder}"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    generate_mode.run(PreparedRun(config))
    shown = "a\u241b[2J\u2407\n\ufffd\n" if terminal else "a\x1b[2J\x07\n\x9b\n"
    assert capsys.readouterr().out == shown


class TestChoose:
    """The filters of sampling, on logits whose probabilities are known."""

    logits_v = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))

    def drawn(self, **settings: float) -> set[int]:
        numbers = torch.rand(300, generator=torch.Generator().manual_seed(0))
        given = {"temperature": 1.0} | settings
        how = given["temperature"], int(given.get("top_k", 0)), given.get("top_p", 1)
        return set(draw(self.logits_v.expand(300, -1), numbers, *how).tolist())

    def test_everything_can_be_drawn(self) -> None:
        assert self.drawn() == {0, 1, 2, 3}

    def test_temperature_zero_is_greedy(self) -> None:
        assert self.drawn(temperature=0) == {1}

    def test_top_k(self) -> None:
        assert self.drawn(top_k=2) == {1, 3}

    def test_top_p_keeps_the_byte_that_crosses_it(self) -> None:
        assert self.drawn(top_p=0.5) == {1, 3}
        assert self.drawn(top_p=0.01) == {1}


def test_load_gives_an_ordinary_module_in_evaluation_mode(train) -> None:
    run = train()
    model = elman.load(run.folder)
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert model.num_params() == run.result["params"]


def test_elman_imports_without_torch_and_unknown_names_fail() -> None:
    import subprocess
    import sys

    code = "import sys, elman; assert 'torch' not in sys.modules; print(elman.__version__)"
    assert subprocess.run([sys.executable, "-c", code], check=True).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = elman.nothing


def test_a_prompt_is_read_byte_for_byte_also_where_it_is_not_utf8(train, capsys) -> None:
    model = elman.load((run := train()).folder)
    capsys.readouterr()  # what the run said
    text = b"caf\xe9 "
    overrides = ["mode=generate", f"generate.checkpoint={run.folder}", "generate.max_bytes=20"]
    config = compose_config([*overrides, f"generate.prompt='{os.fsdecode(text)}'"])
    assert generate_mode.run(PreparedRun(config)) == ExitStatus.OK
    assert config.generate is not None
    settings = config.generate
    own = bytes(generate(model, text, 20, seed=settings.seed, top_k=settings.top_k))
    assert capsys.readouterr().out == (text + own).decode(errors="replace") + "\n"


def test_a_reader_that_goes_away_ends_the_text_without_a_word(train) -> None:
    run = train()
    command = [sys.executable, "-m", "elman", "mode=generate", f"generate.checkpoint={run.folder}"]
    process = subprocess.Popen(
        [*command, "generate.max_bytes=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(3)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == ExitStatus.FAILED
    assert said == b""


def test_a_run_in_a_folder_whose_path_is_not_utf8_is_an_ordinary_run(train, capsys) -> None:
    for stream in (sys.stdout, sys.stderr):  # as the command sets its own
        stream.reconfigure(errors="backslashreplace")
    text = Path("d\udce9.txt")
    run = train(folder=os.fsdecode(b"d\xe9"))
    assert run.status == ExitStatus.OK
    more = train("train.steps=8", f"train.resume='{run.folder}'", folder=run.folder.name)
    assert (more.status, more.result["steps"]) == (ExitStatus.OK, 8)
    (run.folder / text).write_bytes(b"some text to score")
    checkpoint = f"eval.checkpoint='{run.folder}'"
    path = f"eval.path='{run.folder / text}'"
    assert eval_mode.run(PreparedRun(compose_config(["mode=eval", checkpoint, path]))) == 0
    state = run.folder / "state"
    for setting in ("save_state", "state"):
        overrides = ["mode=generate", f"generate.checkpoint='{run.folder}'", "generate.max_bytes=2"]
        config = compose_config([*overrides, f"generate.{setting}='{state}'"])
        assert generate_mode.run(PreparedRun(config)) == ExitStatus.OK
    read = read_run(run.folder)
    assert (read.status, read.problems) == ("ok", ())
    assert read.config is not None
