"""Generates text byte by byte from carried states, so that every byte costs the same.

Shape legend: b rows, t bytes of a prompt, v byte values, k bytes of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from elman.base.errors import UserError, first_line
from elman.evaluation.sampling import Sampling
from elman.kernels.graphs import CudaGraphs, Graphs
from elman.models.language_model import LanguageModel
from elman.models.state import State, copied, layout, overwrite
from elman.ops.decode import reference
from elman.ops.decode.draw import draw_into
from elman.ops.linear import KeptCopies
from elman.sections.training import SEPARATOR

# A text without a prompt starts from the separator between documents.
START = SEPARATOR
# Bytes between two reads from the device: at 4,000 bytes/s a reader sees 60 pieces a second.
BLOCK = 64
# Steps before a recording; after them states have their final layout and kernels are built.
_EAGER_STEPS = 2

States = list[State]


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

    Args:
        model: A model in evaluation mode.
        prompt: Bytes to continue; empty means the start of a document (0x1e).
        max_bytes: How many bytes to yield.
        temperature: 0 always takes the most probable byte.
        top_k: Draw among the k most probable bytes; 0 is off.
        top_p: Draw among the smallest set with this probability; 1 is off.
        seed: Seed of the draws; the same seed gives the same bytes on the same machine.
    """
    writer = Writer(model, Sampling(temperature, top_k, top_p), seed=seed)
    writer.read([prompt or START])
    for block in writer.write(max_bytes):
        yield from block[0]


