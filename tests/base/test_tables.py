"""Every table of the terminal at 60, 80 and 120 columns: whole names, and what is missing is said.

The commands run in this process, with the variables by which a terminal tells its width.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elman.base.consoles import table_console
from elman.base.output import lasting_output, print_wide
from elman.base.tables import TerminalTable, names, numbers, text
from elman.cli.main import main
from elman.doctor.findings import Finding, Mark
from elman.launchers.display import Display
from elman.modes.doctor import _table as doctor_table
from elman.report.tables.bench import print_bench
from elman.report.tables.parity import print_parity
from elman.report.tables.sweep import sweep_table
from elman.sweeps.row import SweepRow

WIDTHS = (60, 80, 120)
NAME = "e88_h8n16_nol2_linear_64x1"
LISTS = {
    "mode=models models.filter=e88_h8n16": [NAME, "e88_h8n16_nol2_64x1"],
    "mode=suites": ["simplification_e33_e42", "expressivity_quick"],
    "mode=tasks": ["modular_quadratic", "overwrite_recall"],
    "mode=models model=e88_tiny": ["model.use_value_residual", "model.phantom_norm_gain"],
    "mode=suites benchmark=e75_100m": ["model=mamba2_896x20_legacy", "model=e75h8n24"],
}


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make this process's output a terminal of some width."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    found: int = request.param
    return found


def plain(printed: str) -> list[str]:
    """Return what was printed as lines, without commands to the terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed).splitlines()


def check(lines: Sequence[str], width: int, whole: Sequence[str]) -> None:
    """Check that no column is empty or too wide, nothing is cut, and each name is whole."""
    rows = [line for line in lines if re.search("[│┃╇]", line)]
    assert rows
    assert all(len(line) <= width for line in rows)
    assert not any(re.search("\N{HORIZONTAL ELLIPSIS}|╇╇|┃┃|││", line) for line in rows)
    for name in whole:
        assert any(re.search(rf"(^|\s){re.escape(name)}(\s|$)", line) for line in lines), name


@pytest.mark.parametrize("command", LISTS)
def test_a_list_has_whole_names(command: str, width: int, capsys: pytest.CaptureFixture) -> None:
    assert main(command.split()) == 0
    check(plain(capsys.readouterr().out), width, LISTS[command])


def test_a_column_that_is_missing_is_named(capsys, width: int) -> None:
    main(["mode=models", "models.filter=e88_h8n16_nol2"])
    lines = plain(capsys.readouterr().out)
    heads = {head.strip() for head in lines[0].split("┃")}
    said = " ".join(lines).partition("columns left out (terminal too narrow): ")[2]
    missing = set(said.partition("; --wide shows all")[0].split(", "))
    everything = {"model", "cell", "dim x depth", "heads x state", "parameters", "source"}
    everything |= {"state bytes", "per byte"}
    assert heads | missing == everything
    assert not heads & missing
    assert {"model", "parameters"} <= heads


