"""Sampling bytes one at a time with carried state: constant cost per byte.

Shapes: b = 1 row, t bytes of prompt, v byte values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from elman.models.language_model import LanguageModel

# What a text starts from when there is no prompt: the separator between documents.
START = b"\x1e"


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: bytes,
    max_bytes: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 42,
) -> Iterator[int]:
    """Yield ``max_bytes`` bytes that continue ``prompt``.

    The prompt passes in one forward; each later byte is one step from the carried states. Order of
    the filters: temperature, then ``top_k``, then ``top_p``.

    Args:
        model: A model in evaluation mode.
        prompt: Bytes to continue; empty means the start of a document (0x1e).
        max_bytes: How many bytes to yield.
        temperature: 0 always takes the most probable byte.
        top_k: Sample among the k most probable bytes; 0 is off.
        top_p: Sample among the smallest set with this probability; 1 is off.
        seed: Seed of the sampling; the same seed gives the same bytes on the same machine.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tokens_bt = torch.tensor([list(prompt or START)], dtype=torch.uint8, device=device)
    states = None
    for _ in range(max_bytes):
        logits_btv, states = model(tokens_bt, states)
        logits_v = logits_btv[0, -1].float().cpu()
        byte = choose(logits_v, temperature, top_k, top_p, generator)
        yield byte
        tokens_bt = torch.tensor([[byte]], dtype=torch.uint8, device=device)


def choose(
    logits_v: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator
) -> int:
    """Return one byte drawn from ``logits_v`` (float32, [v], on the CPU)."""
    if temperature == 0:
        return int(logits_v.argmax())
    ordered_v, order_v = torch.sort(logits_v / temperature, descending=True)
    if top_k:
        ordered_v[top_k:] = -torch.inf
    probability_v = torch.softmax(ordered_v, dim=0)
    if top_p < 1:
        # A byte stays while the more probable ones have not reached top_p: at least one does.
        before_v = probability_v.cumsum(0) - probability_v
        probability_v[before_v >= top_p] = 0
    drawn = torch.multinomial(probability_v, 1, generator=generator)
    return int(order_v[drawn])
