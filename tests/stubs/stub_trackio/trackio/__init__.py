"""A stand-in for trackio, which keeps what it is given and fails as a test asks.

Attributes:
    failing: What fails, by name: ``init``, ``log``, ``finish``; the value is called.
    runs: Every session.
"""

import warnings
from pathlib import Path

failing, runs = {}, []
__all__ = ["finish", "init", "log"]


def act(name):
    if name in failing:
        failing[name]()


def complain():
    warnings.warn("could not write\nat all", stacklevel=1)


class Run:
    def __init__(self, given):
        self.given, self.logged, self.finished = given, [], []

    def log(self, metrics, step=None):
        act("log")
        self.logged.append((step, metrics))

    def finish(self):
        self.finished.append(Path("run/result.json").exists())
        act("finish")


def init(project, name=None, *, config=None, resume="never", embed=True, auto_log_gpu=None):
    act("init")
    print("* Trackio project initialized:", project)
    given = {"project": project, "name": name, "config": config, "resume": resume}
    runs.append(Run(given | {"embed": embed, "auto_log_gpu": auto_log_gpu}))
    return runs[-1]


def log(metrics, step=None):
    runs[-1].log(metrics, step)


def finish():
    runs[-1].finish()
