"""Runs of subword tokens: trained, resumed, scored, sampled, loaded and exported like any other."""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import elman
from elman.base.exit_status import ExitStatus
from elman.data.batches import open_batches
from elman.data.text import open_data
from elman.evaluation.generation import Writer
from elman.training.checkpoints.loading import saved_config
from elman.training.checkpoints.store import find_checkpoint
from tests.small_run import E1, Elman, elman_said

pytest.importorskip("tokenizers")

WORDS = "def add(left, right):\n    return left + right  # the sum\n\x1ecafé 1234, yes\n"
TOKENS = ("data.tokenizer=bpe", "data.vocab_size=280", "train.steps=6", "train.save_every=3")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 99)
    return path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Elman:
    return elman_said(capfd)


@pytest.fixture
def trained(text: Path, tmp_path: Path, run: Elman) -> Callable[..., Path]:
    """Return a function that trains a run and returns its folder."""

    def train(name: str, *overrides: str) -> Path:
        folder = tmp_path / name
        arguments = (*E1, *TOKENS, f"data.path={text}", f"hydra.run.dir={folder}", *overrides)
        status, said = run(*arguments)
        assert status == ExitStatus.OK, said
        return folder

    return train


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def steps(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]


def test_a_run_says_what_its_tokens_are_and_is_scored_by_bits_per_byte(trained, run) -> None:
    folder = trained("a")
    found = result(folder)
    assert found["data"]["tokenizer"]["vocab_size"] == 280
    assert found["val_tokens"] == 64
    assert found["reload_difference_bpb"] == 0
    each = found["data"]["tokenizer"]["bytes_per_token"]
    assert 0.5 < found["loss"] / found["bpb"] / each < 1.0  # nats per token, bits per byte
    status, said = run("mode=eval", f"eval.checkpoint={folder}")
    assert status == ExitStatus.OK
    assert f"{found['val_bpb']:.6f}" in said
    assert "280 tokens" in said


@pytest.mark.parametrize("carried", ["true", "false"])
def test_a_run_resumes_with_the_bits_it_would_have_had(trained, run, carried) -> None:
    settings = (f"train.tbptt={carried}", "data.reset_at_documents=true", "optim=adamw")
    folder = trained("whole", *settings)
    assert len(steps(folder)) == 6
    before = steps(folder)[3:]
    again = folder.with_name("again")
    shutil.copytree(folder, again, symlinks=True)
    shutil.rmtree(again / "checkpoints" / "step-0000006")
    (again / "result.json").unlink()
    status, said = run(f"train.resume={again}")
    assert status == ExitStatus.OK, said
    assert steps(again)[-3:] == before


def test_a_checkpoint_is_enough_without_text_cache_or_tokenizer(
    trained, text, tmp_path, run
) -> None:
    folder = trained("a", "data.reset_at_documents=true")
    other = tmp_path / "other.txt"
    other.write_bytes(b"the sum of cafes\xff" * 40)
    text.unlink()
    shutil.rmtree(tmp_path / "cache" / "data")
    for carried in ("true", "false"):
        arguments = (f"eval.checkpoint={folder}", f"eval.path={other}")
        status, said = run("mode=eval", *arguments, f"eval.carry_state={carried}")
        assert status == ExitStatus.OK, said
        assert "679" in said  # every byte but the first
    model = elman.load(folder)
    assert model.tokenizer is not None
    assert model.reset_after == 0x1E
    written = bytes(elman.generate(model, b"def ", 40, seed=1))
    assert len(written) >= 40
    where = (f"generate.checkpoint={folder}", "generate.prompt='def '", "generate.max_bytes=40")
    status, said = run("mode=generate", *where)
    assert status == ExitStatus.OK
    assert said.startswith("def ")


def test_a_text_goes_on_from_its_saved_state(trained, tmp_path, run) -> None:
    folder, state = trained("a"), tmp_path / "text.state"
    common = ("mode=generate", f"generate.checkpoint={folder}", "generate.temperature=0")
    _, whole = run(*common, "generate.prompt=def", "generate.max_bytes=24")
    _, first = run(
        *common, "generate.prompt=def", "generate.max_bytes=8", f"generate.save_state={state}"
    )
    _, second = run(*common, f"generate.state={state}", "generate.max_bytes=16")
    text, more = first.partition("\nelman:")[0], second.partition("\nelman:")[0]
    joined = text.rstrip("\n") + more.rstrip("\n")
    shorter = min(len(joined), len(whole.partition("\nelman:")[0].rstrip("\n")))
    assert joined[:shorter] == whole[:shorter]
    assert shorter > 8


