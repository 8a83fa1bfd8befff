"""Paper mode: every figure as SVG and PDF, the table as LaTeX, captions with the definitions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from elman.base.errors import UserError
from elman.report.comparison.columns import LOSS, MEMORY, NONE, TOK_S, VAL_BPB, Measure
from elman.report.comparison.content import Report
from elman.report.comparison.paper_figures import CREATOR, figure_bytes
from elman.report.comparison.plots import Plot, make_plots
from elman.report.comparison.printable import one_line
from elman.report.comparison.rows import Row

FOLDER, TABLE, DOCUMENT = "paper", "table.tex", "figures.tex"
_MARK = f"% written by {CREATOR}"
_MEASURES = (("loss", LOSS), ("val bpb", VAL_BPB), ("tok/s", TOK_S), ("GB", MEMORY))
_SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def write_paper(report: Report, folder: Path) -> Path:
    """Write the figures and the table into ``folder``/paper; return the path of that folder.

    Raises:
        UserError: a file there is not of an earlier report, or the folder cannot be written to.
    """
    place, plots = folder / FOLDER, make_plots(report.rows)
    files = {TABLE: table_text(report).encode()}
    for plot in plots:
        for kind, content in figure_bytes(plot.picture).items():
            files[f"{plot.picture.name}.{kind}"] = content
    files[DOCUMENT] = document_text(report, plots).encode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            _refuse_foreign(place / name)
        for path in place.iterdir():
            if path.name not in files and _is_ours(path):
                path.unlink()  # a figure of an earlier report
        for name, content in files.items():
            _put(place / name, content)
    except OSError as error:
        raise UserError(
            f"{place}: the figures cannot be written ({error.strerror}); "
            "name another folder with report.out=<folder>"
        ) from None
    return place


def _is_ours(path: Path) -> bool:
    return path.is_file() and CREATOR.encode() in path.read_bytes()


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not _is_ours(path):
        raise UserError(
            f"{path}: exists and is not of an earlier report; "
            "move it, or name another folder with report.out=<folder>"
        )


def _put(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def table_text(report: Report) -> str:
    """Return the table as LaTeX: means with standard deviations over n seeds, and their meaning."""
    heads = ["model", "parameters", "n", *(head for head, _ in _MEASURES), "status"]
    lines = [" & ".join(map(latex, heads)) + r" \\ \hline"]
    lines += [" & ".join(_cells(row)) + r" \\" for row in report.rows]
    measured = " ".join(f"{head}: {measure.definition}." for head, measure in _MEASURES)
    notes = " ".join(f"{note}." for note in report.comparison)
    caption = (
        "Means over n seeds, each with the standard deviation of the sample (n - 1 in the "
        f"denominator); without one where n is 1. {measured} {notes}"
    )
    body = "\n".join(lines)
    return (
        f"{_MARK}\n\\begin{{table}}\n\\centering\\small\n"
        f"\\begin{{tabular}}{{lrr{'r' * len(_MEASURES)}l}}\n{body}\n\\end{{tabular}}\n"
        f"\\caption{{{latex(caption.strip())}}}\n\\end{{table}}\n"
    )


def _cells(row: Row) -> list[str]:
    params = row.first(lambda result: result.params)
    count = f"{params:,}" if isinstance(params, int) else NONE
    numbers = [_number(row, measure) for _, measure in _MEASURES]
    return [latex(row.label), count, str(len(row.counted)), *numbers, latex(row.status)]


def _number(row: Row, measure: Measure) -> str:
    found = row.over_runs(measure.of)
    if found is None:
        return NONE
    if found.sd is None:
        return measure.shown(found.mean)
    return f"${_digits(measure, found.mean)} \\pm {_digits(measure, found.sd)}$"


def _digits(measure: Measure, value: float) -> str:
    return measure.shown(value).replace(",", "{,}")


def document_text(report: Report, plots: Sequence[Plot]) -> str:
    """Return a document that shows the table and every figure with its caption."""
    figures = "\n".join(
        f"\\begin{{figure}}\n\\centering\n\\includegraphics{{{plot.picture.name}.pdf}}\n"
        f"\\caption{{{latex(f'{plot.title}. {plot.caption}')}}}\n\\end{{figure}}"
        for plot in plots
    )
    return (
        f"{_MARK}\n\\documentclass{{article}}\n\\usepackage[T1]{{fontenc}}\n"
        f"\\usepackage{{graphicx}}\n\\begin{{document}}\n\\input{{{TABLE}}}\n{figures}\n"
        "\\end{document}\n"
    )


def latex(text: str) -> str:
    """Return text that LaTeX shows unchanged."""
    return "".join(_SPECIAL.get(sign, sign) for sign in one_line(text))
