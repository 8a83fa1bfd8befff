"""Which jobs a sweep is, and how their settings are written on a command line again."""

from __future__ import annotations

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from elman.base.errors import UserError
from elman.base.quoting import quoted, shell_line, unquoted
from elman.sweeps.expand import expand


def jobs(*overrides: str) -> list[str]:
    """Return every job as typed."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [" ".join(job) for job, _ in expand(parsed)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["a.x=1"], ["a.x=1"]),
        ([], [""]),
        (["a.x=1,2"], ["a.x=1", "a.x=2"]),
        (
            ["a.x=1,2", "m=e1,e42"],
            ["a.x=1 m=e1", "a.x=1 m=e42", "a.x=2 m=e1", "a.x=2 m=e42"],
        ),
        (["a.x=range(1,4)"], ["a.x=1", "a.x=2", "a.x=3"]),
        (["a.x=choice(5,6)", "b=1e-3"], ["a.x=5 b=1e-3", "a.x=6 b=1e-3"]),
        (["a.x=1,2", "a.x=7"], ["a.x=7"]),
        (["a.path=[p,q],[r]"], ["a.path=[p,q]", "a.path=[r]"]),
        (["a.path='x,y',z"], ["a.path='x,y'", "a.path=z"]),
        (["a.x=bytes,bpe:512"], ["a.x=bytes", "a.x=bpe:512"]),
        (["+a.x=1,2"], ["+a.x=1", "+a.x=2"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_product_of_all_values(overrides: list[str], expected: list[str]) -> None:
    assert jobs(*overrides) == expected


def test_swept_settings_are_told_from_common_ones() -> None:
    parsed = OverridesParser.create().parse_overrides(["a=1,2", "b=3", "c=4,5"])
    assert next(swept for _, swept in expand(parsed)) == ("a=1", "c=4")


def test_a_sweep_without_end_is_refused() -> None:
    with pytest.raises(UserError, match=r"infinitely many values; list some, as in a\.x=1,2,3"):
        jobs("a.x=interval(0,1)")


@pytest.mark.parametrize(
    "text",
    ["plain", "a b", "it's", "a\\b", "end\\", "\\'", "\\\\'", "x=1,2", "[1", "", "'", "é"],
)
def test_any_text_survives_quoting(text: str) -> None:
    assert unquoted(f"hydra.run.dir={quoted(text)}") == text
    assert shlex.split(shell_line([text, "x"])) == [text, "x"]


def test_a_word_with_single_quotes_stands_in_double_ones_for_a_shell() -> None:
    assert shell_line(["e", "a='b c'", "it's $x"]) == "e \"a='b c'\" 'it'\"'\"'s $x'"