def test_a_character_that_the_prompt_begins_and_the_model_ends_is_one(
    trained, run, monkeypatch
) -> None:
    folder = trained("a")
    written = [b"\xa9 y", b"\xa9 n"]
    for pieces, prompt in ((written[:1], "caf\udcc3"), (written, "['caf\udcc3','b']")):
        monkeypatch.setattr(Writer, "write", lambda self, size, pieces=pieces: iter([pieces]))
        where = (f"generate.checkpoint={folder}", f"generate.prompt={prompt}")
        status, said = run("mode=generate", *where)
        assert status == ExitStatus.OK
        assert "caf\u00e9 y\n" in said
    assert "b\ufffd n\n" in said


def test_a_text_of_ids_without_bytes_ends_in_one_line(text, tmp_path, run) -> None:
    pytest.importorskip("tiktoken")
    ranks = [(bytes([byte]), byte) for byte in range(256)] + [(b"def", 8_000)]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks)
    (tmp_path / "holes.tiktoken").write_text("".join(lines))
    tokens = f"data.tokenizer=tiktoken:{tmp_path / 'holes.tiktoken'}"
    folder = tmp_path / "a"
    status, said = run(*E1, tokens, "train.steps=1", f"data.path={text}", f"hydra.run.dir={folder}")
    assert status == ExitStatus.OK, said
    settings = ("generate.max_bytes=60", "generate.top_k=0")
    status, said = run("mode=generate", f"generate.checkpoint={folder}", *settings)
    assert status == ExitStatus.USER_ERROR
    assert "the model writes ids that holes.tiktoken does not use: 1,1" in said


def test_an_exported_model_has_its_tokenizer(trained, tmp_path, run) -> None:
    folder, to = trained("a", "data.reset_at_documents=true"), tmp_path / "out"
    status, said = run("mode=export", f"export.checkpoint={folder}", f"export.to={to}")
    assert status == ExitStatus.OK, said
    model, exported = elman.load(folder), elman.load(to)
    assert model.tokenizer is not None
    assert exported.tokenizer is not None
    ids = model.tokenizer.encode(WORDS.encode())
    assert (exported.tokenizer.encode(WORDS.encode()) == ids).all()
    assert exported.tokenizer.name == model.tokenizer.name == "bpe of 280"
    assert exported.reset_after == model.reset_after
    ids_bt = torch.from_numpy(ids)[None]
    assert torch.equal(model(ids_bt)[0], exported(ids_bt)[0])
    card = (to / "README.md").read_text()
    assert f"A language model over {model.tokenizer.vocab_size:,} subword tokens" in card
    assert "A token is one of `tokenizer.json`" in card
    assert "| tokens | predicted bytes in those steps" in card


def test_as_many_tokens_as_bytes_are_bytes_no_more_when_they_come_back(
    trained, text, tmp_path, run
) -> None:
    tree = json.loads(elman.load(trained("a")).tokenizer.definition)
    # GPT-2's order: the ids of single bytes are not their values.
    signs = sorted(sign for sign in tree["model"]["vocab"] if len(sign) == 1)
    model = tree["model"] | {"vocab": {sign: n for n, sign in enumerate(signs)}, "merges": []}
    file, folder, to = tmp_path / "bytes.json", tmp_path / "b", tmp_path / "out"
    file.write_text(json.dumps(tree | {"model": model}))
    settings = (f"data.path={text}", f"data.tokenizer={file}", "train.steps=1")
    status, said = run(*E1, *settings, f"hydra.run.dir={folder}")
    assert status == ExitStatus.OK, said
    assert run("mode=export", f"export.checkpoint={folder}", f"export.to={to}")[0] == ExitStatus.OK
    before, after = elman.load(folder).tokenizer, elman.load(to).tokenizer
    assert before is not None
    assert after is not None
    assert (after.encode(WORDS.encode()) == before.encode(WORDS.encode())).all()
    assert list(before.encode(b"def")) != list(b"def")


def test_a_folder_of_an_earlier_version_has_its_tokenizer(trained, tmp_path, run) -> None:
    folder, to = trained("a"), tmp_path / "out"
    assert run("mode=export", f"export.checkpoint={folder}", f"export.to={to}")[0] == ExitStatus.OK
    config = json.loads((to / "config.json").read_text())
    assert config["elman"].pop("tokenizer") == "bpe of 280"
    (to / "config.json").write_text(json.dumps(config))
    assert elman.load(to).tokenizer.vocab_size == 280


