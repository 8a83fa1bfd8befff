"""Work in a thread that ends with the process: who waits for it can be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


def beside(work: Callable[[], _Result], name: str) -> Future[_Result]:
    """Start work in a thread, and return its result to come; what it raises is raised there.

    Args:
        work: What to do.
        name: The name of the thread.
    """
    future: Future[_Result] = Future()

    def run_work() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # a panic of Rust is no Exception
            future.set_exception(error)

    threading.Thread(target=run_work, name=name, daemon=True).start()
    return future
