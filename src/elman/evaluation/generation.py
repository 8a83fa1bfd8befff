"""Generates text token by token from carried states, so that every token costs the same.

A token is a byte unless the model has a tokenizer.

Shape legend: b rows, t tokens of a prompt, v tokens of the vocabulary, k tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.base.errors import UserError, first_line
from elman.evaluation.sampling import Sampling
from elman.kernels.graphs import CudaGraphs, Graphs
from elman.models.language_model import LanguageModel
from elman.models.state import State, copied, layout, overwrite
from elman.models.text_step import states_of, text_kernel
from elman.ops.decode import reference
from elman.ops.decode.draw import MOST_VALUES, draw_into
from elman.ops.decode.step import TextKernel
from elman.ops.linear import KeptCopies
from elman.sections.training import SEPARATOR

# A text without a prompt starts from the separator between documents.
START = SEPARATOR
# Tokens between two reads from the device: at 4,000 bytes/s a reader sees 60 pieces a second.
BLOCK = 64
# The same where one kernel takes them all, so that launches are seldom.
_LONG_BLOCK = 256
# Steps before a recording; after them states have their final layout and kernels are built.
_EAGER_STEPS = 2
# What is left of a text is written in blocks of so many tokens that few are too many.
_BYTES_OF_TOKEN = 4
# More tokens than this beyond two for each byte are ids without bytes.
_VAIN_TOKENS = 1000

States = list[State]


class Rows(NamedTuple):
    """Texts whose states have one shape, so that they take their steps together.

    Attributes:
        rows: Which texts of the writer, in order.
        states: Their states from before the last byte; None is the model's own start.
    """

    rows: tuple[int, ...]
    states: States | None


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
    """Yield ``max_bytes`` bytes that continue ``prompt``; of tokens, up to the end of the last.

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

    A row's text does not depend on its neighbors: each prompt is read by itself, and rows whose
    states differ in shape, such as the keys of an attention, take their steps apart.

    Args:
        model: A model in evaluation mode.
        sampling: How the next byte is chosen.
        seed: Row i draws with ``seed + i``, so that a row's draws do not depend on the others.
        bf16: Compute under bf16 autocast.
        kernels: On a GPU, use the special kernels for products of a few rows and for draws.
        graph: Replay a step as a CUDA graph; None does so on a GPU if the state keeps its shape.
        graphs: Records and replays the work; None means CUDA graphs.
        fused: Take whole steps in one kernel, if there is one for the model and the rows; None does
            so where that is faster. It needs ``kernels`` and ``bf16``.

    Attributes:
        device: Where the model is.
        replayed: Whether the steps of the last :meth:`write` were replayed.
        fused: Whether one kernel took them.
        unfused: Why not, in words, if it was tried.
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
        fused: bool | None = False,
    ) -> None:
        self._model, self._sampling, self._seed = model, sampling, seed
        self.device = self._device = next(model.parameters()).device
        self._bf16, self._kernels, self._graph, self._graphs = bf16, kernels, graph, graphs
        self._weights = KeptCopies(self.device.type, few_rows=kernels)
        self._parts: list[Rows] = []
        self._last_b1: Tensor | None = None
        self._generators: list[torch.Generator] = []
        self._drawn = 0
        self._wants_fused = fused
        self.replayed = self.fused = False
        self.unfused = ""

    # ------------------------------------------------------------------------------- reading

    @torch.no_grad()
    def read(self, prompts: Sequence[bytes]) -> None:
        """Pass one prompt per row through the model; after an earlier text they continue its rows.

        Equal prompts of new texts pass once.

        Args:
            prompts: At least one, none of them empty.

        Raises:
            ValueError: a prompt is empty, or the number of prompts differs from the number of rows.
        """
        if not prompts or not all(prompts):
            raise ValueError("prompts: expected at least one, each of at least 1 byte")
        rows = [torch.tensor([self._ids(prompt)], device=self._device) for prompt in prompts]
        before: dict[int, States | None] = {}
        if self._last_b1 is not None:
            if len(prompts) != len(self._last_b1):
                raise ValueError(f"prompts: expected {len(self._last_b1)}, one for every row")
            rows = [
                torch.cat(pair, dim=1) for pair in zip(self._last_b1.split(1), rows, strict=True)
            ]
            before = _taken_apart(self._parts)
        # The last byte is held back: the first step of writing passes it.
        read: dict[bytes, States | None] = {}
        after = []
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            if number in before or prompt not in read:
                read[prompt] = self._pass(row[:, :-1], before.get(number))
            after.append(read[prompt])
        self._parts = _joined(after)
        self._last_b1 = torch.cat([row[:, -1:] for row in rows])

    def _pass(self, tokens_bt: Tensor, states: States | None) -> States | None:
        if tokens_bt.shape[1] == 0:
            return states
        with self._autocast():
            after: States = self._model(tokens_bt, states)[1]
        return after

    def _ids(self, prompt: bytes) -> list[int]:
        tokenizer = self._model.tokenizer
        return list(prompt) if tokenizer is None else tokenizer.encode(prompt).tolist()

    def state(self) -> tuple[list[Rows], Tensor, int]:
        """Return the states before the last byte, that byte [b, 1], and the bytes drawn so far."""
        assert self._last_b1 is not None, "nothing was read"
        return self._parts, self._last_b1, self._drawn

    def continue_from(self, parts: list[Rows], last_b1: Tensor, drawn: int) -> None:
        """Continue from a result of :meth:`state`, as if the text had never been interrupted."""
        self._parts, self._last_b1, self._drawn = parts, last_b1, drawn
        self._generators = []

    # ------------------------------------------------------------------------------- writing

    @torch.no_grad()
    def write(self, max_bytes: int) -> Iterator[list[bytes]]:
        """Yield pieces of text, one for each row, until every row has ``max_bytes`` more bytes.

        Texts of tokens end with a whole token, and some of several become longer.

        Raises:
            UserError: a CUDA graph was requested, and the step cannot be captured as one; or one
                kernel was, and there is none; or most tokens stand for no bytes.
        """
        assert self._last_b1 is not None, "nothing was read"
        before = self._drawn
        each = [
            (part.rows, self._steps(part, self._last_b1[list(part.rows)])) for part in self._parts
        ]
        wanted = self._device.type == "cuda" if self._graph is None else self._graph
        wanted = wanted or self._wants_fused is not False
        done = 0
        texts = np.zeros(len(self._last_b1), dtype=np.int64)
        begin = partial(self._begin, each, recorded=wanted)
        after: _Block | None = None
        try:
            with _casts_kept():
                while done < max_bytes:
                    block = after or begin(max_bytes - done)
                    # The next launch waits on the GPU while the host reads and shows these bytes.
                    left, after = max_bytes - done - block.size, None
                    if left > 0 and self._runs_ahead([steps for _, steps in each]):
                        after = begin(left)
                    pieces = block.read()
                    self._parts, self._last_b1 = block.parts, block.last_b1
                    self._drawn += block.size
                    yield pieces
                    texts += [len(piece) for piece in pieces]
                    done = int(texts.min())
                    if done < max_bytes and self._drawn - before > 2 * max_bytes + _VAIN_TOKENS:
                        raise self._draws_in_vain(self._drawn - before, done)
        finally:
            if after is not None:  # nobody asked for it
                self._generators = []

    def _draws_in_vain(self, tokens: int, written: int) -> UserError:
        assert self._model.tokenizer is not None, "a byte is a byte"
        return UserError(
            f"the model writes ids that {self._model.tokenizer.name} does not use: {tokens:,} "
            f"tokens are {written:,} bytes; train it longer, or use a tokenizer without such ids"
        )

    def _steps(self, part: Rows, last_b1: Tensor) -> _Steps:
        return _Steps(self._model, self._sampling, part.states, last_b1, kernels=self._kernels)

    def _runs_ahead(self, each: Sequence[_Steps]) -> bool:
        """Return whether the next block may begin before the bytes of this one are read.

        A kernel leaves the states in memory that its next launch reads but does not write. How
        many tokens are left is known beforehand if each is a byte.
        """
        return self._model.tokenizer is None and all(steps.fused for steps in each)

    def _begin(
        self, each: Sequence[tuple[tuple[int, ...], _Steps]], left: int, *, recorded: bool
    ) -> _Block:
        """Let all rows take the steps of a block, of at most ``left`` bytes where one is enough."""
        done = each[0][1].taken
        with self._autocast(), self._weights.read():
            if recorded and done == _EAGER_STEPS:
                self._prepare([steps for _, steps in each])
            size = max(1, left if self._model.tokenizer is None else left // _BYTES_OF_TOKEN)
            size = min(size, _LONG_BLOCK if self.fused else BLOCK)
            if recorded and done < _EAGER_STEPS:
                size = min(size, _EAGER_STEPS - done)
            uniform_kb = self._uniform(size)
            reads = [(rows, steps.block(_columns(uniform_kb, rows))) for rows, steps in each]
        last = {
            row: last_11
            for rows, steps in each
            for row, last_11 in zip(rows, steps.last_b1.split(1), strict=True)
        }
        return _Block(
            size,
            [Rows(rows, steps.states) for rows, steps in each],
            torch.cat([last[row] for row in range(len(last))]),
            partial(_pieces, reads),
        )

    def _prepare(self, each: Sequence[_Steps]) -> None:
        """Find a kernel of whole steps, or record them."""
        if self._wants_fused is not False:
            how = {"if_faster": self._wants_fused is None}
            problems = [steps.fuse(self._weights.copy_of, **how) for steps in each]
            self.unfused = next(filter(None, problems), "")
            self.fused = not self.unfused
            if self._wants_fused and self.unfused:
                raise UserError(
                    f"generate.fused=true: no kernel takes whole steps here: {self.unfused}; "
                    "use generate.fused=auto"
                )
        if self._graph is False or (self._graph is None and self._device.type != "cuda"):
            return
        for steps in each:
            if not steps.fused:
                self._record(steps)
        self.replayed = all(steps.replayed for steps in each)

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
        numbers = [torch.rand(size, generator=generator) for generator in self._generators]
        uniform_kb = torch.stack(numbers, dim=1)
        if self._device.type != "cuda":
            return uniform_kb
        return uniform_kb.pin_memory().to(self._device, non_blocking=True)  # waits for no launch

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)


