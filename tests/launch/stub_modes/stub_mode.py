"""A mode that ends as ``train.steps`` says: see ``ENDS``."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from elman.config import RunConfig
from elman.errors import ExitStatus, UserError

# train.steps of a run -> how it ends. Any other number: well.
REFUSED, BROKEN, KILLED, NON_FINITE, UNTIL_SIGNAL, INTERRUPTED_EARLY = 901, 902, 903, 904, 905, 906


def run(config: RunConfig, folder: Path | None) -> ExitStatus:
    """Say what was handed over, then end."""
    steps = config.train.steps
    print(
        f"ran {config.mode} {config.model.name} {steps} torch={'torch' in sys.modules}", flush=True
    )
    if steps == REFUSED:
        raise UserError("train.steps=901: an unlucky number; type another")
    if steps == BROKEN:
        raise RuntimeError("first line\nsecond line")
    if steps == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if steps == INTERRUPTED_EARLY:
        raise KeyboardInterrupt
    if folder is None:
        return ExitStatus.OK
    if steps == UNTIL_SIGNAL:
        return _wait_for_signal(folder)
    if steps == NON_FINITE:
        return _end(folder, "nan", ExitStatus.NON_FINITE)
    numbers = {"params": 594720, "steps": steps, "loss": 1.5, "loss_steps": 7}
    return _end(folder, "ok", ExitStatus.OK, **numbers, val_bpb=2.25, tok_s=12345.6)


def _wait_for_signal(folder: Path) -> ExitStatus:
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    (folder / "waiting").touch()
    while not received:
        time.sleep(0.02)
    time.sleep(0.3)  # the save; a second signal here would be counted
    return _end(folder, "interrupted", ExitStatus.INTERRUPTED, signals=len(received))


def _end(folder: Path, status: str, exit_status: ExitStatus, **numbers: object) -> ExitStatus:
    (folder / "result.json").write_text(json.dumps({"status": status, **numbers}))
    return exit_status
