"""Where the command begins: Ctrl-C is one line from here on, while the first modules are imported.

:mod:`elman.cli.main` is for processes that have begun already, such as tests.
"""

from __future__ import annotations

import os
import signal


def _end(*_: object) -> None:
    os.write(2, b"elman: interrupted\n")
    os._exit(130)  # nothing has begun, so nothing has to end


def main() -> int:
    """Run the command line of this process and return its exit status."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        signal.signal(signal.SIGINT, _end)
    from elman.cli.main import main as run

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
