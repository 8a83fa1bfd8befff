"""Windows of tokens: the same whatever is read ahead, exact in their bytes, resumed exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import UserError
from elman.data import windows
from elman.data.batches import AnyBatches, RandomBatches, TokenStreamBatches
from elman.data.files import ByteSource
from elman.data.text import Data, open_text
from elman.data.token_windows import (
    PIECE_BYTES,
    SEARCHED_BYTES,
    Cursor,
    TokenReader,
    pieces_of,
    safe_cut,
)
from elman.data.windows import (
    NO_TOKEN,
    TokenRows,
    as_tokens,
    contiguous_tokens,
    document_batches,
    scoring_batches,
    validation_batches,
)
from elman.sections.training import DataConfig
from tests.data.pairs import pairs_tokenizer
from tests.properties import examples

WORDS = ("the", "line", "one", "at", "relation", "café", "日本", "x=1", "\n", "\n    return", "🙂")


def prose(seed: int, words: int) -> bytes:
    """Text of several documents."""
    drawn = np.random.default_rng(seed).choice(len(WORDS), words)
    text = " ".join(WORDS[number] for number in drawn).encode()
    return text[: len(text) // 3] + b"\x1e" + text[len(text) // 3 :]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Data]:
    """Return a function that opens a text with the tokenizer of pairs."""

    def open_(text: bytes, chunk_size: int = 16) -> Data:
        path = tmp_path / "text.txt"
        path.write_bytes(text)
        config = DataConfig(path=str(path), val_window=64, val_sample=512)
        return replace(open_text(config, chunk_size, print), tokenizer=pairs_tokenizer())

    return open_


texts = st.lists(st.sampled_from([*WORDS, " ", "  ", "\x1e", "a" * 200, "é" * 150]), max_size=400)


@given(texts, st.integers(1, 5))
@examples(max_examples=60)
def test_pieces_are_the_text_and_do_not_depend_on_what_was_read(parts, count) -> None:
    text = "".join(parts).encode()
    whole = pieces_of(text, len(text) + 1, ended=True)
    assert b"".join(whole) == text
    assert all(len(piece) <= PIECE_BYTES + SEARCHED_BYTES + 4 for piece in whole)
    read = text[: (PIECE_BYTES + SEARCHED_BYTES) * count + 4]
    first = pieces_of(read, count, ended=len(read) == len(text))
    assert first == whole[: len(first)]
    assert len(first) == min(count, len(whole))


@pytest.mark.parametrize(
    ("text", "at", "cut"),
    [
        pytest.param(b"one two three", 1, 3, id="before a space between words"),
        pytest.param(b"one  two three", 1, 8, id="not among several spaces"),
        pytest.param(b"one\n  two\nx", 2, 10, id="behind an end of line, not before a blank"),
        pytest.param(b"one\x1etwo three", 1, 4, id="behind a separator"),
        pytest.param("aé日本".encode(), 2, 3, id="at a character, where no space is"),
        pytest.param(b"abc", 3, 3, id="at the end"),
    ],
)
def test_where_a_text_is_cut(text, at, cut) -> None:
    assert safe_cut(text, at) == cut


def test_a_window_is_the_text_behind_its_start(opened) -> None:
    text = prose(1, 3000)
    data = opened(text)
    tokenizer = data.tokenizer
    with TokenReader(data.source, data.train_bytes, tokenizer) as reader:
        for offset in (0, 1, 999, 5000, data.train_bytes - 3):
            (ids_n,) = reader.gather(np.array([offset]), 700)
            start = reader.start(offset)
            assert offset <= start <= offset + SEARCHED_BYTES + 4
            again = text[: data.train_bytes]
            expected = again[start:] + b"\x1e" + again
            assert len(ids_n) == 700
            assert tokenizer.decode(ids_n) == expected[: tokenizer.count_bytes(ids_n)]


def test_a_window_does_not_depend_on_threads_length_or_neighbors(opened) -> None:
    data = opened(prose(2, 3000))
    offsets = np.arange(0, data.train_bytes, data.train_bytes // 7)
    with (
        TokenReader(data.source, data.train_bytes, data.tokenizer, threads=1) as one,
        TokenReader(data.source, data.train_bytes, data.tokenizer, threads=5) as five,
    ):
        rows = one.gather(offsets, 600)
        assert (five.gather(offsets, 600) == rows).all()
        assert (one.gather(offsets, 99) == rows[:, :99]).all()
        assert (one.gather(offsets[3:4], 600) == rows[3]).all()


def test_a_short_text_goes_on_at_its_beginning(opened) -> None:
    data = opened(b"the line " * 12, chunk_size=16)
    with TokenReader(data.source, data.train_bytes, data.tokenizer) as reader:
        (ids_n,) = reader.gather(np.array([5]), 200)
    again = data.source.read(0, data.train_bytes).tobytes()
    text = data.tokenizer.decode(ids_n)
    assert ((again + b"\x1e") * 9)[8 : 8 + len(text)] == text


def test_a_stream_read_in_steps_is_the_stream_read_at_once(opened) -> None:
    data = opened(prose(3, 4000))
    with TokenReader(data.source, data.train_bytes, data.tokenizer) as reader:
        (whole,) = reader.read([Cursor(100)], 1001)
        cursors, steps = [Cursor(100)], []
        for _ in range(10):
            (row,) = reader.read(cursors, 101, overlap=1)
            steps.append(row)
            cursors = [Cursor(cursors[0].position, cursors[0].skip)]  # as in a checkpoint
    assert (np.concatenate([steps[0], *(row[1:] for row in steps[1:])]) == whole).all()
    assert all(a[-1] == b[0] for a, b in itertools.pairwise(steps))


KINDS: dict[str, Callable[[Data], AnyBatches]] = {
    "random": lambda data: RandomBatches(data, 3, 16, seed=5),
    "streams": lambda data: TokenStreamBatches(data, 3, 16, seed=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_reads_the_same_tokens(opened, kind) -> None:
    data = opened(prose(4, 3000))
    make = KINDS[kind]
    with make(data) as batches:
        read, states = [], []
        for _ in range(60):
            states.append(batches.state_dict())
            read.append((batches.next(), batches.restarted))
    assert read[0][0].dtype == np.int32
    assert read[0][0].shape == (3, 17)
    for number in (0, 1, 30, 59):
        with make(data) as batches:
            batches.next()
            batches.load_state_dict(states[number])
            for rows, restarted in read[number : number + 3]:
                assert (batches.next() == rows).all()
                assert batches.restarted == restarted


def test_streams_follow_their_segments_and_restart_together(opened) -> None:
    data = opened(prose(5, 600))
    with TokenStreamBatches(data, 2, 16, seed=1) as batches:
        before, restarts = batches.next(), 0
        assert batches.restarted
        for _ in range(200):
            rows = batches.next()
            restarts += batches.restarted
            if not batches.restarted:
                assert (rows[:, 0] == before[:, -1]).all()
            before = rows
    assert 2 <= restarts < 60


def test_streams_of_a_text_that_is_too_short_are_refused(opened) -> None:
    data = opened(b"the line " * 30)
    with (
        TokenStreamBatches(data, 8, 16, seed=1) as batches,
        pytest.raises(UserError, match=r"8 streams of .* too short for train.chunk_size=16 tokens"),
    ):
        batches.next()


def test_a_rank_reads_its_rows_of_the_whole_batch(opened) -> None:
    data = opened(prose(6, 2000))
    with (
        RandomBatches(data, 4, 16, seed=5) as whole,
        RandomBatches(data, 4, 16, seed=5, rows=slice(2, 4)) as second,
    ):
        for _ in range(3):
            assert (whole.next()[2:] == second.next()).all()


def joined(rows: TokenRows, tokenizer) -> list[bytes]:
    """Return the predicted bytes of each row."""
    return [tokenizer.decode(ids[ids != NO_TOKEN][1:]) for ids in rows.ids_bn]


def test_held_out_tokens_stand_for_the_bytes_of_the_windows(opened) -> None:
    data = opened(prose(7, 3000))
    tokenizer = data.tokenizer
    plain = list(validation_batches(data, 64, 512, 3))
    for rows, tokens in zip(plain, as_tokens(plain, tokenizer), strict=True):
        assert isinstance(tokens, TokenRows)
        assert joined(tokens, tokenizer) == [row[1:].tobytes() for row in rows]
        assert (tokens.ids_bn[:, 0] == rows[:, 0]).all()
        assert tokens.n_bytes == rows.shape[0] * 64
    assert next(iter(as_tokens(plain, None))) is plain[0]


@pytest.mark.parametrize("limit", [None, 1, 500, 3000])
def test_a_text_in_order_is_scored_byte_for_byte(opened, limit) -> None:
    data = opened(prose(8, 1200))
    chunks = list(contiguous_tokens(data.source, 100, data.tokenizer, limit))
    text = data.source.read(0, len(data.source)).tobytes()
    end = len(text) if limit is None else min(len(text), limit + 1)
    assert b"".join(joined(chunk, data.tokenizer)[0] for chunk in chunks) == text[1:end]
    assert sum(chunk.n_bytes for chunk in chunks) == end - 1
    assert all(a.ids_bn[0, -1] == b.ids_bn[0, 0] for a, b in itertools.pairwise(chunks))
    assert all(chunk.ids_bn.shape == (1, 101) for chunk in chunks[:-1])


def rolling_windows(tokens: list[int], longest: int) -> list[tuple[list[int], list[int]]]:
    """What the windows of a document read and predict, in lm-eval's own words."""
    first = min(longest, len(tokens))
    found = [([0x1E, *tokens[: first - 1]], tokens[:first])] if tokens else []
    predicted = first
    while predicted < len(tokens):
        count = min(len(tokens) - predicted, longest)
        end = predicted + count
        found.append((tokens[end - longest - 1 : end - 1], tokens[end - count : end]))
        predicted = end
    return found


