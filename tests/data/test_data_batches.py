"""Batches: where rows may lie, that a resumed run reads on exactly, and that tails stay unseen."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import UserError
from elman.data import text as text_module
from elman.data.batches import Batches, RandomBatches, StreamBatches
from elman.data.files import Bytes, ByteSource, Offsets
from elman.data.text import Data, open_data
from elman.data.windows import (
    contiguous_chunks,
    scoring_batches,
    validation_batches,
    validation_windows,
)
from elman.sections.training import DataConfig
from tests.properties import examples

KINDS = [pytest.param(RandomBatches, id="random"), pytest.param(StreamBatches, id="streams")]


class CountingSource(ByteSource):
    """A text whose windows are their own offsets' low bytes, of any size, without a file."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.setting = "data.path"
        self.paths = ("counted",)
        self.offsets: list[int] = []

    def __len__(self) -> int:
        return self._size

    def gather(self, offsets_b: Offsets, length: int) -> Bytes:
        assert offsets_b.min() >= 0
        assert offsets_b.max() + length <= self._size
        self.offsets += offsets_b.tolist()
        places_bn: Offsets = offsets_b[:, None] + np.arange(length)
        return places_bn.astype(np.uint8)

    def read(self, offset: int, length: int) -> Bytes:
        window_n: Bytes = self.gather(np.array([offset]), length)[0]
        return window_n


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Data]:
    """Data of so many random bytes in one file."""

    def build(size: int, chunk_size: int = 8, val_bytes: int | None = None) -> Data:
        path = tmp_path / "text.bin"
        path.write_bytes(np.random.default_rng(0).bytes(size))
        return open_data(
            DataConfig(path=str(path), val_bytes=val_bytes, val_window=chunk_size),
            chunk_size,
            print,
        )

    return build


@pytest.mark.parametrize(
    ("size", "val_bytes", "expected"),
    [
        pytest.param(1000, None, 50, id="5 percent"),
        pytest.param(40, None, 9, id="at least one row"),
        pytest.param(18, None, 9, id="two rows"),
        pytest.param(1000, 300, 300, id="as named"),
        pytest.param(100, 91, 91, id="as named, one row left"),
    ],
)
def test_held_out_tail(
    make: Callable[..., Data], size: int, val_bytes: int | None, expected: int
) -> None:
    with make(size, 8, val_bytes) as data:
        assert (data.train_bytes, data.val_bytes) == (size - expected, expected)
        assert data.describe()["train_bytes"] == size - expected
        assert data.describe()["val_bytes"] == expected
        assert data.describe()["bytes"] == size


def test_the_tail_holds_one_window_where_that_is_longer_than_a_row(tmp_path: Path) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(bytes(200))
    with open_data(DataConfig(path=str(path), format="raw", val_window=100), 8, print) as data:
        assert data.val_bytes == 101


def test_held_out_tail_is_at_most_4_mib(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, 2**30)
    with open_data(DataConfig(path=str(path), format="raw", val_window=8), 8, print) as data:
        assert data.val_bytes == 4 * 2**20


@pytest.mark.parametrize(
    ("size", "val_bytes", "line"),
    [
        pytest.param(
            17,
            None,
            "data.path={p}: 17 bytes, but train.chunk_size=8 and data.val_window=8 need at least "
            "18 (9 to train on, 9 held out); set both to 7 or less, or name more text",
            id="too short",
        ),
        pytest.param(
            3,
            None,
            "data.path={p}: 3 bytes, but train.chunk_size=8 and data.val_window=8 need at least 18 "
            "(9 to train on, 9 held out); name more text",
            id="too short for any chunk",
        ),
        pytest.param(
            100,
            8,
            "data.val_bytes=8: shorter than one row of data.val_window=8; "
            "set data.val_bytes=9 or more",
            id="tail too short",
        ),
        pytest.param(
            100,
            92,
            "data.path={p}: 100 bytes, and data.val_bytes=92 leaves 8 to train on, but "
            "train.chunk_size=8 needs 9; set data.val_bytes=91 or less, or name more text",
            id="tail too long",
        ),
        pytest.param(
            100,
            1000,
            "data.path={p}: 100 bytes, and data.val_bytes=1000 leaves 0 to train on, but "
            "train.chunk_size=8 needs 9; set data.val_bytes=91 or less, or name more text",
            id="tail longer than the text",
        ),
    ],
)
def test_error_line_of_too_little_text(
    make: Callable[..., Data], tmp_path: Path, size: int, val_bytes: int | None, line: str
) -> None:
    with pytest.raises(UserError) as caught:
        make(size, 8, val_bytes)
    assert str(caught.value) == line.replace("{p}", str(tmp_path / "text.bin"))


