"""Tokenizers of files, of tiktoken and learned ones: exact, refused in one line, learned once."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.live_line import PROGRESS_VARIABLE
from elman.data.files import ByteSource
from elman.data.text import open_text
from elman.data.token_windows import TokenReader
from elman.data.tokenizers import hugging_face, tiktoken_ranks
from elman.data.tokenizers import learned as learned_module
from elman.data.tokenizers.learned import learned_tokenizer
from elman.data.tokenizers.opening import named_tokenizer, tokenizer_of_definition
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.export.files import learned_tokenizer as exported_tokenizer
from elman.export.files import tokenizer as byte_tokenizer_json
from elman.sections.training import DataConfig
from tests.small_run import E1

tokenizers = pytest.importorskip("tokenizers")

TEXT = 99 * (
    b"def add(left, right):\n    return left + right  # sums both\n"
    b"\x1ethe end of caf\xc3\xa9s 1234, yes\n"
)
ODD = [
    b"",
    b"\x1e\x1e",
    b"left\x1eright",
    b"\xff\x00broken \xc3",
    "<|endoftext|> 日本語 🙂 e\u0301".encode(),
    TEXT[:500],
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for each test."""
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> ByteSource:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return ByteSource(str(path))


def learned(source: ByteSource, size: int = 300) -> Tokenizer:
    return learned_tokenizer(source, len(source), size, lambda line: None)


def assert_exact(tokenizer: Tokenizer) -> None:
    for text in ODD:
        ids_n = tokenizer.encode(text)
        assert tokenizer.decode(ids_n) == text
        assert tokenizer.count_bytes(ids_n) == len(text)
    assert (tokenizer.encode(b"left\x1eright") == tokenizer.separator).sum() == 1
    again = tokenizer_of_definition(tokenizer.definition, tokenizer.name, "here")
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.encode(TEXT) == tokenizer.encode(TEXT)).all()


def test_a_learned_tokenizer_is_exact_and_its_first_ids_are_bytes(source) -> None:
    tokenizer = learned(source)
    assert tokenizer.vocab_size == 300
    assert tokenizer.separator == 0x1E
    assert tokenizer.token_bytes(range(256)) == [bytes([byte]) for byte in range(256)]
    assert tokenizer.bytes_per_token(TEXT) > 2
    assert_exact(tokenizer)


def test_it_is_learned_once_and_from_the_training_part_alone(source, cache) -> None:
    said: list[str] = []
    part = len(source) // 2
    first = learned_tokenizer(source, part, 300, said.append)
    again = learned_tokenizer(source, part, 300, said.append)
    assert len(said) == 1
    assert said[0].startswith("learning 300 tokens from ")
    assert again.definition == first.definition
    half = cache / "half.txt"
    half.write_bytes(TEXT[:part])
    # Nothing behind the training part changes it.
    assert (
        learned_tokenizer(ByteSource(str(half)), part, 300, said.append).encode(TEXT).tolist()
        == first.encode(TEXT).tolist()
    )
    assert len(said) == 2


def test_two_processes_learn_the_same_once(source, cache) -> None:
    code = (
        "import sys; from elman.data.files import ByteSource;"
        "from elman.data.tokenizers.learned import learned_tokenizer;"
        "s = ByteSource(sys.argv[1]);"
        "print(learned_tokenizer(s, len(s), 290, lambda line: print(line[:8])).fingerprint)"
    )
    command = [sys.executable, "-c", code, source.paths[0]]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [job.communicate(timeout=120)[0].split("\n") for job in jobs]
    assert all(job.returncode == 0 for job in jobs)
    assert len({lines[-2] for lines in said}) == 1
    assert sum("learning" in lines for lines in said) == 1


def test_how_a_text_is_handed_over_changes_no_token(source, cache, monkeypatch) -> None:
    text = cache.with_name("lines.txt")
    lines = (
        b"def  f(x):\n\n    'a',\n\t\xc3\xa9t\xc3\xa9 12345  !?\r\n \x1c\n  x\x0b y\xe3\x80\x80z\n"
    )
    text.write_bytes(TEXT.replace(b"\x1e", b"") + lines * 99)
    definitions = set()
    for number, size in enumerate((30, 101, 2**20)):
        monkeypatch.setattr(learned_module, "_TEXT_CHARACTERS", size)
        monkeypatch.setenv("ELMAN_CACHE", str(cache / str(number)))
        definitions.add(learned(ByteSource(str(text)), 290).definition)
    assert len(definitions) == 1


LEARNS_LONG = """
import sys
from elman.base import live_line
from elman.cli.main import main
live_line._FIRST_SECONDS = live_line._SPARSE_SECONDS = 0.1
sys.exit(main())
"""


