"""What training batches of text and of tasks share: a thread makes the next rows during a step."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from elman.base.closing import Closing
from elman.data.files import Bytes

Rows = Bytes | npt.NDArray[np.int32]
"""Bytes, or tokens of another kind."""


class AheadBatches(Closing):
    """Training batches that are ready before they are asked for, so no step waits for them.

    Attributes:
        kind: What the rows are; a state of one kind does not load into another.
        restarted: Whether the last batch's rows do not continue an earlier batch, so carried states
            must be reset before it.
        token_lengths: How many bytes each token stands for; None if a token is a byte.
        bytes_per_token: About how many bytes a token of the text stands for, likewise.
    """

    kind: ClassVar[str]

    def __init__(self) -> None:
        self.restarted = True
        self.token_lengths: npt.NDArray[np.int64] | None = None
        self.bytes_per_token: float | None = None
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="elman-data")

    @abstractmethod
    def next(self) -> Rows:
        """Return the next batch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, so that the next batch is the same as without a stop.

        It has only plain ints, strings and dicts, which ``torch.load(weights_only=True)`` accepts.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; batches that were made ahead are dropped."""

    def close(self) -> None:
        """Stop making batches ahead, and wait until the one in work ends."""
        self._maker.shutdown(wait=True, cancel_futures=True)
