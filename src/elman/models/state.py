"""What a layer carries from one call to the next."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]
"""Named tensors, each with the batch as its first axis; an absent state means zeros."""
