"""The name that a mistyped one most resembles."""

from __future__ import annotations

import pytest

from elman.errors import did_you_mean, nearest


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("e75_100", ["e75_10min", "e75_100m_e2", "e75_100m"], "e75_100m"),
        ("solve.par", ["solve.over", "solve.depth", "solve.params"], "solve.params"),
        ("E88f", ["e88", "e88f_h32n16", "e88f_h4"], "e88f_h4"),
        ("quick", ["e88_nstate", "quick_test"], "quick_test"),
        ("mdoe", ["model", "mode"], "mode"),
        ("zebra", ["model", "mode"], None),
        ("", ["model", "mode"], None),
    ],
)
def test_a_name_that_begins_with_what_was_typed_comes_first(
    typed: str, known: list[str], meant: str | None
) -> None:
    assert nearest(typed, known) == meant
    assert did_you_mean(typed, known) == (f" (did you mean {meant}?)" if meant else "")
