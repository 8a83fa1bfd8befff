"""What a person sees while a run goes: lines that stay, and a live line on a terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elman.base.consoles import LiveArea, say
from elman.base.live_line import PLAIN_SECONDS
from elman.base.units import MEMORY, duration

_LIVE_SHARE = 0.05
"""Least share of the budget between two such lines where a live line is shown, too."""
WAIT_SECONDS = 15.0
"""Seconds without a line, after which a wait prints its progress where there is no terminal."""
PAUSE_SECONDS = 1.0
"""Seconds between two moments of a long step on a terminal."""
_BAR = 24

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
        memory: Bytes, as peak memory is defined.
    """

    step: int
    share: float
    loss: float
    bpb: float
    lr: float
    tok_s: float | None
    seconds_left: float | None
    memory: int

    def fields(self) -> dict[str, str]:
        """Return the parts of the line by name, in order."""
        rate = f"{self.tok_s:,.0f}" if self.tok_s else "-"
        left = duration(self.seconds_left) if self.seconds_left is not None else "-"
        return {
            "step": f"step {self.step:>6}",
            "loss": f"loss {self.loss:.4f}",
            "bpb": f"bpb {self.bpb:.4f}",
            "lr": f"lr {self.lr:.2e}",
            "tok/s": f"tok/s {rate}",
            "left": f"left {left}",
            "mem": f"mem {MEMORY.text(self.memory, 2)}",
        }

    def line(self, left_out: Collection[str] = ()) -> str:
        """Return one line of text without the parts in ``left_out``; the log has every part."""
        return " | ".join(text for name, text in self.fields().items() if name not in left_out)


class Display:
    """Prints the lines of a run, shows its progress, and writes the same lines to the run's log.

    Args:
        console: Where all of it goes; None prints lines on standard output, and progress and errors
            on standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._errors = console or Console(stderr=True)
        self._live = LiveArea(self.console)
        self._last_plain, self._last_share = 0.0, -1.0
        self._unprinted: Progress | None = None
        self._last_said = time.monotonic()
        self._activity = ""
        self._progress: Progress | None = None

    def start(self) -> None:
        """Start the live line if a terminal can show one."""
        self._live.start()

    def stop(self) -> None:
        """End the live line; the last line with a loss stays."""
        self._live.stop()
        if self._unprinted is not None:
            self._print_loss(self._unprinted)

    def error(self, text: str) -> None:
        """Print one line on standard error, and log it."""
        _log.info(text)
        say(self._errors, text)

    def say(self, text: str) -> None:
        """Print one line, above the live one, and log it."""
        _log.info(text)
        self._last_said = time.monotonic()
        say(self.console, text)

    def activity(self, text: str) -> None:
        """Show what the run does besides training (validating, saving), or clear it."""
        self._activity = text
        self._refresh()

    @contextlib.contextmanager
    def long_step(self, text: str, progress: Callable[[], str] = str) -> Iterator[None]:
        """Show what the run does inside this context, for how long, and how far it is.

        Without a terminal, a line says so if it takes longer than :data:`WAIT_SECONDS`, and more
        lines follow, after twice the time each.

        Args:
            text: What it does.
            progress: Returns how far it is, as the end of a line; called by another thread.
        """
        self.activity(text)
        ended = threading.Event()
        shown = threading.Thread(target=self._count_up, args=(text, progress, ended), daemon=True)
        shown.start()
        try:
            yield
        finally:
            ended.set()
            shown.join()
            self.activity("")

    def _count_up(self, text: str, progress: Callable[[], str], ended: threading.Event) -> None:
        """Show the seconds of a long step until it has ended."""
        began, due = time.monotonic(), WAIT_SECONDS
        while not ended.wait(min(PAUSE_SECONDS, due)):
            seconds = time.monotonic() - began
            line = f"{text}, {duration(seconds)}{progress()}"
            if self._live.shown:
                self.activity(line)
            elif seconds >= due:
                self.waiting(line, every=0.0)
                due *= 2

    def waiting(self, text: str, every: float = WAIT_SECONDS) -> None:
        """Show what the run does and how far it is: live on a terminal, else in occasional lines.

        Args:
            text: What is shown.
            every: Seconds without a line after which one is printed.
        """
        self.activity(text)
        if not self._live.shown and time.monotonic() - self._last_said >= every:
            self._last_said = time.monotonic()
            say(self._errors, text)

    def update(self, progress: Progress) -> None:
        """Show a new moment of the run."""
        self._progress = progress
        _log.info(progress.line())
        self._unprinted = progress
        self._refresh()
        if self._due(progress):
            self._print_loss(progress)

    def _due(self, progress: Progress) -> bool:
        """Whether a line with the loss is printed; on a terminal the live line tells the rest."""
        seldom = self.console.is_terminal and self._live.shown
        share = _LIVE_SHARE if seldom else 0.0
        waited = time.monotonic() - self._last_plain
        return waited >= PLAIN_SECONDS and progress.share - self._last_share >= share

    def _print_loss(self, progress: Progress) -> None:
        self._last_plain = self._last_said = time.monotonic()
        self._last_share, self._unprinted = progress.share, None
        say(self.console, progress.line())

    def _refresh(self) -> None:
        if self._live.shown:
            self._live.draw(live_line(self._progress, self._activity, self._live.width))


# Parts are dropped in this order until the line fits. The step stays longest, then the activity.
_DROPPED = ("mem", "lr", "bar", "bpb", "tok/s", "left", "loss")


def live_line(progress: Progress | None, activity: str, width: int) -> RenderableType:
    """Return the line that a terminal of ``width`` columns shows: never more than that."""
    line = Text()
    left_out: set[str] = set()
    if progress is not None:
        room = width - (len(activity) + 1 if activity else 0)
        for name in _DROPPED:
            if _needs(progress, left_out) <= room:
                break
            left_out.add(name)
        line.append(progress.line(left_out) + " " * bool(activity))
    line.append(activity, style="cyan")
    if progress is None or "bar" in left_out:
        line.truncate(width, overflow="ellipsis")
        return line
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=progress.share, width=_BAR), line)
    return grid


def _needs(progress: Progress, left_out: Collection[str]) -> int:
    bar = 0 if "bar" in left_out else _BAR + 1
    return bar + len(progress.line(left_out))
