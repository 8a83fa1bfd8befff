"""Which files of a folder or glob are trained on, which are held out, and which are left."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elman.base.errors import UserError
from elman.data.choosing import chosen_line
from elman.data.opening import open_source
from elman.data.splits import split_of
from elman.data.text import Data, check_data, open_text
from elman.sections.training import DataConfig

pytestmark = pytest.mark.usefixtures("pack_cache")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; its own path has a word of every split."""
    place = tmp_path / "train-test-val" / "test"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    return place


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write(files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)


def opened(
    path: str | list[str] | None = None, val_path: str | list[str] | None = None, **more: object
) -> Data:
    settings = {"val_window": 1, "val_bytes": None} | more
    config = DataConfig.model_validate({"path": path, "val_path": val_path} | settings)
    return open_text(config, 1, lambda line: None)


def texts(data: Data) -> tuple[bytes, bytes]:
    """Return the training text and the held-out text."""
    whole = data.source.read(0, len(data.source)).tobytes()
    return whole[: data.train_bytes], whole[data.train_bytes :]


def refused(path: str | list[str], val_path: str | list[str] | None = None, **more: object) -> str:
    with pytest.raises(UserError) as caught:
        opened(path, val_path, **more).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("train-00000-of-00001.parquet", "train"),
        ("test.jsonl", "test"),
        ("test-00000-of-00001.parquet", "test"),
        ("TEST.txt", "test"),
        ("my_test1.csv", "test"),
        ("data/test/0.txt", "test"),
        ("test/train.txt", "test"),
        ("train/test.txt", "test"),
        ("validation/train.txt", "validation"),
        ("wiki.valid.tokens", "validation"),
        ("val-1.txt", "validation"),
        ("dev.json", "validation"),
        ("eval.json", "test"),
        ("train-test-split/train.txt", "train"),
        ("train-test-split/a.txt", None),
        ("latest.txt", None),
        ("testimony.txt", None),
        ("contest.txt", None),
        ("device.txt", None),
        ("value.txt", None),
        ("valley/trainer.txt", None),
        ("protest\u00e9.txt", None),
    ],
)
def test_a_split_is_a_word_of_a_name(name: str, split: str | None) -> None:
    assert split_of(name.split("/")) == split


DATA_SET = {
    "train-00000-of-00002.jsonl": lines("train one"),
    "train-00001-of-00002.jsonl": lines("train two"),
    "validation-00000-of-00001.jsonl": lines("held out"),
    "test-00000-of-00001.jsonl": lines("tested"),
    "README.md": b"# A card of the data set, which is longer than the texts" * 100,
    "dataset_infos.json": b'{"splits": ["train"]}',
    ".gitattributes": b"*.jsonl lfs",
    ".cache/x.jsonl": lines("cached"),
    "LICENSE": b"Do what you like",
    "train.jsonl.lock": b"1",
    "notes.csv": b"a,b",
}


@pytest.mark.parametrize("path", ["set", "set/", "set/**/*", ["set"], "{here}/set"])
def test_a_data_set_trains_on_its_training_split_alone(folder: Path, path: str | list[str]) -> None:
    write({f"set/{name}": content for name, content in DATA_SET.items()})
    named = path.format(here=folder) if isinstance(path, str) else path
    with opened(named) as data:
        assert texts(data) == (b"train one\x1etrain two", b"held out")
        said, described = chosen_line(data.chosen), data.describe()
    assert said == (
        "training on train-00000-of-00002.jsonl, train-00001-of-00002.jsonl; "
        "validating on validation-00000-of-00001.jsonl; "
        "left: .cache, .gitattributes (hidden), "
        "LICENSE, README.md, dataset_infos.json and 1 more (beside the data), "
        "notes.csv (another kind of file), test-00000-of-00001.jsonl (a test split)"
    )
    left = {Path(one["path"]).name for one in described["left"]}
    assert left == {Path(name).parts[0] for name in DATA_SET} - {
        Path(path).name for path in [*described["paths"], *described["held_out"]["paths"]]
    }


def test_splits_in_folders_and_compressed_parquet(folder: Path) -> None:
    write(
        {f"set/data/{split}/0.jsonl.gz": gzip.compress(lines(split)) for split in ("train", "dev")}
    )
    write({"set/data/test/0.jsonl.gz": gzip.compress(lines("test"))})
    with opened("set") as data:
        assert texts(data) == (b"train", b"dev")
    for split in ("train", "valid", "test"):
        pq.write_table(pa.table({"text": [split]}), f"{split}-00000-of-00001.parquet")
    with opened("*.parquet") as data:
        assert texts(data) == (b"train", b"valid")


def test_what_the_user_names_itself_is_read(folder: Path) -> None:
    write({"test.txt": b"test text", "val/a.txt": b"validation", "README.md": b"read me"})
    for path in ("test.txt", "val", "README.md", "REA*", "val/*.txt"):
        with opened(path) as data:
            assert data.chosen.held_out == data.chosen.left == ()
    with opened(["test.txt", "val/a.txt"]) as data:
        assert b"".join(texts(data)) == b"test textvalidation"


