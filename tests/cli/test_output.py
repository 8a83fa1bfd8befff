"""What is printed where nobody can read it."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from elman.base.errors import UserError
from elman.base.output import hold_back_errors, keep_going, lasting_output


class _Gone(io.StringIO):
    """A stream whose other end is gone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._error = OSError(number, os.strerror(number))

    def write(self, text: str) -> int:
        """Fail."""
        raise self._error

    def flush(self) -> None:
        """Fail."""
        raise self._error


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EBADF])
def test_a_run_goes_on_without_output(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Gone(number))
    monkeypatch.setattr(sys, "stderr", _Gone(number))
    with lasting_output():
        keep_going()
        print("a line", flush=True)
        print("a line", file=sys.stderr, flush=True)
        for stderr in (False, True):
            console = Console(stderr=stderr, force_terminal=True)
            console.print("a line")
            with Live("a live line", console=console, auto_refresh=False) as live:
                live.update("another", refresh=True)


def test_a_command_that_only_prints_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Gone(errno.ENOSPC))
    with (
        lasting_output(),
        pytest.raises(UserError, match=r"standard output cannot be written \(No space left"),
    ):
        print("a line")


@pytest.mark.parametrize("flag", ["--version", "--help", "--cfg job"])
def test_a_full_disk_under_the_output_is_one_line(flag: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "elman", *flag.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("elman: error: standard output cannot be written (No space left")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_read_enough_is_told_nothing() -> None:
    command = f"{sys.executable} -m elman --cfg job | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2


def test_no_file_becomes_the_output_of_a_command_without_one(tmp_path: Path) -> None:
    program = (
        "import os, sys; from elman.base.output import lasting_output\n"
        "with lasting_output():\n"
        "    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "    print('lost'); print('lost', file=sys.stderr); os.system('echo lost; echo lost >&2')\n"
    )
    command = f'{sys.executable} -c "$0" {tmp_path}/file >&- 2>&- <&-'
    assert subprocess.run(["bash", "-c", command, program]).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_what_native_code_says_comes_later_and_only_if_nothing_fails(capfd) -> None:
    with hold_back_errors():
        os.write(2, b"a warning")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a warning"
    with suppress(ZeroDivisionError), hold_back_errors():
        os.write(2, b"the same in more lines")
        _ = 1 // 0
    os.write(2, b"behind it")
    assert capfd.readouterr().err == "behind it"
