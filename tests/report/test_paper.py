"""``report.paper=true``: figures as SVG and PDF, the table as LaTeX, captions with definitions."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from elman.cli.main import main
from elman.evaluation.result import DEFINITIONS
from elman.report.comparison.blocks import latex
from elman.report.comparison.paper import NEEDS

from .fake_sweep import FakeSweep


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep over two keys, with seeds, marks and a failure."""
    return two_keys(tmp_path / "sweep")


def two_keys(folder: Path) -> FakeSweep:
    sweep = FakeSweep(folder)
    for model in ("e1", "e42"):
        for lr in ("1e-4", "1e-3"):
            for seed, loss in ((1, 1.5), (2, 1.6)):
                named = (f"model={model}", f"optim.lr={lr}", f"train.seed={seed}")
                if (model, lr) == ("e42", "1e-3"):
                    sweep.failed(*named, status="nan", error="loss is nan")
                else:
                    sweep.job(*named, result={"loss": loss, "contended": model == "e42"})
    return sweep


def test_every_figure_and_the_table_are_written(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]
    assert main(command) == 0
    place = sweep.folder / "paper"
    assert f"paper: {place} (" in capfd.readouterr().out
    document = (place / "figures.tex").read_text()
    shown = re.findall(r"\\includegraphics.*?\{(.*?)\.pdf\}", document)
    assert shown[0] == "swept-model-optim-lr"
    assert shown[1:] == ["loss-steps", "loss-minutes", "loss-bytes", "throughput", "pareto"]
    assert document.count(r"\caption{") == len(shown)
    assert "Each point is the mean over the 100 optimizer steps up to it" in document
    for name in shown:
        assert (place / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
        drawn = ElementTree.parse(place / f"{name}.svg").getroot()
        assert drawn.tag.endswith("svg")
    assert "oom" not in (place / "swept-model-optim-lr.svg").read_text()
    assert "2 nan" in (place / "swept-model-optim-lr.svg").read_text()
    table = (place / "table.tex").read_text()
    assert r"e1 optim.lr=\allowbreak{}1e-4 & 90,432 & 2 & $1.5500 \pm 0.0707$ &" in table
    assert r"e42 optim.lr=\allowbreak{}1e-3 & 90,432 & 0 & - & - & - & - & nan \\" in table
    assert r"2 contended" not in table
    assert "contended" in table
    for key in ("loss", "val_bpb", "tok_s"):
        assert latex(DEFINITIONS[key]) in table
    # The same report makes the same bytes; what is no longer a figure of it goes.
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    (place / "swept-old.svg").write_bytes(before["pareto.svg"])
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_figure_of_somebody_elses_is_not_replaced(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    (sweep.folder / "paper").mkdir()
    mine = sweep.folder / "paper" / "table.tex"
    mine.write_text("mine")
    assert main(["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]) == 2
    assert f"{mine}: exists and is not of an earlier report" in capfd.readouterr().err
    assert mine.read_text() == "mine"
    assert sorted(path.name for path in mine.parent.iterdir()) == ["table.tex"]


ODD = "a_b & 50% #1 ~x^2 {y} $z \\end <q> \"r\" `s` --t '' | \u00e9\u00b5\u00d7\u4e2d\u2264\u2013"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b & 50%", r"a\_b \& 50\%"),
        ("\\x{$1}", r"\textbackslash{}x\{\$1\}"),
        ("a\nb", "a b"),
        ("#~^", r"\#\textasciitilde{}\textasciicircum{}"),
        ("--x ''", "-{}-x '{}'"),
        ("\u00e9 \u4e2d \u2264", r"\u00e9 [U+4E2D] $\le$".replace(r"\u00e9", "\u00e9")),
    ],
)
def test_names_are_text_in_latex(text: str, shown: str) -> None:
    assert latex(text) == shown


def many_rows(folder: Path) -> FakeSweep:
    """Return a sweep of 36 rows with odd names, over two tasks."""
    sweep = FakeSweep(folder)
    for task in ("parity", "s3"):
        told = {"task": task, "chance": 0.5, "bytes": None, "sha256": task * 3}
        for at in range(18):
            answers = {"accuracy": 1.0, "accuracy_by_length": {"32": 1.0, "64": at / 20}}
            result = {"model": f"{at} {ODD}", "data": told, **answers}
            sweep.job("model=e1", f"data={task}", f"optim.lr={at + 1}e-4", result=result)
    return sweep


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the papers of a small report and of a large one with odd names."""
    folder = tmp_path_factory.mktemp("papers")
    sweeps = two_keys(folder / "small"), many_rows(folder / "large")
    for sweep in sweeps:
        assert main(["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]) == 0
    return [sweep.folder / "paper" for sweep in sweeps]


# Commands that stand for one sign, or mark up text.
COMMAND = re.compile(r"\\(?:[&%$#_{}\\]|[a-z]+)")
TABLE = re.compile(
    r"\\begin\{(tabular|longtable)\}\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\n(.*?)\\end\{",
    re.DOTALL,
)


def columns_of(specification: str) -> int:
    """Return how many columns the argument of a table has."""
    plain = re.sub(
        r">\{.*?\}(?=p)|p\{.*?\}", lambda found: "p"[found[0][0] == ">" :], specification
    )
    assert set(plain) <= set("prlc"), plain
    return len(plain)


def check_latex(text: str) -> int:
    """Check what pdflatex would refuse; return the number of lines in tables."""
    text = re.sub(r"(?m)^%.*\n", "", text)
    bare = COMMAND.sub("", text)
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert not set('%#_^\\"') & set(bare)
    assert bare.count("$") % 2 == 0
    assert all(ord(sign) < 0x100 for sign in text)
    begun = re.findall(r"\\begin\{(.*?)\}", text)
    assert sorted(begun) == sorted(re.findall(r"\\end\{(.*?)\}", text))
    lines = 0
    for kind, specification, body in TABLE.findall(text):
        for line in re.split(r"\\\\\s+", body)[kind == "longtable" :]:  # it begins with its caption
            rest = re.sub(r"\\hline|\\end(first)?head", "", line).strip()
            if rest:
                assert len(re.findall(r"(?<!\\)&", rest)) == columns_of(specification) - 1, rest
                lines += 1
    return lines


def test_latex_has_no_more_columns_and_signs_than_it_may(papers: list[Path]) -> None:
    for paper, lines in zip(papers, (1 + 4, 2 + 36), strict=True):
        table, document = ((paper / name).read_text() for name in ("table.tex", "figures.tex"))
        assert check_latex(table) == lines
        assert check_latex(document) == 0
        # What it needs is said where it is included, and loaded where it is shown.
        for need in NEEDS:
            assert f"%   {need}\n" in table
            assert f"\n{need}\n" in document
        for name in re.findall(r"\{(\S+?\.(?:pdf|tex))\}", document):
            assert (paper / name).is_file()
    assert latex(f"3 {ODD}").replace(r"\_", r"\_\allowbreak{}") in table
    assert "\\begin{longtable}" in table
    names = re.findall(r"\{(\S+?)\.pdf\}", document)
    assert names[:3] == ["tasks", "task-parity", "task-s3"]
    assert not [name for name in names if name.startswith("swept")]  # losses of several tasks
    grid = (papers[1] / "tasks.svg").read_text()
    assert "s3</" in grid
    assert "solved</" in grid


@pytest.mark.parametrize(
    "lines",
    [r"a & b \\ c \\ ", r"a_1 & b \\ ", r"a & {b \\ "],
    ids=["columns", "sign", "brace"],
)
def test_the_check_finds_faults(lines: str) -> None:
    assert check_latex("\\begin{tabular}{lr}\na & b \\\\ \\end{tabular}") == 1
    with pytest.raises(AssertionError):
        check_latex(f"\\begin{{tabular}}{{lr}}\n{lines}\\end{{tabular}}")


@pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="no pdflatex here; apt-get install texlive-latex-base brings one",
)
def test_pdflatex_makes_a_document_of_it(papers: list[Path]) -> None:
    for paper in papers:
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "figures.tex"]
        done = subprocess.run(command, cwd=paper, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
        assert "Missing character" not in done.stdout
        assert not re.findall(r"Overfull \\hbox \(\d{2,}\.", done.stdout)