def test_the_prevailing_kind_is_that_of_each_name(folder: Path) -> None:
    write(
        {"a.txt": b"text " * 9, "b.md": b"markdown", "c.py": b"code1", "d.c": b"code2", "e": b"?"}
    )
    write({"picture.txt": b"\x89PNG\r\n\x1a\n" + bytes(1000)})
    with opened("*") as data:
        assert b"".join(texts(data)) == b"text " * 9 + b"?"
        assert chosen_line(data.chosen) == (
            "training on a.txt, e; left: picture.txt, b.md, c.py and 1 more (another kind of file)"
        )
    with opened(["*.txt", "*.md", "[cd].*"]) as data:
        assert b"".join(texts(data)) == b"text " * 9 + b"markdowncode1code2"
    with opened("*", format="text") as data:
        assert len(data.source) == 45 + 8 + 10 + 1
    with opened("*", format="raw") as data:
        assert len(data.source) == 45 + 8 + 10 + 1 + 1008
    assert refused("*.txt", format="parquet").endswith(
        "it does not begin like Parquet; drop data.format"
    )


def test_parts_of_one_text_need_no_ending_in_common(folder: Path) -> None:
    write({f"book.{ending}": b"12345" for ending in ("aa", "ab", "003", "old")})
    with opened("book.*") as data:
        assert len(data.source) == 20


def test_a_folder_holds_its_own_outputs_without_harm(folder: Path) -> None:
    write({"a.txt": b"some text", "outputs/2026-01-31/run/.hydra/config.yaml": b"a: 1"})
    write({"outputs/2026-01-31/run/train.log": b"a log of training " * 100})
    write(
        {
            "outputs/2026-01-31/sweep/sweep.json": b"{}",
            "outputs/x/.lock": b"",
            "outputs/x/train.log": b"log",
        }
    )
    with opened(".") as data:
        assert b"".join(texts(data)) == b"some text"
        assert chosen_line(data.chosen).endswith("left: run, sweep, x (a run of elman)")


@pytest.mark.parametrize("path", ["test*", "**/test*", "set/*", "val*"])
def test_a_glob_of_no_training_text_is_refused_with_what_to_type(folder: Path, path: str) -> None:
    for name in ("test-1.txt", "set/test.txt", "set/dev.txt", "val.txt"):
        write({name: b"text of it"})
    line = refused(path)
    assert line.startswith(f"data.path={path}: matches only files named ")
    assert "which are not trained on; name the files themselves to do so, as in " in line
    example = line.rpartition("data.path=")[2]
    with opened(example) as data:
        assert len(data.source) == os.stat(example).st_size


def test_a_validation_path_is_held_out_and_never_trained_on(folder: Path) -> None:
    write({"a.txt": b"aaa", "b.txt": b"bb", "c.txt": b"cccc", "val.txt": b"other"})
    with opened(".", "b.txt") as data:
        assert texts(data) == (b"aaacccc", b"bb")
        assert chosen_line(data.chosen).endswith(
            "left: val.txt (a validation split, and data.val_path names another)"
        )
        described = data.describe()
    assert described["paths"] == [str(folder / "a.txt"), str(folder / "c.txt")]
    assert described["held_out"]["paths"] == [str(folder / "b.txt")]
    assert (described["train_bytes"], described["val_bytes"]) == (7, 2)
    with opened(["a.txt"], ["b*", "c.txt"]) as data:
        assert texts(data) == (b"aaa", b"bbcccc")
    with opened(None, "b.txt") as data:
        assert texts(data)[1] == b"bb"
        assert data.train_bytes > 10**6


def test_a_validation_path_may_be_a_data_set_or_its_test_split(folder: Path) -> None:
    write({f"set/{name}": content for name, content in DATA_SET.items()})
    with opened("set", "set") as data:
        assert texts(data) == (b"train one\x1etrain two", b"held out")
    with opened("set", "set/test-*") as data:
        assert texts(data) == (b"train one\x1etrain two", b"tested")
        assert "test-00000-of-00001.jsonl (a test" not in chosen_line(data.chosen)
    write({"other/train.txt": b"train", "other/test.txt": b"test"})
    assert refused("set", "other").startswith(
        "data.val_path=other: no file there is named validation, valid, val or dev; name the files"
    )


def test_what_is_both_trained_on_and_held_out_is_refused(folder: Path) -> None:
    write({"a.txt": b"aaa", "b.txt": b"bbb"})
    os.link("a.txt", "link.txt")
    assert refused(["a.txt", "b.txt"], "link.txt") == (
        f"data.val_path={folder}/a.txt: data.path names it, too, so the run would train on what it "
        f"validates on; name another file"
    )
    assert refused("[ab].txt", "*.txt").endswith(
        "data.val_path holds all of its files out; name files to train on"
    )
    with pytest.raises(ValueError, match=r"data\.val_bytes=5: not read with data.val_path, whose"):
        opened("a.txt", "b.txt", val_bytes=5)
    write({"set/train.txt": b"train", "set/val.txt": b"val"})
    assert refused("set", val_bytes=5).startswith(
        "data.val_bytes=5: not read, because whole files are held out (training on train.txt; val"
    )


