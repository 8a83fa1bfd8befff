"""A stand-in for wandb, which sends nothing and fails as a test asks.

Attributes:
    failing: What fails, by name: ``init`` and ``offline`` (of init), ``log``, ``finish``; the value
        is called.
    sessions: What every ``init`` was given.
"""

import time
from pathlib import Path
from types import SimpleNamespace

from . import errors

failing, sessions, finished = {}, [], []
mode = None
__all__ = ["Settings", "errors", "init", "setup", "teardown"]


def act(name):
    if name in failing:
        failing[name]()


class Settings:
    def __init__(self, **given):
        self.given = given


class Run:
    def __init__(self, given):
        self.offline = given.get("mode", mode) == "offline"
        self.url = f"https://wandb.test/{given['id']}"
        self.dir = str(Path(given["dir"], "wandb", f"run-{given['id']}", "files"))
        self.folder = Path(given["dir"])
        self.logged = []

    def log(self, values, step):
        act("log")
        self.logged.append((step, values))

    def finish(self, exit_code):
        finished.append((exit_code, (self.folder / "result.json").exists()))
        act("finish")


def init(**given):
    act("offline" if given.get("mode") == "offline" else "init")
    sessions.append(given)
    return Run(given)


def setup():
    return SimpleNamespace(settings=SimpleNamespace(mode=mode, base_url="https://api.wandb.test"))


def teardown():
    pass


def sleep():
    time.sleep(60)
