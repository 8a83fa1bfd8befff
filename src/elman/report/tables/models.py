"""What ``mode=models`` prints: the list of every model, or one of them explained."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from elman.base.tables import TerminalTable, names, numbers, text
from elman.config.catalog import Listed
from elman.models.cells import registry
from elman.models.cells.declaration import Cell
from elman.models.state_sizes import STATE_HEADS, StateSize
from elman.published import Figures, PublishedResult, published_for
from elman.report.tables.option_words import as_typed, read_when, values_of
from elman.sections.model import VOCAB_SIZE, ModelConfig

_SIZES = ("dim x depth", "heads x state", "parameters", *STATE_HEADS)
HEADS = ("model", "cell", *_SIZES, "source")
FIGURES = ("loss", "tok/s", "steps", "memory")
_WRAPPERS = {
    "rms": "RMSNorm before each mixer, residual stream in fp32",
    "legacy_ln": "LayerNorm with bias, residual in the compute dtype: before 2026-01-11",
}


def row_cells(listed: Listed, params: int | None, state: StateSize | None) -> list[str]:
    """Return one model as text, under ``HEADS``."""
    model = listed.config
    if model is None:
        return [listed.name, *"-" * (len(HEADS) - 2), listed.problem]
    size = f"{model.dim} x {model.depth}"
    count = "-" if params is None else f"{params:,}"
    sizes = (size, heads_and_state(model), count, *(state.cells() if state else ("-", "-")))
    return [listed.name, model.cells, *sizes, listed.source]


def heads_and_state(model: ModelConfig) -> str:
    """Return the heads and the size of a head's state; a dash if the cell has no such state."""
    return " + ".join(dict.fromkeys(map(_heads_of_part, model.parts())))


def _heads_of_part(model: ModelConfig) -> str:
    options = model.options
    if "n_state" not in options:
        return "-"
    heads = options.get("n_heads", 1)
    if "head_dim" in options:
        # Mamba2 has as many heads as fit into its inner width.
        heads = int(model.dim * float(options["expansion"])) // int(options["head_dim"])
    return f"{heads} x {options['n_state']}"


def models_table(rows: Sequence[tuple[Listed, int | None, StateSize | None]]) -> TerminalTable:
    """Return one line for each model, with its parameters and state if they are known."""
    spare = ("source", "per byte", "heads x state", "state bytes", "cell", "dim x depth")
    # A list of hundreds is read line by line, so the source needs most of a line.
    headings = [*names("model", "cell"), *numbers(*_SIZES), text("source", least=50)]
    table = TerminalTable(headings, spare)
    for row in rows:
        table.add(*row_cells(*row))
    return table


def print_explanation(
    console: Console,
    model: ModelConfig,
    source: str,
    params: int,
    state: StateSize | None,
    own_vocabulary: int,
) -> None:
    """Print everything that is known of one model: cell, options, published figures.

    Args:
        console: Where to.
        model: The model, as the command's overrides leave it.
        source: First line of its YAML.
        params: Its number of parameters.
        state: Size of a layer's state, if it is known.
        own_vocabulary: That of the model's file; the model's own is that of the data.
    """
    console.print(Text(model.name, style="bold"))
    if source:
        console.print(Text(source))
    console.print(Padding(_facts(model, params, state, own_vocabulary), (1, 0), expand=False))
    for part in model.parts():
        if model.mixed:
            console.print(Text(part.cell, style="bold"))
        own = part.cell == model.cell and part.options == model.options
        _options(registry.cell(part.cell), part, "model." if own else "").print(console)
    records = published_for(model.name)
    title = f"Published for {model.name} as its file has it" if records else "Nothing published"
    console.print(Padding(Text(title, style="bold"), (1, 0, 0, 0), expand=False))
    if records:
        _results(records).print(console)
        for suite in dict.fromkeys(record.of for record in records):
            loss = f"; loss: {suite.definition}" if suite.definition else ""
            words = f"{suite.setting}; {suite.protocol.text}{loss} ({suite.citation})"
            console.print(Text(f"{suite.suite}: {words}"))
        console.print(Text("Losses of different suites cannot be compared."))