def test_tokens_of_tiktoken_are_not_exported(text, tmp_path, run) -> None:
    pytest.importorskip("tiktoken")
    table = [bytes([byte]) for byte in range(256)] + [b"de", b"def"]
    lines = (f"{base64.b64encode(one).decode()} {rank}\n" for rank, one in enumerate(table))
    (tmp_path / "tiny.tiktoken").write_text("".join(lines))
    tokens = f"data.tokenizer=tiktoken:{tmp_path / 'tiny.tiktoken'}"
    folder, to = tmp_path / "a", tmp_path / "out"
    status, said = run(*E1, tokens, "train.steps=1", f"data.path={text}", f"hydra.run.dir={folder}")
    assert status == ExitStatus.OK, said
    status, said = run("mode=export", f"export.checkpoint={folder}", f"export.to={to}")
    assert status == ExitStatus.USER_ERROR
    assert "its tokens are those of tiktoken, which transformers does not read; use" in said
    assert len(said.splitlines()) == 1
    assert not to.exists()


MISTAKES = {
    "probe": (("mode=probe", "probe.checkpoint=FOLDER"), "a probe reads byte by byte"),
    "resume with more": (
        ("train.resume=FOLDER", "data.tokenizer=bpe:300", "train.steps=9"),
        "data.tokenizer=bpe:300: the run to resume has bpe:280",
    ),
    "resume with others": (
        ("train.resume=FOLDER", "data.tokenizer=bytes", "train.steps=9"),
        "data.tokenizer=bytes: the run to resume has bpe:280",
    ),
}