def _taken_apart(parts: Sequence[Rows]) -> dict[int, States | None]:
    """Return the states of every single row."""
    found: dict[int, States | None] = {}
    for rows, states in parts:
        for place, row in enumerate(rows):
            found[row] = states and [
                {key: part[place : place + 1] for key, part in state.items()} for state in states
            ]
    return found


def _joined(rows: Sequence[States | None]) -> list[Rows]:
    """Join the states of single rows where they have one shape, in the order of the rows."""
    alike: list[list[int]] = []
    for number, states in enumerate(rows):
        for others in alike:
            first = rows[others[0]]
            if states is first or (states and first and layout(states) == layout(first)):
                others.append(number)
                break
        else:
            alike.append([number])
    return [Rows(tuple(numbers), _batch([rows[n] for n in numbers])) for numbers in alike]


def _batch(rows: Sequence[States | None]) -> States | None:
    """Return the states of rows of one shape as one batch."""
    whole = [states for states in rows if states is not None]
    if not whole:
        return None
    return [
        {key: torch.cat([states[n][key] for states in whole]) for key in whole[0][n]}
        for n in range(len(whole[0]))
    ]


class _Block(NamedTuple):
    """Steps that all rows have taken, or take on the GPU; see :meth:`Writer.state`.

    Attributes:
        size: Number of steps.
        parts: States behind them.
        last_b1: The last byte of every row.
        read: Waits for the bytes of each text, and returns them.
    """

    size: int
    parts: list[Rows]
    last_b1: Tensor
    read: Callable[[], list[bytes]]


