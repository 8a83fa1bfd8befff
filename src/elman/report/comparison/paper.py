"""Paper mode: every figure as SVG and PDF, the table as LaTeX, captions with the definitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elman.base.errors import UserError
from elman.base.units import MEMORY as MEMORY_UNIT
from elman.base.whole_file import put_bytes
from elman.report.comparison.blocks import Head, Latex, Line, Table, latex, latex_table
from elman.report.comparison.columns import (
    COLUMNS,
    LOSS,
    MEMORY,
    TOK_S,
    VAL_BPB,
    Measure,
    speed_head,
)
from elman.report.comparison.ink import CREATOR, Drawing, figure_bytes
from elman.report.comparison.plots import GRID, page_pictures
from elman.report.comparison.report_data import Report
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.tasks import METHOD, TITLE

NEEDS = (r"\usepackage[T1]{fontenc}", r"\usepackage{array,graphicx,longtable}")
"""What the preamble of a document must have that holds such tables and figures."""
FOLDER, TABLE, DOCUMENT = "paper", "table.tex", "figures.tex"
_MARK = f"% written by {CREATOR}\n"
_DEFINED = ("params", "status")
# LaTeX keeps few figures at a time that it has not placed yet.
_FIGURES_AT_A_TIME = 8

Files = dict[str, bytes]
"""The content of each file of a paper, by its name."""


def paper_files(report: Report) -> Files:
    """Return the files of a report's paper: its figures, its table, and a document of all."""
    pictures = page_pictures(report)
    drawings = []
    if pictures.grid is not None:
        drawings.append((pictures.grid, f"{TITLE}. {GRID} {METHOD}"))
    drawings += [(plot.figure, f"{plot.title}. {plot.caption}") for plot in pictures.all]
    return files_of(table_text(report), drawings)


def files_of(table_tex: str, drawings: Sequence[tuple[Drawing, str]]) -> Files:
    """Return the files of a paper: its figures, its table, and a document of all.

    Args:
        table_tex: The table as LaTeX, without its head.
        drawings: The figures, each with its caption as plain text.
    """
    needs = "".join(f"%   {line}\n" for line in NEEDS)
    files = {TABLE: f"{_MARK}% The preamble needs:\n{needs}{table_tex}".encode()}
    captions = {drawing.name: caption for drawing, caption in drawings}
    for drawing, _ in drawings:
        for kind, content in figure_bytes(drawing).items():
            files[f"{drawing.name}.{kind}"] = content
    files[DOCUMENT] = document_text(captions).encode()
    return files


def refuse_foreign(files: Files, folder: Path) -> None:
    """Raise UserError if a file of ``folder``/paper is not of an earlier report."""
    for name in files:
        path = folder / FOLDER / name
        if path.exists() and not _is_ours(path):
            raise UserError(
                f"{path}: exists and is not of an earlier report; "
                "move it, or name another folder with report.out=<folder>"
            )


def write_paper(files: Files, folder: Path, key: str = "report.out") -> Path:
    """Write the files into ``folder``/paper; return the path of that folder.

    Args:
        files: The files.
        folder: The folder.
        key: The setting that names it.

    Raises:
        UserError: the folder cannot be written to.
    """
    place = folder / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            if path.name not in files and _is_ours(path):
                path.unlink()  # a figure of an earlier report
        for name, content in files.items():
            put_bytes(place / name, content, several=True)
    except OSError as error:
        raise UserError(
            f"{place}: the figures cannot be written ({error.strerror}); "
            f"name another folder with {key}=<folder>"
        ) from None
    return place


def _is_ours(path: Path) -> bool:
    return path.is_file() and CREATOR.encode() in path.read_bytes()


def table_text(report: Report) -> str:
    """Return the table as LaTeX: means with standard deviations over n seeds, and their meaning."""
    definitions = {column.head: column.definition for column in COLUMNS if column.head in _DEFINED}
    measures = _measures(report.rows)
    definitions |= {head: measure.definition for head, measure in measures.items()}
    meanings = " ".join(f"{head}: {text}." for head, text in definitions.items())
    decides = [group.by.sentence for group in report.wins.groups]
    notes = " ".join(f"{note}." for note in dict.fromkeys([*decides, *report.comparison]))
    caption = (
        "Means over n seeds, each with the standard deviation of the sample (n - 1 in the "
        f"denominator); without one where n is 1. {meanings} {notes}"
    )
    numbers = ("params", "n", *measures)
    heads = [Head("model"), *(Head(name, number=True) for name in numbers), Head("status")]
    lines = [Line(_cells(row)) for row in report.rows]
    return latex_table(Table(heads, lines), caption.strip(), "tab:runs")


def _measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """Return the numbers of the table, by heading."""
    speed = speed_head(rows)
    return {"loss": LOSS, "val bpb": VAL_BPB, speed: TOK_S, MEMORY_UNIT.name: MEMORY}


def _cells(row: Row) -> list[str]:
    params = row.first(lambda result: result.params)
    count = f"{params:,}" if isinstance(params, int) else NONE
    numbers = [_number(row, measure) for measure in _measures([row]).values()]
    return [row.label, count, str(len(row.counted)), *numbers, row.status]


def _number(row: Row, measure: Measure) -> str:
    values = row.over_runs(measure.of)
    if values is None:
        return NONE
    if values.sd is None:
        return measure.shown(values.mean)
    return Latex(f"${_digits(measure, values.mean)} \\pm {_digits(measure, values.sd)}$")


def _digits(measure: Measure, value: float) -> str:
    return measure.shown(value).replace(",", "{,}")


def document_text(captions: dict[str, str]) -> str:
    """Return a document that shows the table and every figure, given their captions by name."""
    parts = []
    for at, (name, caption) in enumerate(captions.items(), 1):
        parts.append(_figure(name, caption))
        if at % _FIGURES_AT_A_TIME == 0:
            parts.append("\\clearpage\n")
    needs = "\n".join(NEEDS)
    return (
        f"{_MARK}\\documentclass{{article}}\n{needs}\n\\usepackage[margin=2cm]{{geometry}}\n"
        f"\\begin{{document}}\n\\input{{{TABLE}}}\n{''.join(parts)}\\end{{document}}\n"
    )


def _figure(name: str, caption: str) -> str:
    """Return a figure, given the name of its PDF file and its caption as plain text."""
    return (
        f"\\begin{{figure}}\n\\centering\n\\includegraphics[width=0.7\\linewidth]{{{name}.pdf}}\n"
        f"\\caption{{{latex(caption)}}}\\label{{fig:{name}}}\n\\end{{figure}}\n"
    )
