"""Faults planted in the kernels' sources, and whether the emulation notices.

Every barrier and every wait is left out once, and an index or a size is wrong in each of the other
ways. A planted fault runs in a process of its own: what the emulator does not stop may crash.

    python -m tests.emulation.mutations [plan ...]
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import itertools
import multiprocessing
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.build import digest
from elman.kernels.sources import included_sources, source_folder
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda.heuristics import tile_config_of
from elman.ops.matrix_state.recurrences import CELLS
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from tests.emulation import emulator
from tests.emulation.planted import EDITS, RESET_EDITS

PLANS = {
    "e88": ("delta", {**DELTA, "gate_act": "sigmoid", "gate_bias": True, "residual": True}),
    "e70": ("decayed", E70),
    "e73-full": (
        "full_gated_sigmoid",
        {"z_act": "sigmoid", "z_bias": True, "k_unit": True, "self_gate": True},
    ),
    "e75": ("row_gated_delta", E75),
}


@dataclass(frozen=True)
class Case:
    """What the kernels are run with.

    Args:
        lanes: Lanes to a row.
        tall: Rows of a lane.
        warps: Warps of a block; with more than one there are producer warps.
        n: Rows and columns of a state.
        batch: B.
        time: T.
    """

    lanes: int
    tall: int
    warps: int
    n: int
    batch: int
    time: int


# First what notices most faults, as each case is compiled for itself: several row tiles of two
# warps with padding and producer warps, over five segments, where every set of inputs and every
# buffer is used again. Then a warp alone with halves in order, and six rows to a warp.
CASES = (Case(8, 1, 2, 20, 1, 53), Case(4, 2, 1, 16, 2, 35), Case(16, 3, 2, 20, 1, 19))
SHORT = 7  # steps, of a sequence without kept states
# Of a segment. Steps are taken eight at once, so that both loops over them run; states are kept
# within a segment of the forward pass.
FORWARD_STEPS, BACKWARD_STEPS = 12, 10
SEEDS = (1, 2, 3)
_BARRIER = re.compile(
    r"\b(sync<G>\(\)|sync_(?:warp|block)\(\)|relay\.meet\(.*\)|crew\.meet\(\)|"
    r"(?:(?:relay|handover)\.)?(?:walked|prepared|recomputed)\.\w+\(.*\)|"
    r"signals_ready\(\)|commit_copies\(\)|wait_copies<0>\(\));"
)
# A place of those cells alone that have a flag, or of plans with parameters that a block sums.
_GUARD = re.compile(r"if constexpr \(Cell::(\w+)\) $")
_FLAGS = {"READ": "reads"}
_GROUP_SUM = "group_sum"
# Faults of what some plans have no use for, and the options of which they have one.
_NEEDS = {
    "one buffer too few": ("gate_act",),
    "one buffer too few on the way back": ("k_act", "z_act"),
    "norms of the segment before": ("k_unit",),
    "parameters of rows that are not there": ("residual",),
    "output's parameters of rows that are not there": ("residual", "gate_bias"),
}


@dataclass(frozen=True)
class Mutation:
    """One planted fault.

    Args:
        what: In words.
        file: The source under csrc/cuda/matrix_state, without its suffix.
        text: The whole source with the fault.
        guard: The cell's flag without which the place is not compiled, if it stands behind one.
        options: Options of a plan without which it is no fault, one of them.
        resets: Whether it is a fault of kernels with resets.
    """

    what: str
    file: str
    text: str
    guard: str = ""
    options: tuple[str, ...] = ()
    resets: bool = False

    def compiled_for(self, plan: str) -> bool:
        """Return whether a plan's kernels contain the place at all."""
        cell, options = PLANS[plan]
        if self.guard == _GROUP_SUM:
            return options.get("z_bias", False) or options.get("decay", "none") != "none"
        if self.options:
            return any(options.get(name) for name in self.options)
        return not self.guard or getattr(CELLS[cell], _FLAGS[self.guard])