def test_a_signal_ends_the_learning_at_once_and_progress_shows_before(tmp_path, cache) -> None:
    text = tmp_path / "dna.txt"  # a word without an end: each join reads all of it
    text.write_bytes(np.random.default_rng(0).choice([*b"ACGT"], 2**23).astype(np.uint8).tobytes())
    settings = (*E1, f"data.path={text}", "data.tokenizer=bpe", "data.vocab_size=60000")
    shown = os.environ | {PROGRESS_VARIABLE: "on"}
    command = [sys.executable, "-c", LEARNS_LONG, *settings, f"hydra.run.dir={tmp_path / 'run'}"]
    said = []
    with subprocess.Popen(command, env=shown, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        for line in job.stderr:
            said.append(line)
            if "joining the most frequent pairs" in line:
                job.send_signal(signal.SIGTERM)
                break
        said += job.stderr
    assert job.returncode == ExitStatus.INTERRUPTED, said
    assert any("% read, " in line for line in said)
    assert said[-1] == "elman: interrupted (SIGTERM) before the first step: nothing to save\n"
    assert not list(cache.glob("data/*/tokenizer.json"))
    assert not (tmp_path / "run").exists()


def test_the_next_process_learns_when_the_one_that_learned_was_killed(source, cache) -> None:
    code = (
        "import sys, time; from elman.data.files import ByteSource;"
        "from elman.data.tokenizers import learned;"
        "learned._wait_showing = lambda *all: (print('now', flush=True), time.sleep(600));"
        "s = ByteSource(sys.argv[1]);"
        "learned.learned_tokenizer(s, len(s), 300, lambda line: None)"
    )
    command = [sys.executable, "-c", code, source.paths[0]]
    said: list[str] = []

    def announce(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            job.kill()

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "now\n"
        found = learned_tokenizer(source, len(source), 300, announce)
    assert found.vocab_size == 300
    assert [line.partition(" ")[0] for line in said] == ["another", "learning"]


def test_a_full_disk_under_the_cache_shows_before_tokens_are_learned(
    source, cache, monkeypatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(UserError) as raised:
            learned_tokenizer(source, len(source), 280, said.append)
    assert re.fullmatch(
        r"data.tokenizer=bpe: cannot keep it "
        r"\(No space left on device: .*/cache/data/bpe-280-\w+\); "
        r"set ELMAN_CACHE to a folder that can be written and has space",
        str(raised.value),
    )
    assert said == []
    assert learned(source, 280).vocab_size == 280
    assert {path.name for path in cache.glob("data/*/*")} == {"lock", "tokenizer.json"}


def test_too_few_words_for_so_many_tokens_are_refused(source) -> None:
    with pytest.raises(UserError, match=r"data.vocab_size=5000: .* has only \d+ tokens to learn"):
        learned(source, 5000)


def test_a_file_is_read_without_what_it_adds_or_normalizes(source, tmp_path: Path) -> None:
    tree = json.loads(learned(source).definition)
    tree["normalizer"] = {"type": "NFC"}
    tree["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    end = {"id": 300, "content": "<|endoftext|>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tree["added_tokens"] = [end | flags, end | flags | {"id": 301, "content": "    "}]
    tree["added_tokens"][1]["special"] = False
    tree["model"]["dropout"] = 0.5
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tree))
    for name in (path, tmp_path):
        tokenizer = named_tokenizer(str(name))
        assert tokenizer.vocab_size == 302
        assert_exact(tokenizer)
    # What looks like a special token is text; another added token is one of the vocabulary.
    assert 300 not in tokenizer.encode(b"left<|endoftext|>right")
    assert tokenizer.encode(b"    ").tolist() == [301]
    assert tokenizer.decode([300]) == b"<|endoftext|>"
    assert len({tokenizer.encode(TEXT).tobytes() for _ in range(5)}) == 1


@pytest.mark.parametrize("number", [2**20, 50_000_000])
def test_an_id_that_would_make_the_model_huge_is_refused(source, tmp_path: Path, number) -> None:
    tree = json.loads(learned(source).definition)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tree | {"added_tokens": [flags | {"id": number, "content": "<x>"}]}))
    assert f"has the id {number:,}, and ids go from 0 to 1,048,575" in refused(str(path))
    ranks = ranks_file(tmp_path / "tiny.tiktoken")
    ranks.write_text(ranks.read_text() + f"{base64.b64encode(b'far').decode()} {number}\n")
    pytest.importorskip("tiktoken")
    assert f"has the id {number:,}" in refused(f"tiktoken:{ranks}")


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xff", b"[]"])
def test_a_damaged_file_of_the_cache_is_learned_anew(source, cache, damaged: bytes) -> None:
    first = learned(source)
    (kept,) = cache.glob("data/bpe-300-*/tokenizer.json")
    kept.write_bytes(damaged)
    assert learned(source).definition == first.definition
    assert kept.read_text() == first.definition


