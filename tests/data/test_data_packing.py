"""Packing into the cache: once, whole or not at all, by one process at a time, going on."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from elman.base.errors import UserError
from elman.base.live_line import PROGRESS_VARIABLE
from elman.data import opening, pack_check, packing
from elman.data.files import ByteSource, same_bytes
from elman.data.opening import open_source
from elman.data.text import check_data, open_data
from elman.doctor.findings import Mark
from elman.doctor.packs import packed_data
from elman.sections.training import DataConfig

PARTS = [b"first " * 20_000, b"second " * 20_000, b"third " * 20_000]
WHOLE = b"".join(PARTS)
PACK = ["checked.json", "lock", "pack.json", "text"]


@pytest.fixture
def shards(tmp_path: Path, pack_cache: Path) -> str:
    """Three compressed files, as a glob."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, part in enumerate(PARTS):
        (folder / f"{number}.txt.gz").write_bytes(gzip.compress(part))
    return str(folder / "*.gz")


def text_of(names: str) -> bytes:
    with open_source(names) as source:
        return source.read(0, len(source)).tobytes()


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_packed_once_and_said_once(
    shards: str, pack_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text_of(shards) == WHOLE
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(
        f"elman: packing data.path={shards[:-4]}0.txt.gz and 2 more (0.7 kB) into "
    )
    assert said[1].startswith("elman: packed: 380,000 bytes of text in ")
    (folder,) = pack_cache.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == PACK
    inode = (folder / "text").stat().st_ino
    assert text_of(shards) == WHOLE
    assert (folder / "text").stat().st_ino == inode
    assert capsys.readouterr().err == ""


def test_the_description_says_what_was_packed(shards: str) -> None:
    with open_source(shards) as source:
        described = source.describe()
    packed = described["packed"]
    assert described["paths"] == [f"{shards[:-4]}{number}.txt.gz" for number in range(3)]
    assert described["sha256"] == hashlib.sha256(WHOLE).hexdigest()
    assert (packed["files"], packed["documents"], packed["field"]) == (3, 0, None)
    first = Path(described["paths"][0])
    assert packed["sources"][0] == {
        "path": str(first),
        "bytes": first.stat().st_size,
        "modified_ns": first.stat().st_mtime_ns,
        "compression": "gz",
        "content": "raw",
    }
    assert Path(packed["file"]).read_bytes() == WHOLE


def test_a_file_that_changed_is_packed_anew(shards: str) -> None:
    assert text_of(shards) == WHOLE
    Path(shards[:-4], "1.txt.gz").write_bytes(gzip.compress(b"other"))
    assert text_of(shards) == PARTS[0] + b"other" + PARTS[2]


@pytest.mark.parametrize("damage", ["shorter", "other", "no record", "broken record"])
def test_a_damaged_pack_is_made_again(shards: str, pack_cache: Path, damage: str) -> None:
    assert text_of(shards) == WHOLE
    (folder,) = pack_cache.iterdir()
    text, record = folder / "text", folder / "pack.json"
    if damage == "shorter":
        os.truncate(text, 1000)
    elif damage == "other":
        text.write_bytes(WHOLE[:-1] + b"?")
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text(record.read_text()[:50])
    assert text_of(shards) == WHOLE


def zeroed(text: Path, place: int, keep_time: bool) -> None:
    """Set 400 bytes of a file to zero."""
    before = text.stat()
    with text.open("r+b") as stream:
        stream.seek(place)
        stream.write(bytes(400))
    if keep_time:
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def large(tmp_path: Path, pack_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A compressed text of 12 MiB, between whose samples lie gaps; it counts as large."""
    monkeypatch.setattr(pack_check, "CHEAP_BYTES", 2**20)
    path = tmp_path / "large.txt.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(12 * 2**20), 1))
    return str(path)


@pytest.mark.parametrize("keep_time", [True, False])
@pytest.mark.parametrize("forget", [True, False], ids=["another process", "this process"])
def test_zeros_in_a_large_pack_are_seen_though_no_sample_has_them(
    large: str,
    pack_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    keep_time: bool,
    forget: bool,
) -> None:
    whole = text_of(large)
    (folder,) = pack_cache.iterdir()
    zeroed(folder / "text", 6300, keep_time)
    if forget:
        monkeypatch.setattr(pack_check, "_read", {})
    capsys.readouterr()
    assert text_of(large) == whole
    said = capsys.readouterr().err
    assert "once to check it: it may have changed since it was packed" in said
    assert "what was packed there before is damaged, and is made again" in said


def test_a_small_pack_is_read_whole_in_each_process(
    large: str, pack_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text_of(large)
    (folder,) = pack_cache.iterdir()
    zeroed(folder / "text", 6300, keep_time=True)
    monkeypatch.setattr(pack_check, "CHEAP_BYTES", 2**26)
    monkeypatch.setattr(pack_check, "_read", {})
    # As if the disk had lost the bytes: no time of the file has changed.
    (folder / "checked.json").write_text(json.dumps(pack_check._state_of(str(folder / "text"))))
    assert text_of(large) == whole


def test_a_large_pack_is_read_whole_only_after_a_change(
    large: str, pack_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_of(large)
    monkeypatch.setattr(pack_check, "_read", {})
    monkeypatch.setattr(ByteSource, "whole_hash", lambda source: pytest.fail("read whole"))
    with open_source(large) as source:
        assert len(source) == 12 * 2**20


def test_the_doctor_reads_every_pack_whole(large: str, pack_cache: Path) -> None:
    text_of(large)
    (ok,) = packed_data(lambda folder: None)
    assert (ok.mark, ok.found) == (Mark.OK, "12.6 MB in 1 pack, all read")
    (folder,) = pack_cache.iterdir()
    zeroed(folder / "text", 6300, keep_time=True)
    (broken,) = packed_data(lambda folder: None)
    assert broken.mark == Mark.BROKEN
    assert "its bytes have changed" in broken.found
    assert broken.mend == f"rm -r {folder}"
    (folder / "pack.json").write_text("{")
    assert "its record cannot be read" in packed_data(lambda folder: None)[0].found


# Ends by SIGKILL in the middle of the third file, having saved after each whole one.
KILLED = """
import os, signal, sys
from elman.data import packing
packing._STATE_SECONDS = -1
add = packing._Packing._add
def add_or_die(self, out, piece, separate):
    add(self, out, piece, separate)
    if self._state.files == 2:
        out._out.flush()
        os.kill(os.getpid(), signal.SIGKILL)
packing._Packing._add = add_or_die
from elman.data.opening import open_source
open_source(sys.argv[1])
"""


def killed_half_way(shards: str, pack_cache: Path) -> Path:
    """Return the folder of a pack whose maker was killed."""
    assert process(KILLED, shards).wait(60) == -signal.SIGKILL
    (folder,) = pack_cache.iterdir()
    assert (folder / "text.part").stat().st_size > len(PARTS[0] + PARTS[1])
    assert not (folder / "text").exists()
    return folder


def test_a_killed_process_is_gone_on_from_behind_its_last_whole_file(
    shards: str,
    pack_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = killed_half_way(shards, pack_cache)
    added: list[int] = []
    add = packing._Packing._add

    def counted(self: Any, out: Any, piece: Any, separate: bool) -> None:
        added.append(len(piece.data))
        add(self, out, piece, separate)

    monkeypatch.setattr(packing._Packing, "_add", counted)
    assert text_of(shards) == WHOLE
    assert "continuing after 2 of 3 files, packed before" in capsys.readouterr().err
    assert sum(added) == len(PARTS[2])
    assert sorted(path.name for path in folder.iterdir()) == PACK


@pytest.mark.parametrize("place", [0, 130_000])
def test_what_a_killed_process_left_is_not_believed_unread(
    shards: str, pack_cache: Path, place: int
) -> None:
    part = killed_half_way(shards, pack_cache) / "text.part"
    with part.open("r+b") as file:
        file.seek(place)
        file.write(b"?")
    assert text_of(shards) == WHOLE


def test_documents_are_joined_across_a_kill(tmp_path: Path, pack_cache: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": f"document {number}"}))
    names = str(tmp_path / "*.jsonl")
    assert process(KILLED, names).wait(60) == -signal.SIGKILL
    assert text_of(names) == b"document 0\x1edocument 1\x1edocument 2"


def test_an_interrupted_process_says_what_it_kept(shards: str, tmp_path: Path) -> None:
    code = KILLED.replace("signal.SIGKILL", "signal.SIGINT")
    code = code.replace("open_source(sys.argv[1])", "from elman.cli.main import main")
    running = process(code + "sys.exit(main(sys.argv[2:]))", "", f"data.path={shards}")
    errors = running.communicate(timeout=180)[1].splitlines()
    assert running.returncode == 130
    assert errors[-2].endswith("2 of 3 files are packed; the same command continues after them")
    assert errors[-1] == "elman: interrupted"


# Packs nothing before a file says so.
HELD = """
import os, sys, time
from elman.data import packing
add = packing._Packing._add
def add_later(self, *arguments):
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    add(self, *arguments)
packing._Packing._add = add_later
from elman.data.opening import open_source
print(open_source(sys.argv[1]).paths[0])
"""


def test_of_two_processes_one_packs_and_the_other_waits_and_says_so(
    shards: str, pack_cache: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = process(HELD, shards, str(go))
    while not list(pack_cache.glob("*/text.part")):
        time.sleep(0.02)
        assert first.poll() is None
    second = process(HELD, shards, str(go))
    assert second.stderr is not None
    label = f"data.path={shards[:-4]}0.txt.gz and 2 more"
    assert second.stderr.readline() == (
        f"elman: another process is packing {label}: waiting for it ...\n"
    )
    go.touch()
    (out, said), (other_out, other_said) = first.communicate(timeout=180), second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    assert out == other_out
    assert "elman: packing " in said
    assert other_said == ""


def test_a_long_wait_is_not_silent(
    shards: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elman.base.live_line._FIRST_SECONDS", 0.0)
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    assert text_of(shards) == WHOLE
    said = [line for line in capsys.readouterr().err.splitlines() if "% of" in line]
    assert said
    assert all(re.match(r"elman: packing: .* \d+\.\d [kMG]B/s", line) for line in said)


def test_error_line_of_too_little_space_before_anything_is_written(
    shards: str, pack_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        packing.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 300_000)
    )
    with pytest.raises(UserError) as caught:
        open_source(shards)
    (folder,) = pack_cache.iterdir()
    line = re.sub(r"3[78]\d\.\d kB", "380 kB", str(caught.value))  # an estimate
    assert line == (
        f"data.path={shards[:-4]}0.txt.gz and 2 more: packed it takes about 380 kB, but only "
        f"300.0 kB are free for {folder}; set ELMAN_CACHE to a folder on a larger disk"
    )
    assert [path.name for path in folder.iterdir()] == ["lock"]


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
from elman.cli.main import main
sys.exit(main([f"data.path={sys.argv[1]}"]))
"""


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(shards: str, pack_cache: Path) -> None:
    running = process(FULL, shards)
    line = running.communicate(timeout=180)[1].splitlines()[-1]
    assert running.returncode == 2
    assert line.startswith("elman: error: data.path=")
    assert ": cannot pack it (File too large: " in line
    assert line.endswith("; set ELMAN_CACHE to a folder that can be written and has space")
    assert [path.name for path in pack_cache.glob("*/*")] == ["lock"]


def test_error_line_of_a_cache_that_cannot_be_written(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot pack it \(Not a directory: .*ELMAN_CACHE"):
        open_source(shards)


def test_error_line_of_a_file_that_is_written_to_while_it_is_packed(
    shards: str, monkeypatch: pytest.MonkeyPatch, pack_cache: Path
) -> None:
    add = packing._Packing._add

    def add_and_touch(self: Any, out: Any, piece: Any, separate: bool) -> None:
        os.utime(f"{shards[:-4]}1.txt.gz")
        add(self, out, piece, separate)

    monkeypatch.setattr(packing._Packing, "_add", add_and_touch)
    with pytest.raises(UserError, match=r"1\.txt\.gz: changed while it was packed"):
        open_source(shards)
    assert [path.name for path in pack_cache.glob("*/*")] == ["lock"]


def test_more_files_than_may_be_open_are_packed_to_the_same_bytes(
    tmp_path: Path, pack_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number}.txt").write_bytes(b"text %d " % number)
    with open_source(f"{folder}/*") as source:
        few = source.describe()
        assert "packed" not in few
    monkeypatch.setattr(opening, "may_hold_open", lambda n_files: n_files < 200)
    with open_source(f"{folder}/*") as source:
        many = source.describe()
    assert "because they are too many to hold open" in capsys.readouterr().err
    assert many["packed"]["files"] == 300
    assert {key: many[key] for key in few} == few


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from elman.data.opening import open_source
source = open_source(sys.argv[1])
print(len(source), len(source.describe()["paths"]))
"""


def test_files_over_the_hard_limit_on_descriptors_are_packed(
    tmp_path: Path, pack_cache: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(1500):
        (folder / f"{number}.txt").write_bytes(b"x")
    assert process(LIMITED, f"{folder}/*").communicate(timeout=180)[0] == "1500 1000\n"


def test_a_dry_check_packs_nothing_and_refuses_what_it_can(
    shards: str, pack_cache: Path, tmp_path: Path
) -> None:
    check_data(DataConfig(path=shards), 10**9, may_pack=False)
    assert not pack_cache.exists()
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="a zip archive"):
        check_data(DataConfig(path=str(tmp_path / "a.zip")), 8, may_pack=False)
    text_of(shards)
    with pytest.raises(UserError, match=r"380000 bytes, but train\.chunk_size=1000000000"):
        check_data(DataConfig(path=shards), 10**9, may_pack=False)


def test_the_tail_of_packed_data_is_held_out(shards: str) -> None:
    with open_data(DataConfig(path=shards, val_bytes=5000), 16, print) as data:
        held_out = data.source.read(data.train_bytes, data.val_bytes).tobytes()
    assert held_out == WHOLE[-5000:]


# ------------------------------------------------------------------ identity


def identity(source: ByteSource) -> dict[str, Any]:
    return source.describe() | {"train_bytes": 7}


def test_packed_and_raw_bytes_are_the_same_data(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw.txt").write_bytes(WHOLE)
    (tmp_path / "other.txt").write_bytes(WHOLE[:-1] + b"?")
    for number, part in enumerate(PARTS):
        (tmp_path / f"part{number}").write_bytes(part)
    names = [shards, str(tmp_path / "raw.txt"), str(tmp_path / "part*")]

    def compare() -> None:
        with open_source(str(tmp_path / "other.txt")) as source:
            other = identity(source)
        found = []
        for name in names:
            with open_source(name) as source:
                found.append(identity(source))
        for one in found:
            assert all(same_bytes(one, another) for another in found)
            assert not same_bytes(one, other)
            assert not same_bytes(one, found[0] | {"train_bytes": 8})

    compare()
    # As if they were too many to hash: then those that lie where they are have samples only.
    monkeypatch.setattr("elman.data.files.FULL_HASH_LIMIT", 1000)
    monkeypatch.setattr("elman.data.files.SAMPLE_BLOCK", 1000)
    compare()


def test_training_on_compressed_lines_by_the_command_line(tmp_path: Path) -> None:
    documents = [f"def f{number}(x): return x\n" for number in range(500)]
    lines = "\n".join(json.dumps({"text": document}) for document in documents).encode()
    sample = tmp_path / "sample.jsonl.zst"
    sample.write_bytes(zstandard.ZstdCompressor().compress(lines))
    tiny = ["model=gru", "model.dim=128", "model.depth=1", "train.steps=3", "train.batch_size=2"]
    tiny += [
        "train.chunk_size=16",
        "data.val_window=16",
        "data.val_sample=64",
        "optim.warmup_steps=1",
        "kernels.backend=torch",  # the cache of this test has no kernels
        "optim=adamw",
    ]
    arguments = [*tiny, f"data.path={sample}", f"hydra.run.dir={tmp_path / 'run'}"]
    code = "import sys; from elman.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"ELMAN_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("elman: packing ") == 1
    data = json.loads((tmp_path / "run" / "result.json").read_text())["data"]
    assert data["sha256"] == hashlib.sha256("\x1e".join(documents).encode()).hexdigest()
    assert data["packed"]["documents"] == 500
    assert f"bytes of {sample}, packed in {data['packed']['file']}" in done.stdout


def test_a_run_goes_on_with_the_same_bytes_under_another_name(
    train: Any, text_file: Path, tmp_path: Path, pack_cache: Path
) -> None:
    compressed = tmp_path / "text.gz"
    compressed.write_bytes(gzip.compress(text_file.read_bytes()))
    plain = ("kernels.backend=reference", "optim=adamw")  # the cache of this test has no kernels
    run = train(f"data.path={compressed}", *plain)
    again = train("train.steps=9", f"train.resume={run.folder}", *plain)
    assert again.result["steps"] == 9
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(text_file.read_bytes()[:-1] + b"?"))
    with pytest.raises(UserError, match=r"other\.gz differs from the data that"):
        train("train.steps=12", f"train.resume={run.folder}", f"data.path={other}", *plain)


def test_a_dry_sweep_packs_nothing(shards: str, pack_cache: Path) -> None:
    code = "import sys; from elman.cli.main import main; sys.exit(main(sys.argv[1:]))"
    planned = process(code, "-m", f"data.path={shards}", "train.seed=1,2", "sweep.dry_run=true")
    out, errors = planned.communicate(timeout=180)
    assert planned.returncode == 0, errors
    assert out.count("hydra.mode=RUN") == 2, out
    assert not pack_cache.exists()