def _facts(model: ModelConfig, params: int, state: StateSize | None, own_vocabulary: int) -> Table:
    table = Table.grid(padding=(0, 2))
    names = dict.fromkeys(part.cell for part in model.parts())
    cells = [registry.cell(name) for name in names]
    facts = [("layers", stack_words(model))] if model.mixed else []
    for cell in cells:
        facts.append(("cell", f"{cell.name}, engine {cell.engine}: {cell.source}"))
        facts.append(("step", cell.equation))
    size = f"dim {model.dim}, depth {model.depth}, {_counts(model, params, own_vocabulary)}"
    facts.append(("wrapper", f"{model.wrapper}: {_WRAPPERS[model.wrapper]}"))
    facts.append(("size", size))
    for cell in cells:
        of = f" for {cell.name}" if model.mixed else ""
        asked = "".join(f", {name} on request" for name in cell.on_request)
        facts.append(("backends", f"{', '.join(cell.backends)}{asked}{of}"))
    if state is not None:
        facts.append(("state", state_words(state)))
    packages = dict.fromkeys(cell.package for cell in cells if cell.package is not None)
    facts += [("package", f"{package}, for a GPU") for package in packages]
    for name, fact in facts:
        table.add_row(Text(name, style="bold"), Text(fact))
    return table


def _counts(model: ModelConfig, params: int, own: int) -> str:
    """Return the parameters in words: with the vocabulary of the data, and with the file's own."""
    words = f"{params:,} parameters"
    if {model.vocab_size, own} == {VOCAB_SIZE}:
        return words
    words += f" with {model.vocab_size:,} tokens"
    if own in (VOCAB_SIZE, model.vocab_size):
        return words
    with_own = params + (own - model.vocab_size) * model.dim
    return f"{words}, {with_own:,} with the {own:,} of its file"


def stack_words(model: ModelConfig) -> str:
    """Return which layers of a mixed stack have which cell; the most frequent one comes last."""
    order, parts = model.order(), model.parts()
    *few, (_, most) = sorted(enumerate(parts), key=lambda one: one[1].depth)

    def named(part: ModelConfig) -> str:
        """Tell kinds of one cell apart by what sets a later one off from the first."""
        first = next(one for one in parts if one.cell == part.cell)
        return " ".join([part.cell, *(f"{k}={v}" for k, v in part.changes(first).items())])

    places = [
        f"{named(part)} at {', '.join(str(n) for n, own in enumerate(order) if own == kind)}"
        for kind, part in few
    ]
    return "; ".join([*places, f"{named(most)} elsewhere"])


def state_words(state: StateSize) -> str:
    """Return the size of a layer's state in words."""
    if not state.per_byte:
        return f"{state.fixed:,} bytes a layer and row"
    most = "" if state.most is None else f", up to {state.most:,}"
    grows = f"{state.per_byte:,} bytes a layer and row for every byte of context{most}"
    return f"{state.fixed:,} bytes and {grows}" if state.fixed else grows


def _options(cell: Cell, model: ModelConfig, prefix: str) -> TerminalTable:
    """Return a line for each option, as it is typed: an entry of ``model.layers`` has no prefix."""
    wrapped = (text("values", 14), text("what it does"), text("read with", 14))
    headings = [*names("option", "here", "default"), *wrapped]
    table = TerminalTable(headings, ("read with", "default", "values"))
    for name, option in cell.options.items():
        here, default = (as_typed(value) for value in (model.options[name], option.default))
        style = "bold" if here != default else ""
        words = (default, values_of(option), option.doc, read_when(option))
        table.add(f"{prefix}{name}", Text(here, style=style), *words)
    return table


def _results(records: Sequence[PublishedResult]) -> TerminalTable:
    headings = [*names("suite", "date"), *numbers(*FIGURES), text("caveat")]
    table = TerminalTable(headings, ("steps", "memory", "caveat", "date"))
    for record in records:
        figures = figure_numbers(record.figures)
        table.add(record.of.suite, record.of.date, *figures, record.caveats)
    return table


def figure_numbers(figures: Figures) -> list[str]:
    """Return the published figures of a run as text, under ``FIGURES``."""
    speed = _number(figures.tok_s, ",.0f")
    if figures.step_us is not None:
        speed = f"{figures.step_us:g} us a step"
    loss = _number(figures.loss, "g")
    if figures.accuracy is not None:
        loss = f"accuracy {figures.accuracy:.3f} on {figures.task} at {figures.length}"
    if figures.withdrawn:
        loss += " (withdrawn)"
    return [
        loss,
        speed,
        _number(figures.steps, ","),
        _number(figures.memory_gb, "g", " GB"),
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
