"""What a person sees while a run goes: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 5.0
"""Between two lines where there is no terminal."""

_log = logging.getLogger("elman.train")


@dataclass(frozen=True)
class Progress:
    """One moment of a run.

    Attributes:
        step: Optimizer steps done.
        share: Share of the budget used, 0 to 1.
        loss: Mean nats per byte since the last moment shown.
        bpb: The same in bits.
        lr: Learning rate.
        tok_s: Predicted bytes per second since the last moment shown.
        seconds_left: Estimated training time left.
        memory: Bytes, as the definition of peak memory.
    """

    step: int
    share: float
    loss: float
    bpb: float
    lr: float
    tok_s: float | None
    seconds_left: float | None
    memory: int

    def line(self) -> str:
        """Return it as one line of text, the same in the log and on a terminal."""
        rate = f"{self.tok_s:,.0f}" if self.tok_s else "-"
        left = duration(self.seconds_left) if self.seconds_left is not None else "-"
        return (
            f"step {self.step:>6} | loss {self.loss:.4f} | bpb {self.bpb:.4f} | "
            f"lr {self.lr:.2e} | tok/s {rate} | left {left} | mem {self.memory / 1e9:.2f} GB"
        )


class Display:
    """Shows progress on ``console`` and writes the same lines to the run's log."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live: Live | None = None
        self._last_plain = 0.0
        self._activity = ""
        self._progress: Progress | None = None

    def start(self) -> None:
        """Begin the live line, where the console can show one."""
        if self.console.is_terminal:
            # Drawn when something is new and not by a thread of its own, which would take the
            # interpreter from a small model's many short operations.
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def stop(self) -> None:
        """End the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print one line, above the live one, and log it."""
        _log.info(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def activity(self, text: str) -> None:
        """Name what the run does besides training (validating, saving), or nothing."""
        self._activity = text
        self._refresh()

    def heartbeat(self, text: str) -> None:
        """Show that a long wait moves: in the live line, or every few seconds as a line."""
        if self._live is not None:
            self.activity(text)
        elif time.monotonic() - self._last_plain >= PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self.say(f"{text} ...")

    def update(self, progress: Progress) -> None:
        """Show a new moment of the run."""
        self._progress = progress
        _log.info(progress.line())
        if self._live is not None:
            self._refresh()
        elif time.monotonic() - self._last_plain >= PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self.console.print(progress.line(), markup=False, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is None:
            return
        grid = Table.grid(padding=(0, 1))
        if self._progress is not None:
            bar = ProgressBar(total=1.0, completed=self._progress.share, width=24)
            grid.add_row(bar, Text(self._progress.line()), Text(self._activity, style="cyan"))
        else:
            grid.add_row(Text(self._activity, style="cyan"))
        self._live.update(grid, refresh=True)


def duration(seconds: float) -> str:
    """Return seconds as ``42s``, ``3m12s`` or ``5h07m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