def test_a_text_that_is_not_utf8_has_tokens_between_its_single_bytes(source) -> None:
    tokenizer = learned(source)
    text = "caf\u00e9 and ".encode("latin-1") * 3
    ids = [tokenizer.encode(part).tolist() for part in (b"caf", b" and caf", b" and ")]
    single = tokenizer.ids_of_single_bytes(b"\xe9").tolist()
    caf, between, end = ids
    assert tokenizer.encode(text).tolist() == [
        *caf, *single, *between, *single, *between, *single, *end
    ]  # fmt: skip
    assert_exact(tokenizer)


def test_a_tokenizer_of_sentencepiece_with_tokens_for_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(byte_tokenizer_json()))
    tokenizer = named_tokenizer(str(path))
    assert tokenizer.vocab_size == 256
    assert_exact(tokenizer)


def test_what_is_exported_cuts_at_separators_itself_and_names_their_token(
    source, tmp_path: Path
) -> None:
    tree = json.loads(learned(source).definition)
    # A vocabulary that joins separators, and has them as a token of their own, too.
    merged = {"\u011e\u011e": 300, "\u011e\u011ea": 301}
    model = tree["model"] | {"vocab": tree["model"]["vocab"] | merged}
    model["merges"] = [["\u011e", "\u011e"], *model["merges"], ["\u011e\u011e", "a"]]
    end = {"id": 302, "content": "<|endoftext|>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    given = tmp_path / "given.json"
    given.write_text(json.dumps(tree | {"model": model, "added_tokens": [end | flags]}))
    bytes_alone = tmp_path / "bytes.json"
    bytes_alone.write_text(json.dumps(byte_tokenizer_json()))
    text = "left +\x1e right\x1e\n\n\x1e\x1ea \u011e\u011ea<|endoftext|>end"
    for tokenizer in (
        learned(source),
        named_tokenizer(str(given)),
        named_tokenizer(str(bytes_alone)),
    ):
        tree = exported_tokenizer(tokenizer)
        plain = tokenizers.Tokenizer.from_str(json.dumps(tree))
        ids = tokenizer.encode(text.encode()).tolist()
        assert plain.encode(text).ids == ids
        assert plain.decode(ids, skip_special_tokens=False) == text
        assert plain.token_to_id("\x1e") == tokenizer.separator
        (tmp_path / "again.json").write_text(json.dumps(tree))
        again = named_tokenizer(str(tmp_path / "again.json"))
        assert_exact(again)
        assert again.encode(text.encode()).tolist() == ids
        assert again.table() == tokenizer.table()


def refused(setting: str) -> str:
    with pytest.raises(UserError) as caught:
        named_tokenizer(setting)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cut_before(tree: dict, cut: dict) -> str:
    """Return a tokenizer.json that cuts a text in this way first."""
    cuts = {"type": "Sequence", "pretokenizers": [cut, tree["pre_tokenizer"]]}
    return json.dumps(tree | {"pre_tokenizer": cuts})


def test_files_that_make_their_library_panic_are_refused_in_one_line(
    source, tmp_path: Path, capfd
) -> None:
    tree = json.loads(learned(source).definition)
    capfd.readouterr()
    panics = tmp_path / "panics.json"
    prefixed = tree["model"] | {"continuing_subword_prefix": "much longer than any token"}
    panics.write_text(json.dumps(tree | {"model": prefixed}))
    assert "cannot be read by tokenizers" in refused(str(panics))
    panics.write_text(cut_before(tree, {"type": "FixedLength", "length": 0}))
    assert "cannot encode some text (chunk size must be" in refused(str(panics))
    pytest.importorskip("tiktoken")
    ranks = ranks_file(tmp_path / "tiny.tiktoken")
    ranks.write_text(ranks.read_text() + f"{base64.b64encode(b'far').decode()} 7\n")
    assert "cannot be read by tiktoken (Encoder and decoder must" in refused(f"tiktoken:{ranks}")
    assert "".join(capfd.readouterr()) == ""  # Rust's own words about its panic


def test_text_that_makes_the_library_panic_later_is_refused_in_one_line(
    source, tmp_path: Path
) -> None:
    tree, path = json.loads(learned(source).definition), tmp_path / "slow.json"
    slow = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"}
    path.write_text(cut_before(tree, slow | {"invert": False}))
    tokenizer = named_tokenizer(str(path))
    assert_exact(tokenizer)
    text = tmp_path / "late.txt"
    text.write_bytes(TEXT * 12 + b"x" * 900 + TEXT)
    why = "cannot encode some text .*retry-limit-in-match over.*; name another tokenizer"
    late = ByteSource(str(text))
    with (
        TokenReader(late, len(late), tokenizer, threads=2) as reader,
        pytest.raises(UserError, match=why),
    ):
        reader.gather(np.array([0, 12 * len(TEXT) - 9]), 50)


def test_files_that_cannot_be_used_are_refused_in_one_line(source, tmp_path: Path) -> None:
    tree = json.loads(learned(source).definition)
    lower = tmp_path / "lower.json"
    lower.write_text(json.dumps(tree | {"normalizer": {"type": "Lowercase"}}))
    assert "changes text" in refused(str(lower))
    words = tmp_path / "words.json"
    words.write_text(
        json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}}, "added_tokens": []})
    )
    assert "neither byte-level nor with tokens for single bytes" in refused(str(words))
    few = tmp_path / "few.json"
    vocab = {token: n for token, n in tree["model"]["vocab"].items() if n > 5}
    few.write_text(json.dumps(tree | {"model": tree["model"] | {"vocab": vocab, "merges": []}}))
    assert "has no token for the byte 0x00" in refused(str(few))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "no tokenizer.json of Hugging Face's tokenizers" in refused(str(broken))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xff")
    assert "not text" in refused(str(binary))
    missing = refused(str(tmp_path / "missing.json"))
    assert "no such file as" in missing
    assert "missing.json; name a tokenizer.json, tiktoken:<name>, bpe" in missing