def mutations() -> list[Mutation]:
    """Return all of them, those of barriers first."""
    folder = source_folder() / "cuda/matrix_state"
    found = []
    for path in sorted(folder.glob("*.cuh")):
        if path.stem in ("smem_staging", "slots"):  # E63m's slots have faults of their own
            continue
        source = path.read_text()
        for number, match in enumerate(_BARRIER.finditer(source), 1):
            without = source[: match.start()] + ";" + source[match.end() :]
            what = f"{path.stem}: {match[1]} no. {number} left out"
            found.append(Mutation(what, path.stem, without, _guard(source[: match.start()])))
    for what, (file, old, new) in EDITS.items():
        source = (folder / f"{file}.cuh").read_text()
        text = edited(source, old, new)
        found.append(Mutation(f"{file}: {what}", file, text, options=_NEEDS.get(what, ())))
    for what, (file, old, new) in RESET_EDITS.items():
        text = edited((folder / f"{file}.cuh").read_text(), old, new)
        found.append(Mutation(f"{file}: {what}", file, text, resets=True))
    return found


def edited(source: str, old: str, new: str) -> str:
    """Return a source with one text, however its lines are indented, in the place of another."""
    lines = r"\n\s*".join(re.escape(line.strip()) for line in old.strip().split("\n"))
    text, count = re.subn(lines, lambda _: new, source, count=1)
    assert count, old
    return text


def _guard(before: str) -> str:
    """Return what the place after a text needs, to be compiled at all."""
    if re.findall(r"DEVICE \w+ (\w+)\(", before)[-1:] == [_GROUP_SUM]:
        return _GROUP_SUM
    guard = _GUARD.search(before)
    return guard[1] if guard else ""


