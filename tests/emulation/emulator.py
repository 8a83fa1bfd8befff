"""The CUDA kernels' own sources, run on a CPU: the launcher that stands in for NVRTC and driver."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elman.kernels.build
from elman.kernels import sources
from elman.kernels.build import digest
from elman.kernels.cache import kernel_cache
from elman.kernels.compiler import BASE_FLAGS, find_compiler, run_compiler
from elman.kernels.entry import making, scratch_folder
from elman.kernels.launching import Launch
from elman.kernels.sources import source_folder, sources_hash
from elman.ops.channel import source as channel_kernels
from elman.ops.dense import source as dense_source
from elman.ops.matrix_state import abi
from elman.ops.matrix_state import cpu as matrix_cpu
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import (
    H200,
    choose,
    forward_of,
    natural_align,
    tile_config_of,
)
from elman.ops.matrix_state.cuda.tile_config import TileConfig, Types
from elman.ops.matrix_state.custom_op import Kernels
from elman.ops.matrix_state.plan import Plan
from elman.ops.tape import source as tape_source
from tests.emulation.stretches import declare, of_matrix, rows

HEADER, FAST_HEADER = "emulation/device.h", "emulation/fast_device.h"
GRID_HEADER = "emulation/grid.h"
CLUSTER_HEADER, FAST_CLUSTER_HEADER = "emulation/cluster.h", "emulation/fast_cluster.h"
CUDA_HEADER = "emulation/ptx.h"  # for cuda/common/device.cuh itself, see device_text.py
# Static data stay a library's own.
_SHARED = (*BASE_FLAGS, "-w", "-fno-gnu-unique")
_FLAGS = (*_SHARED, "-O0")  # compiling a kernel takes longer than running it
# The emulator itself, which is compiled once: see emulation/emulator.cpp.
_ONCE = (*_SHARED, "-O2", "-fno-semantic-interposition", "-c")
EMULATOR = "emulation/emulator.cpp"
# What is compiled under them takes several times as long, and is run once.
SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")

Library = Callable[[str], ctypes.CDLL]
"""Compiles and loads a translation unit."""


class FaultError(Exception):
    """What the emulator reports: a race, an index outside an array, a barrier nobody reaches."""


def compile_unit(text: str, root: Path, library: Path, flags: tuple[str, ...] = ()) -> None:
    """Compile a translation unit whose includes lie in ``root``."""
    compiler = find_compiler()
    assert compiler is not None
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        source, made = Path(folder, "unit.cpp"), Path(folder, "unit.so")
        source.write_text(text)
        header = re.findall(r'#include "(emulation/\w+\.h)"', text)[0]
        places = ["-I", str(precompiled(header, flags)), "-I", str(root)]
        command = [*compiler.command, *_FLAGS, *flags, *places, str(source), str(runtime(flags))]
        done = run_compiler([*command, "-o", str(made)], Path(folder))
        assert done.returncode == 0, done.stderr[:4000]
        os.replace(made, library)


@functools.cache
def precompiled(name: str, flags: tuple[str, ...]) -> Path:
    """Return a folder with a compiled header of the emulation, half of what compiling takes.

    A compiler that does not look for such files, or refuses this one, takes the header itself.
    """
    return compiled_once(name, f"{name}.gch", (*_FLAGS, *flags, "-x", "c++-header"))


@functools.cache
def runtime(flags: tuple[str, ...]) -> Path:
    """Return what the emulator itself is compiled to, which every unit is linked with."""
    return compiled_once(EMULATOR, "emulator.o", (*_ONCE, *flags)) / "emulator.o"


def compiled_once(name: str, made: str, flags: tuple[str, ...]) -> Path:
    """Return a folder of the cache with a compiled source of the emulation; make it if needed.

    Args:
        name: Of the source, under csrc.
        made: Of what it is compiled to, in the folder.
        flags: All flags of the compiler.
    """
    compiler = find_compiler()
    assert compiler is not None
    parts = (sources_hash(f'#include "{name}"'), flags, compiler.version)
    folder = kernel_cache() / f"emulated-once-{digest(repr(parts).encode())[:20]}"
    with making(folder, "emulator"):
        if not (folder / made).exists():
            (folder / made).parent.mkdir(exist_ok=True)
            with scratch_folder(folder) as scratch:
                command = [*compiler.command, *flags, "-I", str(source_folder())]
                command += [str(source_folder() / name), "-o", "compiled"]
                done = run_compiler(command, scratch)
                assert done.returncode == 0, done.stderr[:4000]
                os.replace(scratch / "compiled", folder / made)
    return folder


@functools.cache
def loaded(text: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Return the library of a translation unit; compile it if that was not done before."""
    hashes = (sources_hash(text), sources_hash(f'#include "{EMULATOR}"'))
    key = digest(repr((hashes, flags)).encode())[:20]
    path = kernel_cache() / f"emulated-{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        compile_unit(text, source_folder(), path, flags)
    return ctypes.CDLL(str(path))