@pytest.mark.parametrize("flag", [[], ["--wide"]])
def test_a_pipe_and_wide_get_everything(
    flag: list[str], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    if flag:
        monkeypatch.setenv("FORCE_COLOR", "1")
    main([*flag, "mode=suites"])
    lines = plain(capsys.readouterr().out)
    assert "source" in lines[0]
    assert "left out" not in "\n".join(lines)
    (baselines,) = [line for line in lines if line.startswith(" baselines ")]
    assert "mamba2, fla-gdn, E1 and llama, about 100M" in baselines
    assert main(["mode=suites"]) == 0  # the flag is of one command


def test_wide_ends_with_its_command() -> None:
    with lasting_output():
        print_wide()
    console = table_console()
    assert console.is_terminal or console.width > 1000


def drawn(table: Any, width: int) -> list[str]:
    """Return the lines of a table at a width."""
    file = io.StringIO()
    table.print(Console(width=width, file=file))
    return plain(file.getvalue())


def jobs() -> list[SweepRow]:
    """Return two jobs of a sweep with long names."""
    result = {
        "status": "ok",
        "params": 104_116_096,
        "steps": 12_345,
        "loss": 1.25,
        "loss_steps": 100,
    }
    result |= {"val_bpb": 2.1, "tok_s": 123_456.0, "contended": True}
    overrides = [f"model={NAME}", "train.batch_size=32", "optim.lr=0.001"]
    return [SweepRow(1, overrides, "ok", result), SweepRow(2, ["model=e1"], "crash", None)]


def test_the_table_of_a_sweep(width: int) -> None:
    lines = drawn(sweep_table(jobs()), width)
    check(lines, width, [f"model={NAME}", "train.batch_size=32", "optim.lr=0.001", "1.2500"])


def of_bench() -> dict[str, Any]:
    """Return a result of ``mode=bench``."""
    spread = {"median": 3.25e-3, "low": 3e-3, "high": 4e-3}
    seconds = dict.fromkeys(("data", "forward", "backward", "optimiser"), spread)
    kernel = {"seconds": 1e-3, "floor": 5e-4}
    row = {
        **{"name": NAME, "backend": "reference", "params": 104_116_096, "ratio": spread},
        **{"level": "step", "rounds": [{}], "tok_s": 1e5, "products": 1e-3, "seconds": seconds},
        **{"kernels": {"kernel forward": kernel, "kernel backward": kernel}, "total": spread},
        **{"saved_bytes": 10**9, "peak_bytes": 10**9, "path": None, "slow_path": False},
    }
    rates = {"multiplies": None, "tanhs": None, "copies": {}}
    environment = {"device_name": "a CPU", "threads": 2}
    return {"rows": [row], "notes": [], "rates": rates, "environment": environment}


def of_parity() -> dict[str, Any]:
    """Return a result of ``mode=parity``."""
    worst = {"tensor": "gradient of model.value_residual_gate.weight", "relative_l2": 1e-7}
    worst |= {"reference_relative_l2": 1e-7, "cosine": 1.0, "max_abs": 1e-7, "tolerance": 1e-5}
    worst |= {"passed": True, "excused": False}
    check_ = {"part": "e74_fixed_decay", "backend": "reference", "device": "cpu", "worst": worst}
    check_ |= {"precision": "fp32", "shape": "batch 2, time 7", "sizes": "n_state 32, n_heads 8"}
    check_ |= {"tensors": [worst], "passed": True}
    return {"model": NAME, "checks": [check_], "summary": [], "notes": []}


@pytest.mark.parametrize(
    ("show", "result", "whole"),
    [
        (print_bench, of_bench(), [NAME, "3.25"]),
        (print_parity, of_parity(), ["e74_fixed_decay", "reference", "fp32", "yes"]),
    ],
    ids=["bench", "parity"],
)
def test_the_tables_of_measurements(show: Any, result: Any, whole: list[str], width: int) -> None:
    file = io.StringIO()
    show(Console(width=width, file=file), result, Path("outputs"))
    lines = plain(file.getvalue())
    check(lines, width, whole)


def test_the_diagnosis_of_a_machine(width: int) -> None:
    findings = [
        Finding("installed", "flash-linear-attention", Mark.ABSENT, "not installed; for fla-gdn"),
        Finding("machine", "several GPUs for one model", Mark.OK, "needs two; " * 12),
    ]
    lines = drawn(doctor_table(findings), width)
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("  flash-linear-attention ") for line in lines)


def test_no_width_is_too_small_for_the_letters_of_a_name() -> None:
    table = TerminalTable([*names("model"), *numbers("loss"), text("why")], ("why", "loss"))
    table.add(NAME, "1.2500", "because")
    for width in (5, 10, 20, 30):
        lines = drawn(table, width)[:-1]  # the last one names the columns that are left out
        assert all(len(line) <= width for line in lines)
        assert NAME in "".join(line.strip(" │") for line in lines[2:])


def test_a_name_is_broken_only_at_blanks() -> None:
    table = TerminalTable([*names("model"), *numbers("loss")])
    table.add(f"{NAME} train.batch_size=32 optim.lr=0.001", "1.25")
    assert [line.partition("│")[0].strip() for line in drawn(table, 45)[2:]] == [
        NAME,
        "train.batch_size=32 optim.lr=0.001",
    ]


def test_the_live_table_of_a_sweep(width: int) -> None:
    class Slot:
        name, waiting = "GPU 0", "held by elman 1234 of somebody"

    file = io.StringIO()
    display = Display(2, Console(width=width, file=file))
    display.console.print(display._table([], [Slot()], 1))  # type: ignore[list-item]
    check(plain(file.getvalue()), width, ["GPU 0", "somebody"])


def test_rows_have_the_cells_of_their_headings() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 headings"):
        TerminalTable(names("a", "b")).add("c")
