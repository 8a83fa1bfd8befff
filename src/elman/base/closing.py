"""What is open until it is closed, as a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A resource that the end of a ``with`` closes."""

    def open(self) -> None:
        """Take the resource at the start of a ``with``; most have it since they were made."""
        return

    @abstractmethod
    def close(self) -> None:
        """Give the resource back."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