class Writer:
    """Reads prompts and writes their continuations, all rows at once.

    Args:
        model: A model in evaluation mode.
        sampling: How the next byte is chosen.
        seed: Row i draws with ``seed + i``, so that a row's draws do not depend on the others.
        bf16: Compute under bf16 autocast.
        kernels: On a GPU, use the special kernels for products of a few rows and for draws.
        graph: Replay a step as a CUDA graph; None does so on a GPU if the state keeps its shape.
        graphs: Records and replays the work; None means CUDA graphs.

    Attributes:
        device: Where the model is.
        replayed: Whether the steps of the last :meth:`write` were replayed.
    """

    def __init__(
        self,
        model: LanguageModel,
        sampling: Sampling,
        *,
        seed: int = 42,
        bf16: bool = False,
        kernels: bool = False,
        graph: bool | None = False,
        graphs: Graphs | None = None,
    ) -> None:
        self._model, self._sampling, self._seed = model, sampling, seed
        self.device = self._device = next(model.parameters()).device
        self._bf16, self._kernels, self._graph, self._graphs = bf16, kernels, graph, graphs
        self._weights = KeptCopies(self.device.type, few_rows=kernels)
        self._states: States | None = None
        self._last_b1: Tensor | None = None
        self._generators: list[torch.Generator] = []
        self._drawn = 0
        self.replayed = False

    # ------------------------------------------------------------------------------- reading

    @torch.no_grad()
    def read(self, prompts: Sequence[bytes]) -> None:
        """Pass one prompt per row through the model; after an earlier text they continue its rows.

        Prompts of equal length pass together; otherwise they pass one after another.

        Args:
            prompts: At least one, none of them empty.

        Raises:
            UserError: the prompts differ in length, and the states of this model then do, too.
            ValueError: a prompt is empty, or the number of prompts differs from the number of rows.
        """
        if not prompts or not all(prompts):
            raise ValueError("prompts: expected at least one, each of at least 1 byte")
        rows = [torch.tensor([list(prompt)], device=self._device) for prompt in prompts]
        if self._last_b1 is not None:
            if len(prompts) != len(self._last_b1):
                raise ValueError(f"prompts: expected {len(self._last_b1)}, one for every row")
            rows = [
                torch.cat(pair, dim=1) for pair in zip(self._last_b1.split(1), rows, strict=True)
            ]
        # The last byte is held back: the first step of writing passes it.
        heads = [row[:, :-1] for row in rows]
        if len({head.shape[1] for head in heads}) == 1:
            self._states = self._pass(torch.cat(heads), self._states)
        else:
            self._states = _joined(
                [self._pass(head, _row(self._states, n)) for n, head in enumerate(heads)]
            )
        self._last_b1 = torch.cat([row[:, -1:] for row in rows])

    def _pass(self, tokens_bt: Tensor, states: States | None) -> States | None:
        if tokens_bt.shape[1] == 0:
            return states
        with self._autocast():
            after: States = self._model(tokens_bt, states)[1]
        return after

    def state(self) -> tuple[States | None, Tensor, int]:
        """Return the states before the last byte, that byte [b, 1], and the bytes drawn so far."""
        assert self._last_b1 is not None, "nothing was read"
        return self._states, self._last_b1, self._drawn

    def continue_from(self, states: States | None, last_b1: Tensor, drawn: int) -> None:
        """Continue from a result of :meth:`state`, as if the text had never been interrupted."""
        self._states, self._last_b1, self._drawn = states, last_b1, drawn
        self._generators = []

    # ------------------------------------------------------------------------------- writing

    @torch.no_grad()
    def write(self, max_bytes: int) -> Iterator[list[bytes]]:
        """Yield pieces of text, one for each row, until every row has ``max_bytes`` more bytes.

        Raises:
            UserError: a CUDA graph was requested, and the step cannot be captured as one.
        """
        assert self._last_b1 is not None, "nothing was read"
        steps = _Steps(
            self._model, self._sampling, self._states, self._last_b1, kernels=self._kernels
        )
        wanted = self._device.type == "cuda" if self._graph is None else self._graph
        done = 0
        with _casts_kept():
            while done < max_bytes:
                size = min(BLOCK, max_bytes - done)
                if wanted and done == 0:
                    size = min(size, _EAGER_STEPS)
                with self._autocast(), self._weights.read():
                    if wanted and done == _EAGER_STEPS:
                        self._record(steps)
                        self.replayed = steps.replayed
                    pieces = steps.block(self._uniform(size))
                self._states, self._last_b1 = steps.states, steps.last_b1
                yield pieces
                done += size

    def _record(self, steps: _Steps) -> None:
        """Record the steps if their states allow it."""
        if not steps.settled:
            if self._graph:
                raise UserError(
                    "generate.graph=true: the state of this model grows with the text, and a CUDA "
                    "graph needs one shape; use generate.graph=auto"
                )
            return
        graphs = CudaGraphs(self._device) if self._graphs is None else self._graphs
        try:
            steps.record(graphs)
        except Exception as error:
            asked = "auto" if self._graph is None else "true"
            raise UserError(
                f"generate.graph={asked}: a step cannot be captured ({first_line(error)}); "
                "use generate.graph=false"
            ) from error

    def _uniform(self, size: int) -> Tensor:
        """Return the next numbers of every row's generator [k, b]."""
        assert self._last_b1 is not None
        if not self._generators:
            rows = range(len(self._last_b1))
            self._generators = [torch.Generator().manual_seed(self._seed + row) for row in rows]
            for generator in self._generators:  # the same ones for all parts of a text
                torch.rand(self._drawn, generator=generator)
        self._drawn += size
        numbers = [torch.rand(size, generator=generator) for generator in self._generators]
        return torch.stack(numbers, dim=1).to(self._device)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)


def _row(states: States | None, row: int) -> States | None:
    if states is None:
        return None
    return [{key: part[row : row + 1] for key, part in state.items()} for state in states]


def _joined(rows: Sequence[States | None]) -> States:
    """Join the states of single rows into one batch; a row without states starts from zeros."""
    like = next(row for row in rows if row is not None)
    zeros = [{key: torch.zeros_like(part) for key, part in state.items()} for state in like]
    whole = [zeros if row is None else row for row in rows]
    if any(layout(row) != layout(like) for row in whole):
        raise UserError(
            "generate.prompt: prompts of different lengths leave states of different shapes in "
            "this model; give prompts of one length, or one at a time"
        )
    return [
        {key: torch.cat([states[n][key] for states in whole]) for key in like[n]}
        for n in range(len(like))
    ]


