"""Text from a model: alone, together, replayed, and in two parts, it is the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.evaluation.generation import Writer
from elman.evaluation.sampling import Sampling
from elman.evaluation.text_state import load_text_state, save_text_state
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.modes import generate as generate_mode
from elman.ops.decode.reference import draw
from elman.runs.prepared import PreparedRun
from tests.training.tapes import Tapes

MODELS = ["e88_tiny", "e1", "e75h4n16", "e23", "lstm", "mingru", "mamba2", "fla-gdn"]
GROWING = "llama"
SHARP = Sampling(temperature=1.5, top_k=50)


def model_of(name: str) -> LanguageModel:
    torch.manual_seed(5)
    config = compose_config([f"model={name}", "model.dim=128", "model.depth=2"]).model
    model = build_model(config, backend="auto", device="cpu").eval()
    with torch.no_grad():
        model.embedding.mul_(1.5)
    return model


def written(writer: Writer, count: int) -> list[bytes]:
    pieces = list(writer.write(count))
    return [b"".join(parts) for parts in zip(*pieces, strict=True)]


def alone(model: LanguageModel, prompt: bytes, count: int, seed: int) -> bytes:
    writer = Writer(model, SHARP, seed=seed)
    writer.read([prompt])
    return written(writer, count)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_replayed_step_writes_the_same_text(name: str) -> None:
    model = model_of(name)
    texts, states = [], []
    for graph in (False, True):
        writer = Writer(model, SHARP, graph=graph, graphs=Tapes(torch.device("cpu")))
        writer.read([b"def f(", b"class "])
        texts.append(written(writer, 140))
        states.append(writer.state()[0])
        assert writer.replayed == graph
    assert texts[0] == texts[1]
    assert len(set(texts[0][0])) > 10
    torch.testing.assert_close(states[0], states[1])


def test_a_step_without_a_graph_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of(GROWING)
    asked = Writer(model, SHARP, graph=True, graphs=Tapes(torch.device("cpu")))
    asked.read([b"abc"])
    with pytest.raises(UserError, match=r"generate\.graph=true: the state of this model grows"):
        list(asked.write(5))
    left = Writer(model, SHARP, graph=None, graphs=Tapes(torch.device("cpu")))
    left.read([b"abc"])
    assert len(written(left, 5)[0]) == 5
    assert not left.replayed


def test_a_step_that_cannot_be_recorded_names_the_setting() -> None:
    model = model_of("e1")
    forward = model.forward

    def looking(tokens_bt, states=None):
        logits_btv, states = forward(tokens_bt, states)
        assert float(logits_btv.sum()) < 1e9
        return logits_btv, states

    model.forward = looking  # type: ignore[method-assign]
    writer = Writer(model, SHARP, graph=True, graphs=Tapes(torch.device("cpu")))
    writer.read([b"abc"])
    with pytest.raises(UserError, match=r"cannot be captured .*; use generate.graph=false"):
        list(writer.write(5))


@pytest.mark.parametrize("prompts", [[b"def f(", b"class "], [b"a", b"import os", b"cl"]])
def test_texts_written_together_are_those_written_alone(prompts: list[bytes]) -> None:
    model = model_of("e88_tiny")
    writer = Writer(model, SHARP, seed=7)
    writer.read(prompts)
    found = written(writer, 40)
    assert found == [alone(model, prompt, 40, 7 + row) for row, prompt in enumerate(prompts)]


@pytest.mark.parametrize("name", ["e23", GROWING])
def test_a_prompt_beside_others_starts_as_it_does_alone(name: str) -> None:
    """A prompt of one byte has no state when it is written on: e23 starts from its own tape."""
    model, prompts = model_of(name), [b"d", b"def", b"d", b"cla"]
    whole = Writer(model, SHARP, seed=7)
    whole.read(prompts)
    found = written(whole, 70)
    assert found == [alone(model, prompt, 70, 7 + row) for row, prompt in enumerate(prompts)]
    assert len(set(found)) == 4


def test_texts_of_different_lengths_go_on_behind_a_saved_state(tmp_path: Path) -> None:
    model, prompts = model_of(GROWING), [b"d", b"def", b"de"]
    first = Writer(model, SHARP, seed=3)
    first.read(prompts)
    begun = written(first, 5)
    save_text_state(tmp_path / "state", first, "m")
    second = Writer(model, SHARP, seed=3)
    assert load_text_state(tmp_path / "state", second, "m") == 3
    second.read([b"!", b"!", b"!"])
    texts = [p + b + b"!" for p, b in zip(prompts, begun, strict=True)]
    wanted = [alone_behind(model, text, 6, 3 + row, drawn=5) for row, text in enumerate(texts)]
    assert written(second, 6) == wanted


def alone_behind(model: LanguageModel, text: bytes, count: int, seed: int, drawn: int) -> bytes:
    """Write on behind a text whose last bytes took ``drawn`` draws."""
    writer = Writer(model, SHARP, seed=seed)
    writer.read([text])
    writer.continue_from(*writer.state()[:2], drawn)
    return written(writer, count)[0]


def test_wrong_prompts_are_refused() -> None:
    writer = Writer(model_of(GROWING), SHARP)
    for wrong in ([], [b"a", b""]):
        with pytest.raises(ValueError, match="prompts: expected at least one"):
            writer.read(wrong)


@pytest.mark.parametrize("name", ["e88_tiny", "mamba2", GROWING])
def test_a_text_in_two_parts_is_the_text_at_once(name: str, tmp_path: Path) -> None:
    model, file = model_of(name), tmp_path / "state"
    first = Writer(model, SHARP, seed=3)
    first.read([b"def f("])
    begun = written(first, 20)[0]
    save_text_state(file, first, "run, step 3")
    second = Writer(model, SHARP, seed=3)
    assert load_text_state(file, second, "run, step 3") == 1
    assert begun + written(second, 30)[0] == alone(model, b"def f(", 50, 3)
    assert list(tmp_path.iterdir()) == [file]


def test_a_prompt_goes_on_behind_a_saved_text(tmp_path: Path) -> None:
    model = model_of("e88_tiny")
    greedy = Sampling(temperature=0)
    first = Writer(model, greedy)
    first.read([b"def f("])
    begun = written(first, 9)[0]
    save_text_state(tmp_path / "state", first, "m")
    second = Writer(model, greedy)
    load_text_state(tmp_path / "state", second, "m")
    second.read([b") ->"])
    whole = Writer(model, greedy)
    whole.read([b"def f(" + begun + b") ->"])
    assert written(second, 20) == written(whole, 20)


def test_what_is_no_saved_state_is_one_line(tmp_path: Path) -> None:
    model = model_of("e88_tiny")
    writer = Writer(model, SHARP)
    writer.read([b"abc"])
    list(writer.write(3))
    save_text_state(tmp_path / "state", writer, "a run, step 3")
    whole = (tmp_path / "state").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text").write_text("nothing of the kind, and longer than eight bytes")
    for name, reason in {
        "absent": "no such file",
        "cut": "not a saved state",
        "text": "not a saved state",
        "state": "saved with a run, step 3, but this is another, step 3",
    }.items():
        with pytest.raises(UserError, match=rf"generate.state=.*{name}: {reason}"):
            load_text_state(tmp_path / name, Writer(model, SHARP), "another, step 3")


def test_the_draw_is_the_place_on_the_line_of_probabilities() -> None:
    logits_bv = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]).expand(5, -1))
    numbers = torch.tensor([0.0, 0.39, 0.41, 0.71, 1 - 2**-24])
    assert draw(logits_bv, numbers, 1.0, 0, 1.0).tolist() == [1, 1, 3, 2, 0]
    assert draw(logits_bv, numbers, 1.0, 0, 0.5).tolist() == [1, 1, 1, 3, 3]
    assert draw(logits_bv, numbers, 1.0, 1, 1.0).tolist() == [1] * 5


def test_several_prompts_are_printed_whole_with_their_speed(train, capsys) -> None:
    run = train("train.steps=30", "optim.lr=0.01")
    given = [f"generate.checkpoint={run.folder}", "generate.max_bytes=40", "mode=generate"]
    many = compose_config([*given, "generate.prompt=[def,class]", "generate.samples=2"])
    assert generate_mode.run(PreparedRun(many)) == ExitStatus.OK
    printed = capsys.readouterr()
    parts = re.split(r"--- \d of 4 ---\n", printed.out)
    assert [part[:3] for part in parts[1:]] == ["def", "def", "cla", "cla"]
    assert parts[1] != parts[2]
    assert re.search(
        r"160 bytes, [\d,]+ bytes a second \(4 texts together, step by step\)", printed.err
    )


def test_a_text_is_continued_by_the_command(train, tmp_path: Path, capsys) -> None:
    run, file = train("train.steps=30", "optim.lr=0.01"), tmp_path / "state"
    given = [f"generate.checkpoint={run.folder}", "mode=generate", "generate.prompt='def '"]
    capsys.readouterr()  # what the run said
    generate_mode.run(PreparedRun(compose_config([*given, "generate.max_bytes=50"])))
    whole = capsys.readouterr().out
    saving = [*given, "generate.max_bytes=20", f"generate.save_state={file}"]
    generate_mode.run(PreparedRun(compose_config(saving)))
    first = capsys.readouterr().out
    going_on = [*given[:2], f"generate.state={file}", "generate.max_bytes=30"]
    generate_mode.run(PreparedRun(compose_config(going_on)))
    assert first.removesuffix("\n") + capsys.readouterr().out == whole


def test_what_a_kernel_says_stands_before_the_prompt(train, capsys, monkeypatch) -> None:
    def compiling(self: Writer, count: int) -> Iterator[list[bytes]]:
        print("compiling")
        yield from write(self, count)

    write = Writer.write
    monkeypatch.setattr(Writer, "write", compiling)
    given = ["mode=generate", f"generate.checkpoint={train('train.steps=2').folder}"]
    capsys.readouterr()  # what the run said
    for count in (1, 3):
        wanted = [*given, "generate.prompt='def '", f"generate.max_bytes={count}"]
        generate_mode.run(PreparedRun(compose_config(wanted)))
        assert capsys.readouterr().out.startswith("compiling\ndef ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("generate.prompt=[]", r"generate.prompt=\[\]: an empty list"),
        ("generate.graph=true", "generate.graph=true: a CUDA graph needs a GPU"),
        ("generate.fused=true", "generate.fused=true: its kernel needs a GPU"),
        ("generate.state=nowhere", "generate.state=nowhere: no such file"),
    ],
)
def test_wrong_settings_of_generate_are_named(train, override: str, message: str) -> None:
    run = train()
    config = compose_config(["mode=generate", f"generate.checkpoint={run.folder}", override])
    with pytest.raises(UserError, match=message):
        generate_mode.run(PreparedRun(config))


@pytest.mark.parametrize(
    ("params", "rows", "threads"), [(10**6, 1, 1), (10**6, 64, 2), (10**8, 1, 2)]
)
def test_small_steps_take_one_thread(params: int, rows: int, threads: int, monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with generate_mode._threads_for(SimpleNamespace(num_params=lambda: params), rows):  # type: ignore[arg-type]
        inside = list(asked)
    assert inside == ([] if threads == 2 else [1])
    assert asked[-1] == 2
