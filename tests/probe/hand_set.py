"""Models whose memory is known, and texts that they read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from elman.data.files import ByteSource
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.probe.chunks import Reader, Text, evenly

WIDTH = 256
_NORM = WIDTH**0.5  # RMSNorm makes a one-hot vector so long


class Delay(nn.Module):
    """Predicts that the byte ``steps`` before the next one comes again; forgets what is older.

    State: ``h`` [B, steps - 1, 256], the last inputs, the oldest first.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        past = x_btd.new_zeros(len(x_btd), self.steps - 1, WIDTH) if not state else state["h"]
        seen = torch.cat([past, x_btd], dim=1)
        # The stream holds the newest byte, which is not the prediction.
        y_btd = seen[:, : x_btd.shape[1]] - x_btd / _NORM
        return y_btd, {"h": seen[:, x_btd.shape[1] :]}


class Leak(nn.Module):
    """h' = d h + x, so that a change of a byte is d^n of itself after n steps. State: ``h``."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        h_bd = x_btd.new_zeros(len(x_btd), WIDTH) if not state else state["h"]
        outputs = []
        for x_bd in x_btd.unbind(1):
            h_bd = self.decay * h_bd + x_bd
            outputs.append(h_bd)
        return 0.1 * torch.stack(outputs, dim=1), {"h": h_bd}


class Breaks(nn.Module):
    """Counts its steps in ``h`` and has no number from step ``after`` on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        h_b1 = x_btd.new_zeros(len(x_btd), 1) if not state else state["h"]
        h_b1 = h_b1 + x_btd.shape[1]
        return torch.zeros_like(x_btd), {"h": h_b1.masked_fill(h_b1 >= self.after, torch.nan)}


def model_of(*layers: nn.Module) -> LanguageModel:
    """Return a model whose embedding is one-hot and whose logits are near certain."""
    model = LanguageModel(WIDTH, layers)
    with torch.no_grad():
        model.embedding.copy_(torch.eye(WIDTH))
    return model.eval()


def reader_of(model: LanguageModel, trained: int = 32, positions: int = 2048) -> Reader:
    """Return what reads with a model in fp32 on the CPU."""
    return Reader(model, torch.device("cpu"), "fp32", trained, positions)


def text_of(folder: Path, rows: Sequence[bytes]) -> Text:
    """Return documents of equal length."""
    path = folder / "text"
    path.write_bytes(b"".join(rows))
    length = len(rows[0])
    source = ByteSource(str(path), setting="probe.path")
    return Text(source, evenly(len(rows), 0, (len(rows) - 1) * length), length - 1)


def periodic(period: int, length: int, documents: int) -> list[bytes]:
    """Return documents, each a random string that repeats itself."""
    generator = np.random.default_rng(1)
    return [
        np.resize(generator.integers(256, size=period, dtype=np.uint8), length + 1).tobytes()
        for _ in range(documents)
    ]


def letters(length: int, documents: int) -> list[bytes]:
    """Return documents of random letters."""
    generator = np.random.default_rng(2)
    return [
        generator.integers(97, 123, size=length + 1, dtype=np.uint8).tobytes()
        for _ in range(documents)
    ]