@pytest.mark.parametrize("tokenizer", [None, pairs_tokenizer()], ids=["bytes", "pairs"])
@pytest.mark.parametrize(("longest", "rows"), [(1, 3), (7, 1), (7, 4), (64, 2), (10_000, 3)])
def test_documents_are_scored_in_the_windows_of_lm_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer, longest: int, rows: int
) -> None:
    monkeypatch.setattr(windows, "_READ_AHEAD", 50)
    documents = [prose(9, 30).replace(b"\x1e", b""), b"", b"a", "café".encode(), b"x" * 14, b""]
    path = tmp_path / "text"
    path.write_bytes(b"\x1e".join(documents))
    expected = []
    for one in documents:
        ids = list(one) if tokenizer is None else tokenizer.encode(one).tolist()
        expected += rolling_windows(ids, longest)
    with ByteSource(str(path)) as source:
        batches = list(document_batches(source, longest, rows, tokenizer))
    found = []
    for batch in batches:
        assert len(batch.ids_bn) <= rows
        for ids_n, read in zip(batch.ids_bn, batch.read_b, strict=True):
            row = ids_n[ids_n != NO_TOKEN].tolist()
            found.append((row[:-1], row[1 + read :]))
    assert found == expected
    assert sum(batch.n_bytes for batch in batches) == sum(map(len, documents))


def test_a_text_of_separators_has_no_document_to_score(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\x1e\x1e")
    why = pytest.raises(UserError, match=r"^eval\.path=.*text: has no documents, only")
    with ByteSource(tmp_path / "text", setting="eval.path") as source, why:
        list(document_batches(source, 8, 2, None))


def test_bytes_that_are_no_utf8_have_tokens_of_single_bytes(tmp_path: Path) -> None:
    path = tmp_path / "noise.bin"
    path.write_bytes(np.random.default_rng(0).bytes(2000))
    tokenizer = pairs_tokenizer()
    rows = list(as_tokens(scoring_batches(ByteSource(str(path)), 64, 4), tokenizer))
    assert sum(one.n_bytes for one in rows if isinstance(one, TokenRows)) == 1999
    assert tokenizer.decode(tokenizer.encode(b"\xff\xfethe\xc3")) == b"\xff\xfethe\xc3"
    assert math.isclose(tokenizer.bytes_per_token(b"thin"), 2.0)
