"""The store at which ranks met, asked with a time limit.

The store's server may live in rank 0. If that process hangs, a question to it never returns, and
no limit of the library ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from torch.distributed.distributed_c10d import Store

_SLICE_SECONDS = 1.0


class LivingStore:
    """A store whose questions raise RuntimeError where no answer comes in time.

    Args:
        store: The store; it belongs to this object from now on.
        seconds: Most seconds for an answer. Time in which this process was stopped does not count.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._store, self._seconds, self._gone = store, seconds, False
        self._asked: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]]] = SimpleQueue()
        threading.Thread(target=self._answer, name="elman-store", daemon=True).start()

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        value: bytes = self._ask(lambda: self._store.get(key))
        return value

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask(lambda: self._store.check(keys)))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write a value where the present one is the expected one; return what is there then."""
        answer: bytes = self._ask(lambda: self._store.compare_set(key, expected, value))
        return answer

    def _ask(self, question: Callable[[], Any]) -> Any:
        if not self._gone:
            answer: SimpleQueue[Any] = SimpleQueue()
            self._asked.put((question, answer))
            if (result := self._waited_for(answer)) is not None:
                if isinstance(result[1], BaseException):
                    raise result[1]
                return result[0]
        self._gone = True
        raise RuntimeError(f"the store of the ranks gave no answer in {self._seconds:.0f} s")

    def _waited_for(self, answer: SimpleQueue[Any]) -> tuple[Any, BaseException | None] | None:
        waited = 0.0
        while waited < self._seconds:
            began = time.monotonic()
            try:
                outcome: tuple[Any, BaseException | None] = answer.get(timeout=_SLICE_SECONDS)
                return outcome
            except Empty:
                waited += min(time.monotonic() - began, 2 * _SLICE_SECONDS)
        return None

    def _answer(self) -> None:
        while True:
            question, answer = self._asked.get()
            try:
                answer.put((question(), None))
            except BaseException as error:  # the thread that asks raises it
                answer.put((None, error))