class _Steps:
    """Runs steps on fixed tensors, so that a CUDA graph can record them.

    Attributes:
        states: States from before the last byte.
        last_b1: The last byte of every row [b, 1].
        settled: Whether the last step kept the states' shapes and dtypes.
    """

    def __init__(
        self,
        model: LanguageModel,
        sampling: Sampling,
        states: States | None,
        last_b1: Tensor,
        *,
        kernels: bool,
    ) -> None:
        self._model, self._sampling, self._kernels = model, sampling, kernels
        self.states, self.last_b1 = states, last_b1.clone()
        rows, device = len(last_b1), last_b1.device
        self._uniform_kb = torch.zeros(BLOCK, rows, device=device)
        self._bytes_kb = torch.zeros(BLOCK, rows, dtype=torch.long, device=device)
        self._place_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.settled = False
        self._replay_one: Callable[[], None] | None = None
        self._replay_block: Callable[[], None] | None = None

    @property
    def replayed(self) -> bool:
        """Whether steps are replayed."""
        return self._replay_one is not None

    def block(self, uniform_kb: Tensor) -> list[bytes]:
        """Take one step for each of the k rows of ``uniform_kb``; return the bytes of each text."""
        size = len(uniform_kb)
        self._uniform_kb[:size].copy_(uniform_kb)
        if size == BLOCK and self._replay_block is not None:
            self._replay_block()
        else:
            self._place_1.zero_()
            for _ in range(size):
                (self._replay_one or self._once)()
        return [bytes(row) for row in self._bytes_kb[:size].T.tolist()]

    def _once(self) -> None:
        """Take one eager step; the states are new tensors."""
        before = self.states
        self.states = self._advanced(before)
        self.settled = before is not None and layout(before) == layout(self.states)

    def record(self, graphs: Graphs) -> None:
        """Record one step and also a whole block of steps; both are replayed from now on."""
        assert self.states is not None, "steps before a recording are eager"
        self.states = copied(self.states)
        kept = copied(self.states), self.last_b1.clone()
        with graphs.aside():
            self._advance_in_place(1)  # builds and casts what a first call must
        recorded = [graphs.record(partial(self._advance_in_place, size)) for size in (1, BLOCK)]
        self._replay_one, self._replay_block = recorded
        overwrite(self.states, kept[0])
        self.last_b1.copy_(kept[1])

    def _advance_in_place(self, steps: int) -> None:
        assert self.states is not None
        if steps == BLOCK:
            self._place_1.zero_()
        states: States | None = self.states
        for _ in range(steps):
            states = self._advanced(states)
        assert states is not None
        overwrite(self.states, states)

    def _advanced(self, states: States | None) -> States:
        """Pass the last byte, draw the next one, and return the states between the two."""
        logits_btv, after = self._model(self.last_b1, states)
        self._draw(logits_btv[:, -1])
        self._place_1 += 1
        found: States = after
        return found

    def _draw(self, logits_bv: Tensor) -> None:
        """Draw the next byte of every text."""
        how = asdict(self._sampling)
        if self._kernels:
            places = self._uniform_kb, self._place_1, self.last_b1, self._bytes_kb
            draw_into(logits_bv, *places, **how)
            return
        uniform_b = self._uniform_kb.index_select(0, self._place_1).squeeze(0)
        next_b = reference.draw(logits_bv.float(), uniform_b, **how)
        self.last_b1.copy_(next_b.unsqueeze(1))
        self._bytes_kb.index_copy_(0, self._place_1, next_b.unsqueeze(0))


@contextmanager
def _casts_kept() -> Iterator[None]:
    """Keep autocast's copies of the weights between blocks, for as long as a graph reads them.

    Autocast drops its copies at the end of its outermost context. This opens such a context, but
    hides it from the code that receives the text.
    """
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