def _columns(uniform_kb: Tensor, rows: tuple[int, ...]) -> Tensor:
    whole = rows == tuple(range(uniform_kb.shape[1]))
    return uniform_kb if whole else uniform_kb[:, list(rows)]


def _pieces(reads: Sequence[tuple[tuple[int, ...], Callable[[], list[bytes]]]]) -> list[bytes]:
    """Read what several steps wrote, in the order of the rows."""
    found = {row: piece for rows, read in reads for row, piece in zip(rows, read(), strict=True)}
    return [found[row] for row in range(len(found))]


def on_its_way(drawn_kb: Tensor) -> Callable[[], Tensor]:
    """Start to copy bytes to the host; return what waits for them, and for no later launch."""
    if not drawn_kb.is_cuda:
        copy_kb = drawn_kb.clone()
        return lambda: copy_kb
    copy_kb = torch.empty(drawn_kb.shape, dtype=drawn_kb.dtype, pin_memory=True)
    copy_kb.copy_(drawn_kb, non_blocking=True)
    there = torch.cuda.Event()
    there.record()

    def wait() -> Tensor:
        there.synchronize()
        return copy_kb

    return wait


class _Steps:
    """Runs steps on fixed tensors, so that a CUDA graph can record them.

    Attributes:
        states: States from before the last byte.
        last_b1: The last byte of every row [b, 1].
        settled: Whether the last step kept the states' shapes and dtypes.
        taken: Number of steps so far.
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
        rows, device, most = len(last_b1), last_b1.device, max(BLOCK, _LONG_BLOCK)
        self._decode = bytes if model.tokenizer is None else model.tokenizer.decode
        self._uniform_kb = torch.zeros(most, rows, device=device)
        self._bytes_kb = torch.zeros(most, rows, dtype=torch.long, device=device)
        self._place_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.settled, self.taken = False, 0
        self._replay_one: Callable[[], None] | None = None
        self._replay_block: Callable[[], None] | None = None
        self._kernel: TextKernel | None = None

    @property
    def fused(self) -> bool:
        """Whether one kernel takes the steps."""
        return self._kernel is not None

    @property
    def replayed(self) -> bool:
        """Whether steps are replayed."""
        return self._replay_one is not None

    def block(self, uniform_kb: Tensor) -> Callable[[], list[bytes]]:
        """Take one step for each of the k rows of ``uniform_kb``.

        Returns:
            What waits for the bytes of each text.
        """
        size = len(uniform_kb)
        self.taken += size
        self._uniform_kb[:size].copy_(uniform_kb)
        if self._kernel is not None:
            self._write(self._kernel, size)
        elif size == BLOCK and self._replay_block is not None:
            self._replay_block()
        else:
            self._place_1.zero_()
            for _ in range(size):
                (self._replay_one or self._once)()
        wait = on_its_way(self._bytes_kb[:size])
        return lambda: [self._decode(row) for row in wait().T.tolist()]

    def fuse(self, copy: Callable[[Tensor], Tensor], *, if_faster: bool) -> str:
        """Let one kernel take the steps from now on; return in words why it does not.

        Args:
            copy: Returns a weight as the products read it.
            if_faster: Whether only a kernel is wanted that was measured to be faster.
        """
        if not self._kernels:
            return "the special kernels are off"
        assert self.states is not None, "steps before a kernel are eager"
        found = text_kernel(self._model, self.states, copy, if_faster=if_faster)
        if isinstance(found, str):
            return found
        self._kernel, self.states = found, states_of(found)
        return ""

    def _write(self, kernel: TextKernel, size: int) -> None:
        drawn_kb = self._bytes_kb[:size]
        how = asdict(self._sampling)
        kernel.write(self._uniform_kb[:size], self.last_b1.flatten(), drawn_kb, **how)
        # Whoever stops before the next launch needs the last byte of this one.
        self.last_b1 = drawn_kb[-1].unsqueeze(1).clone()
        self.states = states_of(kernel)

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
        if self._kernels and logits_bv.shape[1] <= MOST_VALUES:
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
