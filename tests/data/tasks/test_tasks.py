"""The rows of every task: right answers, known facts, and a pure function of their place."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from elman.config.compose import compose_config
from elman.data.tasks.batches import TaskBatches, TaskData
from elman.data.tasks.counting import elements, product_table
from elman.data.tasks.words import answer_names, in_words, symbol_names
from elman.sections.tasks import IGNORED, TASKS, TaskConfig

from .interpreters import INTERPRETERS, NOTHING

LENGTHS = (17, 40, 129)
HARDER = {
    "modular_counter": {"modulus": 13},
    "modular_quadratic": {"modulus": 7},
    "fsm": {"states": 2},
    "dyck1": {"depth": 2},
    "dyck2": {"depth": 3},
    "copy": {"symbols": 30},
    "selective_copy": {"items": 3, "symbols": 2},
    "recall": {"pairs": 5, "keys": 40, "values": 9},
    "overwrite_recall": {"keys": 3, "values": 60},
    "reset_recall": {"keys": 2},
    "keyed_fsm": {"keys": 2, "modulus": 30},
    "s3": {"generators": "all"},
    "s5": {"generators": "all"},
}
tasks = pytest.mark.parametrize("name", TASKS)


def task(name: str, **settings: object) -> TaskConfig:
    return TASKS[name].model_validate({"task": name, "lengths": [40], **settings})


def rows_of(config: TaskConfig, length: int, count: int = 32) -> np.ndarray:
    return next(TaskData(config).validation_rows(length, count, count))


@pytest.mark.parametrize("harder", [False, True])
@tasks
def test_every_answer_is_what_a_slow_interpreter_answers(name: str, harder: bool) -> None:
    config = task(name, **(HARDER.get(name, {}) if harder else {}))
    for length in LENGTHS:
        for row in rows_of(config, length):
            words, answers = in_words(config, row)
            expected = INTERPRETERS[name](words, config)
            if name == "dyck2":  # whether the bracket behind the row closes is not in the row
                expected, answers = expected[:-1], answers[:-1]
            assert answers == expected
            assert any(answer != NOTHING for answer in answers)


@pytest.mark.parametrize("harder", [False, True])
@tasks
def test_symbols_stay_in_the_vocabulary_and_answers_are_as_many_as_said(
    name: str, harder: bool
) -> None:
    config = task(name, **(HARDER.get(name, {}) if harder else {}))
    rows = rows_of(config, 129, 2000)
    inputs, answers = rows[:, 0], rows[:, 1]
    assert inputs.max() < config.vocabulary
    given = answers[answers != IGNORED]
    assert len(np.unique(given)) == config.answers
    assert given.max() < config.vocabulary
    assert len(symbol_names(config)) == len(answer_names(config)) == config.vocabulary


@tasks
def test_the_shortest_row_has_an_answer_and_a_shorter_one_is_refused(name: str) -> None:
    config = task(name)
    rows = rows_of(config, config.shortest, 200)
    assert (rows[:, 1] != IGNORED).any(axis=1).all()
    if config.shortest > 1:
        with pytest.raises(Exception, match=f"use {config.shortest} or more"):
            task(name, lengths=[config.shortest - 1])


@tasks
def test_a_row_depends_on_its_place_alone(name: str) -> None:
    """Neither the batch size, nor a stop, nor who else asks changes a row."""
    data = TaskData(task(name))
    with TaskBatches(data, 4, 40, seed=7) as wide, TaskBatches(data, 2, 40, seed=7) as narrow:
        first = [wide.next() for _ in range(40)]
        assert all(np.array_equal(narrow.next(), batch[:2]) for batch in first)
    with TaskBatches(data, 4, 40, seed=7) as again, TaskBatches(data, 4, 40, seed=8) as other:
        assert not np.array_equal(other.next(), first[0])
        other.load_state_dict({"kind": TaskBatches.kind, "batches": 0})
        again.load_state_dict({"kind": TaskBatches.kind, "batches": 23})
        assert np.array_equal(again.next(), first[23])
        assert again.state_dict()["batches"] == 24
    seen = Counter(row.tobytes() for batch in first for row in batch)
    assert seen.most_common(1)[0][1] == 1
    assert not np.array_equal(rows_of(data.config, 40, 4), first[0])


def test_random_bits_are_even_and_independent_of_their_neighbors() -> None:
    bits = rows_of(task("parity"), 256, 4096)[:, 0].astype(float)
    assert abs(bits.mean() - 0.5) < 0.002
    for other in (bits[:, :-1] * bits[:, 1:], bits[:-1] * bits[1:]):
        assert abs(other.mean() - 0.25) < 0.003


def test_facts_about_parity() -> None:
    assert INTERPRETERS["parity"](["0"] * 5, task("parity")) == ["even"] * 5
    rows = rows_of(task("parity"), 6, 4000)
    zeros = rows[(rows[:, 0] == 0).all(axis=1)]
    assert len(zeros)
    assert (zeros[:, 1] == 0).all()


@pytest.mark.parametrize(("objects", "order"), [(3, 6), (5, 120)])
def test_the_groups_are_the_symmetric_groups(objects: int, order: int) -> None:
    group, table = elements(objects), product_table(objects)
    assert len(group) == order
    assert table.shape == (order, order)
    assert group[0] == tuple(range(objects))
    assert (table[0] == np.arange(order)).all()  # the first element changes nothing
    assert (table[:, 0] == np.arange(order)).all()
    for lines in (table, table.T):  # every element occurs once in every line
        assert (np.sort(lines, axis=1) == np.arange(order)).all()
    assert np.array_equal(table[table], table[:, table])  # (a b) c = a (b c)
    assert not np.array_equal(table, table.T)  # not abelian
    for g, e in itertools.product((1, order // 2, order - 1), repeat=2):
        assert group[table[g, e]] == tuple(group[e][group[g][n]] for n in range(objects))


def test_s5_is_its_own_derived_group_but_for_the_even_half_and_s3_is_not() -> None:
    """S5 is not solvable: commutators of A5 make A5. Those of S3's even part make nothing."""
    for objects, even, again in ((5, 60, 60), (3, 3, 1)):
        table = product_table(objects)
        inverse = np.argmin(table, axis=1)
        half = _commutators(table, inverse, np.arange(len(table)))
        assert len(half) == even
        assert len(_commutators(table, inverse, half)) == again


