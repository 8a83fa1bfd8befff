"""A job for the queue of a launcher without a command line: it notes when and where it ran."""

import json
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from elman.launchers.start_order import order_to_start

_NOTED = ("ELMAN_JOBS_PER_GPU", "CUDA_MPS_PIPE_DIRECTORY")


@dataclass(frozen=True)
class StubJob:
    """Runs for some seconds; ``end`` says how it ends: see ``stub_launcher.py``."""

    number: int
    notes: str
    seconds: float = 0.1
    end: str = "well"
    folder: str | None = None

    def __call__(self) -> int:
        """Wait for a place, note it, and end."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit ignores it
        order_to_start()()
        self._note("start")
        if self.end == "stubborn":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            self._note("stubborn")
            time.sleep(600)
        if self.end == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            (Path(self.notes) / "result").write_text("no room for this")
        if self.end == "sick" and os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0":
            raise RuntimeError("GPU-0 has fallen off the bus")
        time.sleep(self.seconds)
        if self.end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        self._note("end")
        return 0

    def _note(self, what: str) -> None:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        note = {"what": what, "gpu": gpu, "time": time.monotonic(), "pid": os.getpid()}
        note |= {name: os.environ.get(name) for name in _NOTED}
        with (Path(self.notes) / f"{self.number}.jsonl").open("a") as stream:
            stream.write(json.dumps(note) + "\n")