def test_too_little_text_is_refused_for_each_part(folder: Path) -> None:
    write({"set/train.txt": b"train", "set/val.txt": b"val"})
    assert refused("set", val_window=3) == (
        f"data.path={folder}/set/val.txt: 3 bytes to validate on, but data.val_window=3 needs at "
        f"least 4; set data.val_window=2 or less, or name more text"
    )
    config = DataConfig(path="set", val_window=2)
    with pytest.raises(
        UserError, match=r"5 bytes to train on, but train\.chunk_size=5 needs at lea"
    ):
        check_data(config, 5, may_pack=False)


def test_the_hash_covers_both_parts_and_each_part_has_its_own(folder: Path) -> None:
    write({"a.txt": b"aaa", "b.txt": b"bbb", "c.jsonl": lines("bbb"), "d.txt": b"bbd"})

    def identity(val_path: str) -> dict[str, str | int | None]:
        with opened("a.txt", val_path) as data:
            return data.identity()

    assert identity("b.txt") == identity("c.jsonl")
    assert identity("b.txt") != identity("d.txt")
    with opened("a.txt", "c.jsonl") as data, open_source("a.txt") as alone:
        described, expected = data.describe(), alone.describe()
        assert described["train"]["sha256"] == expected["sha256"]
        assert described["held_out"]["packed"]["documents"] == 1


def test_rows_of_parts_are_read_across_files(folder: Path) -> None:
    write({"a.txt": b"abcdef", "b.txt": b"ghi", "v.txt": b"xyz"})
    with opened(["a.txt", "b.txt"], "v.txt") as data:
        rows = data.source.gather(np.array([0, 4, 9]), 3)
        assert [row.tobytes() for row in rows] == [b"abc", b"efg", b"xyz"]


def saved_set(place: str, texts_: Sequence[str], files: int = 1) -> None:
    """Write what ``Dataset.save_to_disk`` of the package datasets writes."""
    Path(place).mkdir(parents=True)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    for name in [*names, "cache-0123456789abcdef.arrow"]:
        table = pa.table({"text": [f"{text} {name[5:10]}" for text in texts_]})
        with (
            pa.OSFile(f"{place}/{name}", "wb") as out,
            pa.ipc.new_stream(out, table.schema) as writer,
        ):
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "test"}
    write({f"{place}/state.json": json.dumps(state).encode(), f"{place}/dataset_info.json": b"{}"})


def test_what_save_to_disk_wrote_is_read(folder: Path) -> None:
    saved_set("one", ["a", "b"], files=2)
    with opened("one") as data:
        assert b"".join(texts(data)) == b"a 00000\x1eb 00000\x1ea 00001\x1eb 00001"
    for split in ("train", "validation", "test"):
        saved_set(f"all/{split}", [split])
    write({"all/dataset_dict.json": b'{"splits": ["train", "validation", "test"]}'})
    with opened("all") as data:
        assert texts(data) == (b"train 00000", b"validation 00000")
    with opened("all/test", "all/train") as data:
        assert texts(data) == (b"test 00000", b"train 00000")
    (folder / "one" / "data-00001-of-00002.arrow").unlink()
    assert refused("one").endswith(
        "state.json: lists data-00001-of-00002.arrow, which is missing; copy the folder again"
    )


def test_to_score_a_name_holds_one_split(folder: Path) -> None:
    write({f"set/{name}": content for name, content in DATA_SET.items()})
    with open_source("set/test*", setting="eval.path") as source:
        assert source.read(0, len(source)).tobytes() == b"tested"
    with pytest.raises(UserError) as caught:
        open_source("set", setting="eval.path")
    assert str(caught.value) == (
        "eval.path=set: holds the splits test, train, validation; name one of them, as in "
        "eval.path=set/test-00000-of-00001.jsonl"
    )


@pytest.mark.parametrize(
    "name", ["a,b.txt", "a=b.txt", "{x}.txt", "line\nbreak.txt", "[x].txt", "*"]
)
def test_names_with_odd_characters_are_names(folder: Path, name: str) -> None:
    write({f"set/{name}": b"some text", "set/zzz.txt": b"" if name != "*" else b"other"})
    with opened(f"set/{name}") as data:
        assert b"".join(texts(data)) == b"some text"


def test_a_path_that_is_not_utf8_is_read(folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    write({f"set/{name}": lines("some text")})
    for path in ("set", f"set/{name}"):
        with opened(path) as data:
            assert b"".join(texts(data)) == b"some text"


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\0"])
def test_a_text_of_blanks_or_zeros_is_refused(folder: Path, blank: bytes) -> None:
    write({"a.txt": blank * 3_000_000, "b.txt": blank * 3_000_000 + b"x"})
    assert refused("a.txt").startswith(
        f"data.path={folder}/a.txt: holds nothing but blanks or zeros; name files that hold text"
    )
    with opened("b.txt"), opened("a.txt", format="raw"):
        pass