@pytest.mark.parametrize(("command", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_done_with_tokens_is_refused_in_one_line(
    trained, run, command, expected
) -> None:
    folder = trained("a")
    status, said = run(*(word.replace("FOLDER", str(folder)) for word in command))
    assert status == ExitStatus.USER_ERROR
    assert expected in said
    assert said.count("elman: error:") == 1


SETTINGS = {
    "no size": (
        ("data.tokenizer=bpe",),
        "needs data.vocab_size, how many tokens are learned; type",
    ),
    "small": (("data.tokenizer=bpe", "data.vocab_size=256"), "the first 256 are the bytes; type"),
    "huge": (("data.tokenizer=bpe", "data.vocab_size=1e9"), "learns at most 1048576 tokens"),
    "unread": (("data.vocab_size=300",), "type data.tokenizer=bpe:300, in a sweep beside bytes"),
    "no number": (("data.tokenizer=bpe:8k",), "expected a number of tokens, as in data.tokenizer"),
    "two numbers": (
        ("data.tokenizer=bpe:300", "data.vocab_size=400"),
        "data.vocab_size=400: data.tokenizer=bpe:300 says another; drop it",
    ),
    "nothing": (("data.tokenizer=''",), "names nothing; type data.tokenizer=bytes"),
    "no file": (("data.tokenizer=nowhere.json",), "no such file as nowhere.json; name a tokenizer"),
    "near": (("data.tokenizer=BPE",), "no such file as BPE (did you mean bpe?); name"),
    "a folder": (("data.tokenizer=/",), "no such file as /tokenizer.json; name"),
}


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_wrong_settings_are_refused_in_one_line(text, run, settings, expected) -> None:
    status, said = run(*E1, f"data.path={text}", *settings)
    assert status == ExitStatus.USER_ERROR
    assert expected in said
    assert len(said.splitlines()) == 1


def test_a_file_sets_the_vocabulary_of_the_model(trained, text, tmp_path, run) -> None:
    first = trained("a")
    file = tmp_path / "tokenizer.json"
    shutil.copy(first / "checkpoints" / "best" / "tokenizer.json", file)
    folder = tmp_path / "b"
    status, said = run(
        *E1,
        f"data.path={text}",
        f"data.tokenizer={file}",
        "train.steps=6",
        f"hydra.run.dir={folder}",
    )
    assert status == ExitStatus.OK, said
    assert result(folder)["val_bpb"] == result(first)["val_bpb"]
    file.unlink()
    status, said = run(f"train.resume={folder}", "train.steps=8")
    assert status == ExitStatus.OK, said
    # Its name is that of its file, and no path leaves with the model.
    to = tmp_path / "out"
    status, said = run("mode=export", f"export.checkpoint={folder}", f"export.to={to}")
    assert status == ExitStatus.OK, said
    for name in ("README.md", "config.json"):
        assert "tokenizer.json" in (to / name).read_text()
        assert str(tmp_path) not in (to / name).read_text()
    assert result(folder)["data"]["tokenizer"]["name"] == "tokenizer.json"
    status, said = run(*E1, f"data.tokenizer={file}", "data.vocab_size=280")
    assert status == ExitStatus.USER_ERROR
    assert "data.vocab_size=280: follows data.tokenizer=" in said


def test_the_number_of_tokens_may_stand_in_the_name_of_the_tokenizer(trained, run) -> None:
    two, one = trained("two"), trained("one", "data.tokenizer=bpe:280", "data.vocab_size=null")
    assert result(one)["config_hash"] == result(two)["config_hash"]
    status, said = run(f"train.resume={one}", "data.tokenizer=bpe:280", "train.steps=7")
    assert status == ExitStatus.OK, said
    assert result(one)["data"]["tokenizer"]["name"] == "bpe of 280"


def bytes_of_steps(folder: Path) -> list[int]:
    """Return how many bytes a run has learned from after each step, by reading them again."""
    config, model = saved_config(find_checkpoint(folder)), elman.load(folder)
    found = [0]
    with (
        open_data(config.data, config.train.chunk_size, print, model.tokenizer) as data,
        open_batches(data, config.train) as batches,
    ):
        while len(found) <= result(folder)["steps"]:
            rows = batches.next()
            found.append(found[-1] + sum(len(model.tokenizer.decode(row[1:])) for row in rows))
    return found


@pytest.mark.parametrize("carried", ["true", "false"])
def test_a_budget_of_bytes_counts_what_the_tokens_stand_for(trained, run, carried) -> None:
    budget = ("train.steps=null", "train.bytes=700", f"train.tbptt={carried}")
    folder, parts = trained("a", *budget), trained("b", *budget, "train.bytes=300")
    status, said = run(f"train.resume={parts}", "train.bytes=700")
    assert status == ExitStatus.OK, said
    for one in (folder, parts):
        found, read = result(one), bytes_of_steps(one)
        assert read[-2] < 700 <= read[-1]
        assert found["budget"] == {"bytes": {"limit": 700, "spent": read[-1]}}
        each = found["loss"] / found["bpb"] / math.log(2)
        assert round(found["tokens"] * each) == read[-1]
        assert found["flops"] == found["tokens"] * found["flops_per_byte"]
    assert result(parts)["val_bpb"] == result(folder)["val_bpb"]
    assert f"{result(parts)['tokens']:,} tokens predicted, {read[-1]:,} bytes" in said


def test_a_sweep_learns_tokens_before_its_jobs_start_and_says_so(text, tmp_path, run) -> None:
    settings = ("-m", *E1, f"data.path={text}", "train.steps=1")
    done, refused = (f"hydra.sweep.dir={tmp_path / name}" for name in ("done", "refused"))
    status, said = run(*settings, done, "data.tokenizer=bytes,bpe:270")
    assert status == ExitStatus.OK, said
    learning, first = said.index("learning 270 tokens"), said.index("[1/2] data.tokenizer=bytes")
    assert learning < first
    status, said = run(*settings, refused, "data.tokenizer=bytes,bpe:9000")
    assert status == ExitStatus.USER_ERROR
    assert "data.vocab_size=9000: " in said
    assert "[1/2]" not in said
    assert not (tmp_path / "refused").exists()


def test_a_budget_of_operations_counts_those_of_a_token(trained) -> None:
    found = result(trained("a", "train.steps=null", "train.flops=1e8"))
    assert found["budget"]["flops"]["spent"] == found["tokens"] * found["flops_per_byte"]
    assert found["flops_per_byte"] == pytest.approx(6 * found["params"], rel=0.05)


@pytest.mark.parametrize("kind", ["", "tiktoken:"])
def test_the_file_of_a_tokenizer_is_found_from_every_folder(
    trained, text, tmp_path, monkeypatch, run, kind
) -> None:
    name, elsewhere = "tiny.tiktoken" if kind else "tokenizer.json", tmp_path / "elsewhere"
    if kind:
        pytest.importorskip("tiktoken")
        lines = (f"{base64.b64encode(bytes([n])).decode()} {n}\n" for n in range(256))
        (tmp_path / name).write_text("".join(lines) + "ZGU= 256\n")
    else:
        shutil.copy(trained("a") / "checkpoints" / "best" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ("-m", *E1, f"data.path={text}", "train.steps=2", "hydra.sweep.dir=sweep")
    status, said = run(*command, f"data.tokenizer={kind}{name}")
    assert status == ExitStatus.OK, said
    (folder,) = tmp_path.glob("sweep/01_*")
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("mode=eval", f"eval.checkpoint={folder}")[0] == ExitStatus.OK
    typed = f"data.tokenizer={kind}../{name}"
    status, said = run(f"train.resume={folder}", typed, "train.steps=3")
    assert status == ExitStatus.OK, said
    assert "changed since the run began" not in said
    file = tmp_path / name
    file.write_text(file.read_text() + ("Y2E= 257\n" if kind else " "))
    status, said = run(f"train.resume={folder}", "train.steps=4")
    assert status == ExitStatus.OK, said
    assert f"{file}: changed since the run began; the run goes on with the tokens that" in said


def bits_per_byte(model, text: bytes, tail: int, window: int, count: int) -> float:
    """Return bits per byte of evenly spaced windows of a tail, one window and one token a time."""
    tokenizer, first = model.tokenizer, len(text) - tail
    last = tail - window - 1
    nats, n_bytes = 0.0, 0
    for index in range(count):
        start = first + index * last // max(count - 1, 1)
        before, target = text[start : start + 1], text[start + 1 : start + 1 + window]
        ids = [tokenizer.token_bytes(range(tokenizer.vocab_size)).index(before)]
        ids += tokenizer.encode(target).tolist()
        assert b"".join(tokenizer.token_bytes(ids[1:])) == target
        with torch.no_grad():
            logits_tv = model(torch.tensor([ids[:-1]]))[0][0].double()
        for place, following in enumerate(ids[1:]):
            nats -= torch.log_softmax(logits_tv[place], 0)[following].item()
        n_bytes += window
    return nats / n_bytes / math.log(2)


@pytest.mark.parametrize("resets", ["true", "false"])
@pytest.mark.parametrize("kind", ["bpe", "file", "tiktoken"])
def test_bits_per_byte_are_those_of_one_window_and_one_token_at_a_time(
    tmp_path, monkeypatch, run, kind, resets
) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    # Windows of 33 bytes cut the characters of several bytes; some bytes are not UTF-8.
    words = "日本語 caf\u00e9 1234\n".encode() + b"\xff\xc3 left\x1eright \xe3\x81"
    path, folder = tmp_path / "text.txt", tmp_path / "a"
    path.write_bytes(words * 120)
    tokens = {"bpe": ("data.tokenizer=bpe", "data.vocab_size=270")}
    if kind == "file":
        status, said = run(*E1, *tokens["bpe"], f"data.path={path}", "train.steps=1",
                           "data.format=raw", f"hydra.run.dir={tmp_path / 'first'}")  # fmt: skip
        assert status == ExitStatus.OK, said
        tokens[kind] = (f"data.tokenizer={tmp_path / 'first/checkpoints/best/tokenizer.json'}",)
    elif kind == "tiktoken":
        pytest.importorskip("tiktoken")
        table = [bytes([byte]) for byte in range(256)] + ["日".encode(), b"ca", b"caf", b"ri"]
        lines = (f"{base64.b64encode(one).decode()} {rank}\n" for rank, one in enumerate(table))
        (tmp_path / "tiny.tiktoken").write_text("".join(lines))
        tokens[kind] = (f"data.tokenizer=tiktoken:{tmp_path / 'tiny.tiktoken'}",)
    settings = ("data.format=raw", "data.val_bytes=400", "data.val_window=33")
    status, said = run(
        *E1, *tokens[kind], *settings, "data.val_sample=231", f"data.path={path}", "train.steps=3",
        f"data.reset_at_documents={resets}", f"hydra.run.dir={folder}",
    )  # fmt: skip
    assert status == ExitStatus.OK, said
    model = elman.load(folder)
    expected = bits_per_byte(model, path.read_bytes(), 400, 33, 7)
    assert result(folder)["val_bpb"] == pytest.approx(expected, rel=1e-6)


def test_another_number_of_learned_tokens_cannot_go_on_with_a_run(trained, run) -> None:
    folder = trained("a")
    status, said = run(f"train.resume={folder}", "data.vocab_size=300", "train.steps=8")
    assert status == ExitStatus.USER_ERROR
    assert "data.vocab_size=300" in said
    assert said.count("elman: error:") == 1
