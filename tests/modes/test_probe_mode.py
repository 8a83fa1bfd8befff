"""``mode=probe`` as a command: its files, its page, a sweep of it, and wrong settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.probe.result import DEFINITIONS
from elman.report.probe.views import views_of
from elman.report.probe.write import print_and_write
from tests.small_run import E1, TEXT, Elman, elman_said

SMALL = ("mode=probe", "probe.length=256", "probe.documents=2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("probed")
    (folder / "text").write_bytes(TEXT)
    settings = (*E1, f"data.path={folder / 'text'}", "data.val_bytes=1024", "train.steps=2")
    assert main([*settings, f"hydra.run.dir={folder / 'run'}"]) == ExitStatus.OK
    return folder / "run"


def test_a_probe_writes_its_numbers_with_their_definitions_and_a_page(
    run: Path, elman: Elman
) -> None:
    status, said = elman(*SMALL, "probe.checkpoint=run", "hydra.run.dir=probe")
    assert status == ExitStatus.OK, said
    result = json.loads((run.parent / "probe" / "probe.json").read_text())
    assert (result["status"], result["cell"], result["length"]) == ("ok", "e1", 256)
    assert result["definitions"] == DEFINITIONS
    assert result["loss"]["positions"][-1] == 256
    page = (run.parent / "probe" / "probe.html").read_text()
    for definition in DEFINITIONS.values():
        assert definition[:40].replace("'", "&#39;") in page
    assert 'id="probe-excess"' in page
    assert "useful length" in said


def test_a_narrow_terminal_gets_whole_names_and_hears_what_is_left_out(run: Path, capsys) -> None:
    assert main([*SMALL, f"probe.checkpoint={run}", f"hydra.run.dir={run.parent / 'p'}"]) == 0
    capsys.readouterr()
    views = views_of([json.loads((run.parent / "p" / "probe.json").read_text())])
    print_and_write(Console(width=60), views, run.parent, paper=False)
    lines = capsys.readouterr().out.splitlines()
    assert "bits per byte" in lines[0]
    assert lines[2].split("│")[0].strip() == "e1"
    said = " ".join(lines)
    assert "columns left out (terminal too narrow): interval" in said


def test_a_paper_has_every_figure_and_the_table(run: Path, elman: Elman) -> None:
    arguments = ("probe.checkpoint=run", "hydra.run.dir=probe", "probe.paper=true")
    status, said = elman(*SMALL, *arguments, "probe.parts=[loss,state]")
    assert status == ExitStatus.OK, said
    paper = run.parent / "probe" / "paper"
    names = {path.name for path in paper.iterdir()}
    assert {"table.tex", "figures.tex", "probe-excess.pdf", "probe-norm-0.svg"} <= names
    document = (paper / "figures.tex").read_text()
    for figure in names - {"table.tex", "figures.tex"}:
        assert figure.removesuffix(".svg").removesuffix(".pdf") in document
    assert "useful length" in (paper / "table.tex").read_text()


def test_a_sweep_over_runs_has_one_page_of_all(run: Path, elman: Elman) -> None:
    step = run / "checkpoints" / "step-0000002"
    places = f"probe.checkpoint=run,{step}"
    status, said = elman("-m", *SMALL, places, "launcher=local", "hydra.sweep.dir=sweep")
    assert status == ExitStatus.OK, said
    page = (run.parent / "sweep" / "probe.html").read_text()
    assert page.count('<button type="button" data-row="1"') >= 1
    assert page.count("<h1>") == 1


def test_a_killed_probe_goes_on_in_the_folder_that_it_named(run: Path, elman: Elman) -> None:
    typed = (*SMALL, "probe.checkpoint=run", "probe.parts=loss", "hydra.run.dir=probe")
    folder = run.parent / "probe"
    assert elman(*typed)[0] == ExitStatus.OK
    status, said = elman(*typed)
    assert status == ExitStatus.USER_ERROR
    assert "hydra.run.dir=probe: holds a result; name a new folder or drop" in said
    for name in ("probe.json", "probe.html"):
        (folder / name).unlink()  # as if it had been killed before
    assert elman(*typed, "probe.seed=7")[0] == ExitStatus.USER_ERROR
    status, said = elman(*typed)
    assert status == ExitStatus.OK, said
    assert (folder / "probe.json").exists()


def test_a_short_text_is_read_in_shorter_documents(run: Path, elman: Elman) -> None:
    (run.parent / "short").write_bytes(TEXT[:1000])
    short = ("mode=probe", "probe.checkpoint=run", "probe.parts=loss", "probe.path=short")
    assert elman(*short, "hydra.run.dir=probe")[0] == ExitStatus.OK
    result = json.loads((run.parent / "probe" / "probe.json").read_text())
    assert (result["length"], result["documents"]) == (256, 3)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("probe.window=64", "probe.window=64: cell e1 has no attention; drop it"),
        ("probe.length=900", "type probe.length=511 or less, or name more text"),
        ("probe.documents=9", "9 documents need 2,313 bytes"),
        ("probe.parts=[]", "probe.parts=[]: name one or more of loss, memory"),
        ("probe.changes=[removed,removed]", "name one or more of replaced, removed, each once"),
        ("probe.format=raw", "read only with probe.path"),
        ("probe.device=tpu", "probe.device=tpu"),
        ("probe.checkpoint=.", "a folder of 1 runs; name one, as in run"),
        ("probe.lenght=900", "did you mean probe.length=900?"),
        ("model=e1", "model: read only with mode=train"),
    ],
)
def test_a_wrong_setting_is_one_line(run: Path, elman: Elman, override: str, line: str) -> None:
    rest = [one for one in SMALL if one.split("=")[0] != override.split("=")[0]]
    typed = [] if override.startswith("probe.checkpoint") else ["probe.checkpoint=run"]
    status, said = elman(*rest, *typed, override)
    assert status == ExitStatus.USER_ERROR
    assert line in said
    assert said.count("\n") == 1
    assert not (run.parent / "outputs").exists()


def test_a_run_that_learned_a_task_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    elman = elman_said(capfd)
    small = ("data=copy", "model=e1", "model.dim=128", "model.depth=1", "train.steps=1")
    small += ("data.lengths=[8]", "data.test_rows=2", "data.val_rows=2")
    assert elman(*small, "train.batch_size=2", "hydra.run.dir=task")[0] == ExitStatus.OK
    status, said = elman("mode=probe", "probe.checkpoint=task")
    assert status == ExitStatus.USER_ERROR
    assert "learned a task, whose symbols are no text" in said


def test_an_attention_attends_to_the_trained_length_or_a_named_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(TEXT)
    elman = elman_said(capfd)
    train = (*E1, "model=llama", "data.path=text", "data.val_bytes=1024", "train.steps=1")
    assert elman(*train, "hydra.run.dir=run")[0] == ExitStatus.OK
    probe = (*SMALL, "probe.checkpoint=run", "probe.parts=state")
    for typed, window in ((), 16), (("probe.window=40",), 40):
        folder = f"probe-{window}"
        assert elman(*probe, *typed, f"hydra.run.dir={folder}")[0] == ExitStatus.OK
        result = json.loads((tmp_path / folder / "probe.json").read_text())
        assert result["window"] == window
        # Keys and values in fp32 of all positions of the window but the newest.
        assert result["state"]["bytes"] == (window - 1) * 2 * 128 * 4
        assert f"attends to {window} bytes" in (tmp_path / folder / "probe.html").read_text()