def _commutators(table: np.ndarray, inverse: np.ndarray, group: np.ndarray) -> np.ndarray:
    a, b = np.meshgrid(group, group)
    found = np.unique(table[table[a, b], table[inverse[a], inverse[b]]])
    while len(more := np.unique(table[np.ix_(found, found)])) > len(found):
        found = more
    return found


def test_a_reset_is_in_every_second_row_and_none_is_an_answer() -> None:
    config = task("reset_recall")
    rows = rows_of(config, 40, 2000)
    assert 0.45 < (rows[:, 0] == 1).any(axis=1).mean() < 0.55
    assert 0.1 < (rows[:, 1, -1] == 2).mean() < 0.7


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data=recall", "data.pairs=17"], "use data.pairs=16 or less"),
        (["data=parity", "train.chunk_size=40", "data.lengths=[]"], "data.lengths"),
        (["data=dyck2", "train.chunk_size=3"], "use 8 or more"),
        (["data=parity", "train.tbptt=true"], "do not continue one another"),
        (["data=parity", "model.vocab_size=9"], "model.vocab_size: follows the data"),
        (["data=parity", "data.modulus=9"], "choose data=modular_counter"),
        (["data=parity", "data.path=x"], "choose data=default"),
        (["data=keyed_fsm", "data.keys=100", "data.modulus=100"], "at most 255"),
        (["train.until_accuracy=0.9"], "read only with a task"),
        (["data=parity", "train.until_accuracy=0.9", "train.val_every=null"], "train.val_every"),
        (["data.task=parity"], "data.task"),
        (["data=pairty"], "did you mean data=parity"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_type(overrides: list[str], told: str) -> None:
    with pytest.raises(Exception, match=told.replace("[", r"\[")):
        compose_config(overrides)


@pytest.mark.parametrize("name", ["parity", "keyed_fsm", "s5"])
def test_the_models_vocabulary_and_expected_count_follow_the_task(name: str) -> None:
    config = compose_config([f"data={name}", "model=e88_h8n16_64x1"])
    text = compose_config(["model=e88_h8n16_64x1"])
    assert isinstance(config.data, TaskConfig)
    assert config.model.vocab_size == config.data.vocabulary
    assert config.model.expected_params is not None
    assert text.model.expected_params is not None
    less = text.model.expected_params - config.model.expected_params
    assert less == (256 - config.data.vocabulary) * 64
    assert config.train.chunk_size in config.data.lengths