def test_a_tokenizer_that_writes_other_bytes_is_refused_wherever_it_does(
    source, tmp_path: Path
) -> None:
    tree = json.loads(learned(source).definition)
    spaced = tmp_path / "spaced.json"
    pre = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    spaced.write_text(json.dumps(tree | {"pre_tokenizer": pre}))
    assert "changes text" in refused(str(spaced))
    replaced = tmp_path / "replaced.json"
    other = {"type": "Replace", "pattern": {"String": "~"}, "content": "-"}
    replaced.write_text(json.dumps(tree | {"normalizer": other}))
    tokenizer = named_tokenizer(str(replaced))
    with pytest.raises(UserError, match="changes text"):
        tokenizer.encode(b"a ~ of as many bytes")


def test_a_folders_file_that_was_written_anew_is_read_anew(source, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for size in (290, 300):
        path.write_text(learned(source, size).definition)
        os.utime(path, ns=(size, size))
        assert named_tokenizer(str(tmp_path)).vocab_size == size


@pytest.mark.parametrize("part", ["ranks", "pattern", "special_tokens"])
def test_a_damaged_definition_of_tiktoken_is_one_line(part, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    ranks = ranks_file(tmp_path / "tiny.tiktoken")
    tree = json.loads(named_tokenizer(f"tiktoken:{ranks}").definition)
    del tree[part]
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(tree))
    assert "no definition of an encoding of tiktoken" in refused(str(path))


def test_a_missing_package_says_what_to_type(source, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = learned(source).definition
    for name in ("tokenizers", "tiktoken"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"type pip install 'elman\[tokens\]'"):
        hugging_face.tokenizer_of_json(definition, "name", "here")
    with pytest.raises(UserError, match=r"type pip install 'elman\[tokens\]'"):
        tiktoken_ranks.tokenizer_of_tiktoken("gpt2", "here")


def ranks_file(path: Path) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + [b"le", b"ft", b"left", b" left"]
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_file_of_tiktoken_is_exact_and_its_definition_is_enough(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    path = ranks_file(tmp_path / "p50k_base.tiktoken")
    tokenizer = named_tokenizer(f"tiktoken:{path}")
    assert tokenizer.vocab_size == 260
    assert tokenizer.kind == "tiktoken"
    assert tokenizer.encode(b"left left").tolist() == [258, 259]
    assert_exact(tokenizer)
    kept = tmp_path / "tokenizer.json"
    kept.write_text(tokenizer.definition)
    assert named_tokenizer(str(kept)).fingerprint == tokenizer.fingerprint


def test_names_and_files_that_tiktoken_does_not_know_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    assert "no such file, and no encoding of tiktoken (did you mean p50k_base?)" in refused(
        "tiktoken:p50k_bas"
    )
    broken = tmp_path / "broken.tiktoken"
    broken.write_text("a b c\n")
    assert "no file of tiktoken" in refused(f"tiktoken:{broken}")

    def offline(name: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    assert "needs the internet once, or a file" in refused("tiktoken:p50k_base")


def test_the_data_of_a_run_has_its_tokenizer_and_says_what_it_is(source) -> None:
    config = DataConfig(
        path=source.paths[0], tokenizer="bpe", vocab_size=300, val_window=64, val_bytes=640
    )
    with open_text(config, 16, lambda line: None) as data:
        assert data.tokenizer is not None
        described = data.describe()["tokenizer"]
        assert described["vocab_size"] == 300
        assert described["bytes_per_token"] > 2
        assert data.identity()["tokenizer"] == data.tokenizer.fingerprint
    assert os.listdir(Path(os.environ["ELMAN_CACHE"]) / "data")[0].startswith("bpe-300-")
