"""What the runs of a page of probes are called."""

from __future__ import annotations

from typing import Any

import pytest

from elman.base.exit_status import RunStatus
from elman.probe.result import ProbeResult
from elman.report.probe.views import views_of


def tree(checkpoint: str, length: int = 256, model: str = "e1") -> dict[str, Any]:
    """Return a probe without numbers."""
    return ProbeResult(
        status=RunStatus.OK,
        checkpoint=checkpoint,
        step=2,
        model=model,
        cell=model,
        params=1,
        trained_length=32,
        length=length,
        documents=2,
        text="book.txt",
        device="a CPU",
        precision="fp32",
    ).model_dump()


FIRST, OTHER, ALONE = "/r/a/checkpoints/step-0000002", "/r/b/checkpoints/best", "step-0000002"


@pytest.mark.parametrize(
    ("trees", "names"),
    [
        ([tree(FIRST), tree(FIRST, model="e42")], ["e1", "e42"]),
        ([tree(FIRST), tree(OTHER)], ["e1 (a, step 2)", "e1 (b, step 2)"]),
        ([tree(FIRST), tree(ALONE)], ["e1 (a, step 2)", "e1 (step-0000002, step 2)"]),
        (
            [tree(FIRST), tree("/s/a/checkpoints/best")],
            ["e1 (/r/a, step 2)", "e1 (/s/a, step 2)"],
        ),
        (
            [tree(FIRST), tree(FIRST, 512)],
            [f"e1 (/r/a, step 2; {length} bytes of book.txt)" for length in (256, 512)],
        ),
        (
            [tree(FIRST), tree(FIRST)],
            [f"e1 (/r/a, step 2; 256 bytes of book.txt), probe {row}" for row in (1, 2)],
        ),
    ],
)
def test_no_two_runs_of_a_page_have_one_name(trees: list[dict[str, Any]], names: list[str]) -> None:
    assert [view.name for view in views_of(trees)] == names