def planted(
    folder: Path,
    file: str,
    edit: Callable[[str], str],
    text: str,
    flags: tuple[str, ...] = (),
) -> ctypes.CDLL:
    """Return the library of a translation unit over sources of which one is faulty.

    Args:
        folder: Where they are copied to.
        file: The faulty one, under csrc.
        edit: Makes the faulty text of the whole one.
        text: The translation unit.
        flags: Further flags for the compiler.
    """
    root, made = folder / "csrc", folder / f"{digest(text.encode())}.so"
    if not root.exists():
        shutil.copytree(source_folder(), root)
        whole = (root / file).read_text()
        (root / file).write_text(edit(whole))
        assert (root / file).read_text() != whole, file
    if not made.exists():
        compile_unit(text, root, made, flags)
    return ctypes.CDLL(str(made))


def faulty(folder: Path, file: str, fault: tuple[str, str] | None) -> Library:
    """Return what compiles translation units over sources in which one text is another.

    Args:
        folder: Where the sources are copied to.
        file: The faulty one, under csrc.
        fault: The text that it has and the one that it gets; None leaves it whole.
    """
    if fault is None:
        return loaded
    old, new = fault
    return lambda text: planted(folder, file, lambda whole: whole.replace(old, new), text)


@functools.cache
def keeping(kind: type, kept: int | None) -> Any:
    """Return a class of configs that keep so many fragments of a matrix in registers.

    Configs that differ in this alone are not equal, so that no text is taken for another's.

    Args:
        kind: The class of the engine's own configs.
        kept: Fragments; None: as many as fit, as the engine has it.
    """
    return kind if kept is None else type(kind.__name__, (kind,), {"kept": kept})


def noticed(run: Callable[[], None]) -> bool:
    """Return whether the emulator, or a comparison, fails in a run."""
    try:
        run()
    except (FaultError, AssertionError):
        return True
    return False


def poison(patch: Callable[[Any, str, Any], None]) -> None:
    """Let every new tensor be NaN until something is written to it.

    Args:
        patch: Replaces an attribute: that of pytest's monkeypatch, or setattr.
    """

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        patch(owner, name, poisoned(getattr(owner, name)))


def stand_in(patch: Callable[[Any, str, Any], None], module: Any, emulate: Callable) -> None:
    """Let the kernels of a module run on CPU tensors, with NaN wherever nothing was written.

    Args:
        patch: As in :func:`poison`.
        module: It launches by ``LAUNCH(config, wanted, arguments, device)``.
        emulate: ``emulate(library, config, wanted, arguments)`` runs the same on the CPU.
    """
    patch(module, "LAUNCH", lambda *call: emulate(loaded, *call[:3]))
    poison(patch)


def note_launches(patch: Callable[[Any, str, Any], None], module: Any) -> list[tuple[Any, str]]:
    """Return a list that gets the config and the name of each kernel that a module launches later.

    Args:
        patch: As in :func:`poison`.
        module: As in :func:`stand_in`.
    """
    noted: list[tuple[Any, str]] = []
    run = module.LAUNCH

    def launch(config: Any, wanted: Sequence[Launch], *rest: Any) -> None:
        noted.extend((config, one.kernel) for one in wanted)
        run(config, wanted, *rest)

    patch(module, "LAUNCH", launch)
    return noted


def plant_in_cpu_engines(folder: Path, file: str, edit: Callable[[str], str]) -> None:
    """Let this process compile its CPU kernels from sources of which one is faulty.

    Args:
        folder: Where they are copied to, and where the kernels are kept.
        file: The faulty one, under csrc.
        edit: Makes the faulty text of the whole one.
    """
    root = folder / "csrc"
    shutil.copytree(source_folder(), root)
    whole = (root / file).read_text()
    assert edit(whole) != whole, file
    (root / file).write_text(edit(whole))
    elman.kernels.build.source_folder = sources.source_folder = lambda: root
    os.environ["ELMAN_CACHE"] = str(folder)
    # What was compiled before is not asked for again.
    channel_kernels.kernel_for.cache_clear()
    channel_kernels.KERNELS.forget()
    dense_source.KERNELS.forget()
    tape_source.KERNELS.forget()
    matrix_cpu._found.clear()
    matrix_cpu._loaded.clear()


def start(library: ctypes.CDLL, wanted: Launch, args: ctypes.Structure, seed: int = 1) -> None:
    """Run the blocks of a kernel, one after another.

    Raises:
        FaultError: the emulator found one.
    """
    run_blocks(library, wanted, args, range(wanted.blocks), seed)


def run_blocks(
    library: ctypes.CDLL, wanted: Launch, args: ctypes.Structure, blocks: range, seed: int = 1
) -> None:
    """Run some of the blocks of a kernel.

    Raises:
        FaultError: the emulator found one.
    """
    begin_early = library.elman_begin_early
    begin_early.restype = None
    begin_early(ctypes.c_int(wanted.early))
    kernel = library[wanted.kernel]
    kernel.restype = ctypes.c_char_p
    places = ctypes.c_int64(blocks.start), ctypes.c_int64(len(blocks))
    said = kernel(ctypes.byref(args), *places, ctypes.c_int(wanted.shared_bytes), seed)
    if said:
        raise FaultError(f"{wanted.kernel}: {said.decode()}")