def outcome(mutation: Mutation | None, plan: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        if mutation:
            (root / "cuda/matrix_state" / f"{mutation.file}.cuh").write_text(mutation.text)
        resets = mutation is not None and mutation.resets
        for case in CASES:
            for time in (case.time, SHORT):
                _wanted(plan, case, time, resets)  # here, so that every process has them
            said = _in_process(_run, (root, plan, case, resets))
            if said != "-":
                return said
    return "-"


def _in_process(function: Any, arguments: tuple[Any, ...]) -> str:
    """Call a function in a forked process: it may crash or never end."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def call() -> None:
        faulthandler.disable()  # a crash is an outcome, not news
        send.send(function(*arguments))

    process = context.Process(target=call)
    process.start()
    send.close()
    said = "crash"
    # The end of the pipe without a word is a process that died.
    with contextlib.suppress(EOFError):
        said = receive.recv() if receive.poll(120) else "never ends"
    process.kill()
    process.join()
    return said


def _run(root: Path, name: str, case: Case, resets: bool) -> str:
    """Run a mutated engine in all orders and compare with the one that is whole."""
    library = functools.cache(lambda text: _mutated(text, root))
    try:
        for seed, time in [*((seed, case.time) for seed in SEEDS), (1, SHORT)]:
            wanted = _wanted(name, case, time, resets)
            found = results(name, case, time, library, seed, resets=resets)
            for tensor, right in zip(found, wanted, strict=True):
                if not torch.allclose(tensor, right, rtol=1e-4, atol=1e-5):
                    return "wrong numbers"
    except emulator.FaultError as fault:
        return str(fault)
    except AssertionError as refused:
        return refusal(refused)
    return "-"


@functools.cache
def _wanted(name: str, case: Case, time: int, resets: bool) -> list[Tensor]:
    """Return the results of the engine that is whole; nobody writes to them."""
    return results(name, case, time, emulator.loaded, 1, resets=resets)


def _mask(batch: int, time: int) -> Tensor:
    """Return resets within segments of ten steps and on either side of their boundaries."""
    places = torch.arange(time) + 2 * torch.arange(batch).unsqueeze(1)
    return torch.isin(places % BACKWARD_STEPS, torch.tensor([0, 4, 9]))


def refusal(refused: AssertionError) -> str:
    """Return what a compiler has against a fault.

    The sizes that Python and C++ both count are compared by the kernels themselves. With any other
    error the fault was never tested, see :func:`noticed`.
    """
    by_itself = re.search("static assertion failed.*", str(refused))
    return by_itself[0] if by_itself else f"does not compile: {str(refused)[:200]}"


def noticed(said: str) -> bool:
    """Return whether an outcome says that a fault was noticed."""
    return said != "-" and not said.startswith("does not compile")


def _mutated(text: str, root: Path) -> ctypes.CDLL:
    """Return the library of a text with the sources in ``root``."""
    sources = [path.relative_to(source_folder()) for path in included_sources(text)]
    if all((root / path).read_bytes() == (source_folder() / path).read_bytes() for path in sources):
        return emulator.loaded(text)
    library = root.parent / f"{digest(text.encode())}.so"
    if not library.exists():
        emulator.compile_unit(text, root, library)
    return ctypes.CDLL(str(library))


@contextlib.contextmanager
def with_fault(file: str, old: str, new: str) -> Iterator[Path]:
    """Yield a copy of all sources in which a text of one file, which has it once, is another."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        whole = (root / file).read_text()
        assert whole.count(old) == 1, (file, old, whole.count(old))
        (root / file).write_text(whole.replace(old, new))
        yield root


def verdict(same: Callable[[], bool]) -> str:
    """Return what an emulator or a compiler says of a comparison, or how it ends.

    Args:
        same: Runs an engine with a fault, and returns whether it computes what the whole one does.
    """
    try:
        return "-" if same() else "wrong numbers"
    except (emulator.FaultError, UserError) as fault:
        return str(fault)
    except AssertionError as refused:
        return refusal(refused)


def verdict_on_bits(tensors: Callable[[int, emulator.Library], list[Tensor]], root: Path) -> str:
    """Return the verdict on an engine with a fault, compared to the bit in two orders of threads.

    Args:
        tensors: Runs the engine in an order, as a library has it; returns what it computes.
        root: The sources with the fault.
    """
    emulator.poison(setattr)
    whole = tensors(1, functools.partial(_mutated, root=source_folder()))

    def same() -> bool:
        library = functools.partial(_mutated, root=root)
        runs = (zip(tensors(seed, library), whole, strict=True) for seed in (1, 2))
        return all(torch.equal(left, right) for run in runs for left, right in run)

    return verdict(same)


def print_outcomes(outcome: Callable[[str], str], faults: Iterable[str]) -> int:
    """Print how every fault was noticed; return 1 if one was not."""
    said = {what: outcome(what) for what in faults}
    for what, how in said.items():
        print(f"{what:60} {how}")
    return int(not all(map(noticed, said.values())))


def _framed(tensor: Tensor, frame: int) -> Tensor:
    """Return a copy with so many NaN around it in memory: what is read beside it is then seen."""
    room = torch.full((tensor.numel() + 2 * frame,), torch.nan)
    return room[frame : frame + tensor.numel()].view(tensor.shape).copy_(tensor)


def results(
    name: str,
    case: Case,
    time: int,
    library: Any,
    seed: int,
    frame: int = 1024,
    *,
    resets: bool = False,
) -> list[Tensor]:
    """Run both passes over the same numbers; return outputs and gradients."""
    cell, options = PLANS[name]
    plan = stacked_plan(cell, 2, case.n, case.n, **options)
    types = emulator.types_of(plan, torch.float32)
    chosen = tile_config_of(plan, types, case.lanes, case.warps, BACKWARD_STEPS, case.tall)
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return _framed(scale * torch.randn(*shape, generator=generator), frame)

    def empty(*shape: int) -> Tensor:
        return _framed(torch.full(shape, torch.nan), frame)

    ends = [place.start + plan.heads * plan.width(name) for name, place in plan.roles]
    source = normal(case.batch, time, max(ends) + -max(ends) % 8)
    parameters = [normal(*plan.parameter_shape(n), scale=0.5) for n in plan.parameter_names]
    state = (case.batch, plan.heads, plan.rows, plan.columns)
    made = {"out": empty(case.batch, time, plan.heads, plan.rows)}
    made |= {"last": empty(*state), "dfirst": empty(*state)}
    checkpoints = empty(chosen.checkpoint_numbers(case.batch, time))
    dsource = torch.zeros(source.shape)
    dparameters = [empty(*p.shape) for p in parameters]
    call = Call(plan, [source], parameters, chosen.steps)
    first, dlast = normal(*state, scale=0.5), normal(*state)
    call.point(first=first, dlast=dlast, checkpoints=checkpoints, **made)
    call.point_output_gradient(normal(*made["out"].shape))
    call.point_gradients([dsource], dparameters)
    if resets:
        call.point_resets(_mask(case.batch, time))
    chosen = replace(chosen, producers=case.warps > 1)
    forward = replace(chosen, steps=FORWARD_STEPS)
    for backward, tile_config in enumerate((forward, chosen)):
        emulator.run(library, call, tile_config, backward=bool(backward), seed=seed)
    return [*made.values(), dsource, *dparameters]


def main() -> int:
    """Print how every fault was noticed; 1 if one was not."""
    missed = 0
    for plan, mutation in itertools.product(sys.argv[1:] or ["e88"], mutations()):
        if not mutation.compiled_for(plan):
            continue
        said = outcome(mutation, plan)
        missed += not noticed(said)
        print(f"{plan:10} {mutation.what:60} {said}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
