"""The page of probes: a summary, the pictures of every measurement, and all definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elman.probe.result import DEFINITIONS
from elman.report.comparison.blocks import (
    Block,
    Entry,
    Head,
    Item,
    Items,
    Legend,
    Line,
    Pairs,
    Table,
    Text,
    Title,
)
from elman.report.comparison.draw import Plot
from elman.report.comparison.page import figures_of, rendered
from elman.report.probe.layers import (
    half_life_plots,
    legend_of,
    longest_half_life,
    no_decay,
    state_plots,
)
from elman.report.probe.pictures import (
    ablation_plots,
    loss_plots,
    memory_plots,
    recall_plots,
    sentence,
)
from elman.report.probe.views import NONE, View, number, size

INTERVAL = (
    "An interval holds 95 % of 1,000 resamples of the documents (bootstrap). It says how far other "
    "documents of this text would move the number. It says nothing about other seeds of training."
)


def page_text(views: Sequence[View]) -> str:
    """Return the whole page."""
    names = ", ".join(view.name for view in views)
    return rendered("probe", names, [*_facts(views)], blocks_of(views))


def plots_of(views: Sequence[View]) -> Iterator[Plot]:
    """Yield all plots of the page."""
    for plots in _compared(views).values():
        yield from plots
    for view in views:
        yield from (*half_life_plots(view), *state_plots(view))


def _compared(views: Sequence[View]) -> dict[str, list[Plot]]:
    """Return the plots that compare runs, by the titles of their blocks."""
    return {
        "How far back the context helps": loss_plots(views),
        "What a change does to the predictions": memory_plots(views),
        "Recall by distance": recall_plots(views),
        "Bits lost without one layer's state": ablation_plots(views),
    }


def blocks_of(views: Sequence[View]) -> Iterator[Block]:
    """Yield the blocks of the page, in their order."""
    yield Block("Summary", [summary(views), Text(INTERVAL, "caption")])
    yield Block("Problems", _problems(views))
    legend = Legend([Entry([view.row], view.row, view.name) for view in views])
    for title, plots in _compared(views).items():
        yield Block(title, [legend, *figures_of(plots)] if plots else [])
    changes = [plot for view in views for plot in half_life_plots(view)]
    layers = legend_of(views)
    title = "What a change does to each layer's state"
    yield Block(title, [layers, *figures_of(changes)] if changes else [])
    yield Block("The states over time", list(_states(views, layers)))
    yield Block("What each number is", [Pairs(list(DEFINITIONS.items()))])


def _states(views: Sequence[View], layers: Legend) -> Iterator[Any]:
    """Yield the plots of each run's states, its name above them."""
    for view in views:
        if plots := list(state_plots(view)):
            yield Title(view.name)
            yield layers
            yield from figures_of(plots)
        if words := no_decay(view):
            yield Text(words, "caption")


@dataclass(frozen=True)
class Column:
    """One column of the summary: its heading, its definition, and its cells."""

    head: str
    definition: str
    cell: Callable[[View], str]


def _interval(view: View) -> str:
    loss = view.result.loss
    if loss is None:
        return NONE
    return f"{size(loss.useful_length_low)} to {size(loss.useful_length_high)}"


def _recall(view: View) -> str:
    recall = view.result.recall
    reach = 0
    for kind in recall.kinds[:1] if recall else ():
        for distance, low in zip(recall.distances if recall else (), kind.saved.low, strict=True):
            if low <= RECALLED:
                break
            reach = distance
    return size(reach) if reach else NONE


def _changing(view: View) -> str:
    states = view.result.state
    return NONE if states is None else f"{states.growing} / {states.dying} of {states.heads}"


def _costliest(view: View) -> str:
    lost = view.result.ablation.reset.mean if view.result.ablation else []
    return number(max(lost), ".3f") + f" (layer {lost.index(max(lost))})" if lost else NONE


RECALLED = 0.1
"""Bits per byte that a key must save for its value to count as recalled."""
COLUMNS = (
    Column("params", "parameters", lambda view: f"{view.result.params:,}"),
    Column(
        "trained length",
        "bytes of each row that it was trained on",
        lambda view: size(view.result.trained_length),
    ),
    Column(
        "bits per byte",
        DEFINITIONS["loss.whole"],
        lambda view: number(view.result.loss.whole) if view.result.loss else NONE,
    ),
    Column(
        "reset",
        DEFINITIONS["loss.whole_reset"],
        lambda view: number(view.result.loss.whole_reset) if view.result.loss else NONE,
    ),
    Column(
        "useful length",
        DEFINITIONS["loss.useful_length"],
        lambda view: size(view.result.loss.useful_length) if view.result.loss else NONE,
    ),
    Column("interval", "the interval of the useful length", _interval),
    Column(
        "longest half-life",
        "the longest one of all layers, of replaced bytes unless they are removed only. "
        f"{sentence(DEFINITIONS['memory.changes.half_lives'])}",
        longest_half_life,
    ),
    Column(
        "recall",
        f"the distance up to which one pair, written once, saves more than {RECALLED} bits per "
        f"byte at the low end of its interval. Saved are {DEFINITIONS['recall.kinds.saved']}",
        _recall,
    ),
    Column(
        "state bytes",
        DEFINITIONS["state.bytes"],
        lambda view: f"{view.result.state.bytes:,}" if view.result.state else NONE,
    ),
    Column(
        "grow / die",
        "heads whose norm more than doubles / falls below a half. The growth of a head is "
        f"{DEFINITIONS['state.layers.parts.growth'].removeprefix('of each head: ')}",
        _changing,
    ),
    Column(
        "costliest layer",
        f"the layer whose reset loses most. The reset loses, {DEFINITIONS['ablation.reset']}",
        _costliest,
    ),
)


def summary(views: Sequence[View]) -> Table:
    """Return a table with a line for each run."""
    heads = [Head(one.head, True, one.definition) for one in COLUMNS]
    lines = [
        Line([view.name, *(one.cell(view) for one in COLUMNS)], view.row, style=view.row)
        for view in views
    ]
    return Table([Head("run", css="k"), *heads], lines, "sorted")


def _problems(views: Sequence[View]) -> list[Items]:
    items = [
        Item(problem, lead=view.name, behind=part)
        for view in views
        for part, problem in view.result.problems.items()
    ]
    return [Items(items)] if items else []


def _facts(views: Sequence[View]) -> Iterator[str]:
    for view in views:
        result = view.result
        window = "" if result.window is None else f"; attends to {result.window:,} bytes"
        yield (
            f"{view.name}: {result.checkpoint}; {result.documents} documents of "
            f"{result.length:,} bytes of {result.text}{window}; {result.device}, {result.precision}"
        )