def test_error_line_of_several_files_names_the_first(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=rf"data\.path={tmp_path}/a and 2 more: 3 bytes, but"):
        open_data(DataConfig(path=str(tmp_path / "*"), val_window=8), 8, print)


def test_no_path_is_the_default_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "default.txt"
    text.write_bytes(bytes(100))
    said: list[str] = []

    def corpus(announce: Callable[[str], None]) -> Path:
        announce("building")
        return text

    monkeypatch.setattr(text_module, "default_corpus", corpus)
    with open_data(DataConfig(val_window=8), 8, said.append) as data:
        assert data.source.paths == (str(text),)
    assert said == ["building"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_train_part_of_one_row_has_one_place(
    make: Callable[..., Data], kind: type[Batches]
) -> None:
    with make(18) as data, kind(data, 1, 8, seed=0) as batches:
        for _ in range(5):
            assert batches.next().tolist() == [data.source.read(0, 9).tolist()]
            assert batches.restarted


def test_random_rows_are_uniform_over_every_valid_place() -> None:
    data = Data(CountingSource(100), train_bytes=24)
    with RandomBatches(data, 200, 4, seed=3) as batches:
        drawn = np.concatenate([batches.next() for _ in range(100)])
    assert (drawn == drawn[:, :1] + np.arange(5)).all()
    counts = np.bincount(drawn[:, 0])
    # 20 places, 1000 expected at each; a deviation of 5 sigma is 155.
    assert len(counts) == 20
    assert abs(counts - 1000).max() < 155


def test_random_rows_reach_beyond_32_bits() -> None:
    source = CountingSource(2**41)
    with RandomBatches(Data(source, 2**40), 1000, 512, seed=0) as batches:
        batches.next()
    assert max(source.offsets) > 0.99 * 2**40
    assert max(source.offsets) <= 2**40 - 513


@pytest.mark.parametrize("kind", KINDS)
@examples()
@given(
    chunk_size=st.integers(1, 20),
    batch_size=st.integers(1, 6),
    extra=st.integers(0, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_stay_out_of_the_held_out_tail(
    kind: type[Batches], chunk_size: int, batch_size: int, extra: int, seed: int
) -> None:
    train_bytes = batch_size * (chunk_size + 1) + extra
    source = CountingSource(train_bytes + 50)
    with kind(Data(source, train_bytes), batch_size, chunk_size, seed) as batches:
        for _ in range(30):
            assert batches.next().shape == (batch_size, chunk_size + 1)
    assert min(source.offsets) >= 0
    assert max(source.offsets) + chunk_size + 1 <= train_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_order(make: Callable[..., Data], kind: type[Batches]) -> None:
    def first_five(seed: int) -> bytes:
        with make(5000) as data, kind(data, 4, 8, seed) as batches:
            return b"".join(batches.next().tobytes() for _ in range(5))

    assert first_five(1) == first_five(1)
    assert first_five(1) != first_five(2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_saved_state_continues_with_the_very_next_batch(
    make: Callable[..., Data], tmp_path: Path, kind: type[Batches], taken: int
) -> None:
    def following(batches: Batches) -> list[tuple[bytes, bool]]:
        return [(batches.next().tobytes(), batches.restarted) for _ in range(40)]

    with make(1000) as data, kind(data, 3, 8, seed=5) as batches:
        for _ in range(taken):
            batches.next()
        torch.save(batches.state_dict(), tmp_path / "state.pt")
        expected = following(batches)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    with make(1000) as data, kind(data, 3, 8, seed=99) as resumed:
        resumed.next()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert following(resumed) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_is_read_ahead(kind: type[Batches]) -> None:
    class SignallingSource(CountingSource):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.reads = threading.Semaphore(0)

        def gather(self, offsets_b: Offsets, length: int) -> Bytes:
            self.reads.release()
            return super().gather(offsets_b, length)

    source = SignallingSource(1000)
    with kind(Data(source, 900), 4, 8, seed=0) as batches:
        for _ in range(3):
            assert source.reads.acquire(timeout=180)
            assert not source.reads.acquire(timeout=0.05)
            batches.next()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_shrinks_is_an_error_line_at_next(
    make: Callable[..., Data], kind: type[Batches]
) -> None:
    def draw(batches: Batches) -> None:
        for _ in range(3):
            batches.next()

    with make(200_000) as data, kind(data, 4, 64, seed=0) as batches:
        batches.next()
        os.truncate(data.source.paths[0], 0)
        with pytest.raises(UserError, match="shrank from 200000 bytes to 0 while being read"):
            draw(batches)


def test_batches_belong_to_the_caller(make: Callable[..., Data]) -> None:
    with make(1000) as data, RandomBatches(data, 2, 8, seed=0) as batches:
        first = batches.next()
        copy = first.copy()
        first_tensor = torch.from_numpy(first)
        batches.next()[:] = 0
        assert (first == copy).all()
        first_tensor.zero_()


def test_streams_continue_until_all_restart_together(make: Callable[..., Data]) -> None:
    with make(1000, val_bytes=100) as data, StreamBatches(data, 3, 8, seed=0) as batches:
        text = data.source.read(0, 900).tobytes()
        previous, restarts, predicted = None, [], set[int]()
        for number in range(200):
            batch = batches.next()
            places = [text.index(row.tobytes()) for row in batch]
            assert np.diff(places).tolist() == [300, 300]
            if batches.restarted:
                restarts.append(number)
                assert places[0] < 30
            else:
                assert previous is not None
                assert places == [place + 8 for place in previous]
            previous = places
            predicted |= {place + i for place in places for i in range(1, 9)}
    assert restarts[0] == 0
    # 300 bytes a stream, starts below 30: between (300 - 29 - 1) // 8 and 299 // 8 batches.
    assert {33, 34, 35, 36, 37} >= set(np.diff(restarts).tolist())
    assert len(predicted) > 880


def test_streams_restart_only_where_no_whole_row_is_left() -> None:
    rounds, used_up = 80, 0
    for size in range(97, 131):
        source, segment = CountingSource(size + 9), size // 2
        restarted = []
        with StreamBatches(Data(source, size), 2, 8, seed=size) as batches:
            for _ in range(rounds):
                batches.next()
                restarted.append(batches.restarted)
        starts = source.offsets[: 2 * rounds : 2]  # of the first of the two streams
        for (before, start), again in zip(itertools.pairwise(starts), restarted[1:], strict=True):
            fits = before + 8 + 9 <= segment
            assert again == (not fits)
            assert fits == (start == before + 8)
            used_up += before + 9 == segment
    assert used_up > 20, "hardly a row ended with its stream, where one too few is seen"


def test_error_line_of_more_streams_than_the_text_holds(
    make: Callable[..., Data], tmp_path: Path
) -> None:
    with make(100, val_bytes=10) as data, pytest.raises(UserError) as caught:
        StreamBatches(data, 11, 8, seed=0)
    assert str(caught.value) == (
        f"data.path={tmp_path}/text.bin: 90 bytes to train on, but 11 streams of "
        f"train.chunk_size=8 need 99; set train.batch_size=10 or less, or name more text"
    )


def data_of(train_bytes: int) -> Data:
    return Data(CountingSource(train_bytes + 100), train_bytes)


@pytest.mark.parametrize(
    ("saved", "resumed", "line"),
    [
        pytest.param(
            lambda: StreamBatches(data_of(900), 3, 8, seed=0),
            lambda: RandomBatches(data_of(900), 3, 8, seed=0),
            "train.tbptt: the run to resume read its data as streams, not as random positions; "
            "resume with train.tbptt=true",
            id="random from streams",
        ),
        pytest.param(
            lambda: RandomBatches(data_of(900), 3, 8, seed=0),
            lambda: StreamBatches(data_of(900), 3, 8, seed=0),
            "train.tbptt: the run to resume read its data as random positions, not as streams; "
            "resume with train.tbptt=false",
            id="streams from random",
        ),
        pytest.param(
            lambda: StreamBatches(data_of(900), 3, 8, seed=0),
            lambda: StreamBatches(data_of(900), 4, 8, seed=0),
            "train.batch_size=4: the run to resume carries the states of 3 streams; "
            "resume with train.batch_size=3",
            id="other number of streams",
        ),
        pytest.param(
            lambda: StreamBatches(data_of(900), 3, 8, seed=0),
            lambda: StreamBatches(data_of(600), 3, 8, seed=0),
            "data.path=counted: streams of 200 bytes, but the run to resume had 300; "
            "name the data that it had, or start a new run",
            id="other data",
        ),
    ],
)
def test_error_line_of_a_state_that_does_not_fit(
    saved: Callable[[], Batches], resumed: Callable[[], Batches], line: str
) -> None:
    with saved() as source, resumed() as target, pytest.raises(UserError) as caught:
        target.load_state_dict(source.state_dict())
    assert str(caught.value) == line


@examples()
@given(chunk_size=st.integers(1, 50), spare=st.integers(0, 2000), sample_bytes=st.integers(1, 4000))
def test_validation_windows_lie_apart_in_the_tail(
    chunk_size: int, spare: int, sample_bytes: int
) -> None:
    row = chunk_size + 1
    data = Data(CountingSource(500 + row + spare), train_bytes=500)
    starts = validation_windows(data, chunk_size, sample_bytes)
    wanted = -(-sample_bytes // chunk_size)
    assert len(starts) == min(wanted, data.val_bytes // row)
    assert starts[0] == 500
    assert starts[-1] + row <= len(data.source)
    assert (np.diff(starts) >= row).all()
    gaps = np.diff(starts)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
    if len(starts) > 1:
        assert starts[-1] + row == len(data.source)


def test_validation_batches_are_the_windows_in_order(make: Callable[..., Data]) -> None:
    with make(2000) as data:
        starts = validation_windows(data, 8, 56)
        rows = list(validation_batches(data, 8, 56, batch_size=3))
        assert [len(row) for row in rows] == [3, 3, 1]
        expected = [data.source.read(int(start), 9).tolist() for start in starts]
        assert np.concatenate(rows).tolist() == expected


def test_validation_windows_are_the_same_in_another_process(make: Callable[..., Data]) -> None:
    with make(100_000) as data:
        here = validation_windows(data, 16, 1000).tolist()
        code = (
            "import sys; from elman.sections.training import DataConfig\n"
            "from elman.data.text import open_data\n"
            "from elman.data.windows import validation_windows\n"
            "data = open_data(DataConfig(path=sys.argv[1], val_window=16), 16, print)\n"
            "print(validation_windows(data, 16, 1000).tolist(), 'torch' in sys.modules)"
        )
        command = [sys.executable, "-c", code, data.source.paths[0]]
        there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert there == f"{here} False\n"


def predicted_by(source: CountingSource, rows: list[Bytes]) -> list[int]:
    """Offsets of all predicted bytes, in order of the rows."""
    lengths = [row.shape[1] - 1 for row in rows for _ in range(len(row))]
    starts = zip(source.offsets, lengths, strict=True)
    return [offset + 1 + i for offset, length in starts for i in range(length)]


@examples()
@given(size=st.integers(2, 300), chunk_size=st.integers(1, 40), batch_size=st.integers(1, 5))
def test_scoring_predicts_every_byte_but_the_first_once(
    size: int, chunk_size: int, batch_size: int
) -> None:
    for rows_of in (partial(scoring_batches, batch_size=batch_size), contiguous_chunks):
        source = CountingSource(size)
        rows = list(rows_of(source, chunk_size))
        assert predicted_by(source, rows) == list(range(1, size))
        assert all(row.shape[1] <= chunk_size + 1 for row in rows)
        assert all(len(row) <= batch_size for row in rows)


@examples()
@given(size=st.integers(2, 300), chunk_size=st.integers(1, 40), max_bytes=st.integers(1, 400))
def test_scoring_at_most_so_many_bytes(size: int, chunk_size: int, max_bytes: int) -> None:
    source = CountingSource(size)
    predicted = predicted_by(source, list(scoring_batches(source, chunk_size, 2, max_bytes)))
    limit = min(max_bytes, size - 1)
    assert limit - min(chunk_size, limit) < len(predicted) <= limit
    assert len(set(predicted)) == len(predicted)
    if max_bytes >= size - 1:
        assert predicted == list(range(1, size))
    whole = CountingSource(size)
    chunks = list(contiguous_chunks(whole, chunk_size, max_bytes))
    assert predicted_by(whole, chunks) == list(range(1, limit + 1))


def test_a_scored_sample_is_evenly_spaced() -> None:
    source = CountingSource(1001)
    rows = list(scoring_batches(source, 10, 4, max_bytes=59))
    assert source.offsets == [0, 200, 400, 600, 800]
    assert [row.shape for row in rows] == [(4, 11), (1, 11)]


def test_scoring_a_vast_file_starts_at_once() -> None:
    source = CountingSource(2**41)
    rows = list(itertools.islice(scoring_batches(source, 1, 3), 2))
    assert source.offsets == [0, 1, 2, 3, 4, 5]
    assert rows[0].tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("scoring", [scoring_batches, contiguous_chunks])
def test_error_line_of_a_single_byte_to_score(
    tmp_path: Path, scoring: Callable[..., object]
) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(b"x")
    arguments = (8, 4) if scoring is scoring_batches else (8,)
    with ByteSource(path, setting="eval.path") as source, pytest.raises(UserError) as caught:
        scoring(source, *arguments)
    assert str(caught.value) == (
        f"eval.path={path}: a single byte leaves nothing to predict; name at least 2 bytes"
    )