def declare_tensors(
    library: ctypes.CDLL, read: dict[str, Tensor], written: dict[str, Tensor]
) -> None:
    """Let the next launch touch contiguous tensors, by name."""
    declare(
        library,
        [
            rows(name, tensor.data_ptr(), tensor.nbytes, writable=tensors is written)
            for tensors in (read, written)
            for name, tensor in tensors.items()
        ],
    )


def header_for(fast: bool) -> str:
    """Return the header of kernels with the machine's fast functions, or with exact ones."""
    return FAST_HEADER if fast else HEADER


def fitted(call: Call, chosen: TileConfig, backward: bool) -> TileConfig:
    """Return a tile config with the alignment that a call's tensors have, and its resets."""
    align = kernels.alignment(call, chosen, backward)
    return replace(chosen, align=align, resets=call.resets)


def run(
    library: Callable[[str], ctypes.CDLL],
    call: Call,
    chosen: TileConfig,
    *,
    backward: bool,
    seed: int = 1,
) -> None:
    """Run one pass of a call whose tensors lie on the CPU.

    Args:
        library: Compiles and loads a translation unit.
        call: The call.
        chosen: How it runs.
        backward: Which pass.
        seed: Of the order in which threads run.

    Raises:
        FaultError: the emulator found one.
    """
    chosen = replace(fitted(call, chosen, backward), shares=1)  # that is the GPU's alone
    compiled = library(kernels.unit_text(chosen, backward, header_for(is_fast(chosen))))
    if backward:
        call.give_workspace(chosen.workspace_bytes(call.args.B, call.args.T))
    declare(compiled, of_matrix(call, chosen, backward=backward))
    for one in kernels.launches(chosen, call.args.B, call.args.T, backward):
        start(compiled, one, call.args, seed)


def is_fast(chosen: TileConfig) -> bool:
    """Return whether the engine would compile a pass with the machine's fast functions."""
    return chosen.types.io == "elman::bf16" and not kernels._exact


def types_of(plan: Plan, dtype: torch.dtype) -> Types:
    """Return the types of an emulated kernel: those of the GPU, and fp64 throughout for proofs."""
    if dtype == torch.float64:
        return Types("double", "double", "double")
    return kernels.types(plan, dtype)


def kept_dtype(plan: Plan, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of checkpoints."""
    return dtype if dtype == torch.float64 else abi.kept_dtype(plan, dtype)


def backend(
    lanes: int | None = None,
    warps: int | None = None,
    *,
    tall: int = 1,
    steps: int = 4,
    forward_steps: int = 4,
    scratch: bool = False,
    producers: bool = True,
    seed: int = 1,
    library: Library | None = None,
) -> Kernels:
    """Return a backend that emulates the kernels.

    Args:
        lanes: Lanes to a row; None: as the engine chooses.
        warps: Warps of a block; None: as the engine chooses.
        tall: Rows of a lane.
        steps: Steps between checkpoints, and of a segment of the backward pass.
        forward_steps: Steps of a segment of the forward pass.
        scratch: Whether recomputed states stand in global memory.
        producers: Whether both passes have producer warps.
        seed: Of the order in which threads run.
        library: Compiles and loads a translation unit; None: from the sources as they are.
    """

    def tile_config(plan: Plan, batch: int, dtype: torch.dtype) -> TileConfig:
        types = types_of(plan, dtype)
        chosen = choose(plan, types, batch * plan.heads, H200)
        shape = (lanes or chosen.lanes, warps or chosen.warps, steps, tall)
        return replace(tile_config_of(plan, types, *shape), scratch=scratch, producers=producers)

    def launch(call: Call, *, backward: bool) -> None:
        chosen = tile_config(call.plan, call.args.B, call.like.dtype)
        chosen = chosen if backward else replace(chosen, steps=forward_steps)
        run(library or loaded, call, chosen, backward=backward, seed=seed)

    return Kernels(launch, lambda plan, batch, dtype: steps, kept_dtype)


def engine(heads: int) -> Kernels:
    """Return a backend that emulates the kernels as the engine runs them on a GPU.

    Args:
        heads: B H for which the tile configs are chosen, however small a call is; of bf16 sources.
    """

    def launch(call: Call, *, backward: bool) -> None:
        chosen = chosen_by_engine(call.plan, heads, backward=backward)
        chosen = replace(chosen, types=types_of(call.plan, call.like.dtype))
        chosen = replace(chosen, align=natural_align(chosen))
        run(loaded, call, chosen, backward=backward)

    def steps(plan: Plan, batch: int, dtype: torch.dtype) -> int:
        return chosen_by_engine(plan, heads, backward=True).steps

    return Kernels(launch, steps, kept_dtype)


def chosen_by_engine(plan: Plan, heads: int, *, backward: bool) -> TileConfig:
    """Return the tile config of a pass over bf16 sources on a GPU."""
    chosen = choose(plan, kernels.types(plan, torch.bfloat16), heads, H200)
    return chosen if backward else forward_of(chosen, heads, H200)
