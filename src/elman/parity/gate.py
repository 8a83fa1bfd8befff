"""Checks a run's kernel before training: no kernel trains that was not checked on this machine.

A passed check is recorded in the kernel cache. Its key is everything that it holds for (sources,
machine, torch, backend, precisions, and the cell's options that a kernel's result depends on), so
the same run later starts at once. Starting values and dropout are no part of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from elman.base.cache import put_file, usable
from elman.kernels.cache import cannot_write, kernel_cache
from elman.kernels.triton_tuning import tuned_so_far
from elman.models.backends import REFERENCE, computation_path, norm_backend
from elman.models.cells import registry
from elman.models.cells.declaration import Value
from elman.models.mixed import joined, requested_backends
from elman.parity import norms
from elman.parity.checks import Proof
from elman.parity.experiment import Run
from elman.parity.proof import compiling_norms, prove_as_trained, prove_norms, prove_runs
from elman.parity.record import write_parity
from elman.parity.shapes import TrainedSizes
from elman.parity.source import package_sources, proof_conditions
from elman.sections.model import ModelConfig

SEED = 42
_log = logging.getLogger("elman.parity")


class ParityError(Exception):
    """A kernel gives other results than the reference."""


def require_parity(
    config: ModelConfig,
    backend: str,
    device: str,
    precision: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    sizes: TrainedSizes | None = None,
    resets: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """Make sure that a run's kernel passed the short check; return what was checked and when.

    Args:
        config: Group ``model``.
        backend: The backend that the run will use.
        device: Type of its device.
        precision: ``fp32`` or ``bf16``, as the run will compute; the check of bf16 includes fp32,
            whose tolerances are far stricter.
        folder: The run folder, where ``parity.json`` is written if the check fails.
        say: Called with one line if a check has to be made, which takes seconds.
        sizes: Sizes of a training step. A packaged baseline on a GPU is checked at these sizes
            and in the precision of the training only. Its fp32 arithmetic is TF32, and its kernels
            would first have to be tuned for every other size.
        resets: Whether the run zeroes states where documents start, with kernels made for that.
        meanwhile: As of :func:`~elman.parity.proof.prove_runs`, if a check has to be made.

    Returns:
        The record for ``result.json``; None if the reference itself runs.

    Raises:
        ParityError: the kernel is wrong on this machine.
    """
    cell = registry.cell(config.cell)
    if backend == cell.backends[0]:
        return None
    as_trained = sizes if cell.package is not None and device != "cpu" else None
    if as_trained is not None:
        precisions = ["bf16" if precision == "bf16" else "tf32"]
    else:
        precisions = ["fp32", "bf16"] if precision == "bf16" else ["fp32"]
    conditions = _conditions(config, backend, device, precisions)
    if as_trained is not None:
        conditions |= {"dim": config.dim, "sizes": asdict(as_trained)}
    if resets:
        conditions |= {"resets": True}
    marker = _marker(cell.name, backend, conditions)
    if (known := _recalled(marker)) is not None:
        return known
    runs = [Run(backend, device, name) for name in precisions]
    if as_trained is not None:
        say(f"tuning and checking the {backend} kernels of {cell.name} for this run's sizes ...")
        before = tuned_so_far()
        proof = prove_as_trained(config, runs[0], as_trained, seed=SEED)
        say(f"{cell.name}: {(tuned_so_far() - before).describe()}")
    else:
        against = "with these options against the reference, once (seconds)"
        say(f"checking the {backend} kernel of {cell.name} {against} ...")
        rows = None if sizes is None else sizes.batch_size
        proof = prove_runs(
            config, runs, seed=SEED, quick=True, resets=resets, rows=rows, meanwhile=meanwhile
        )
    if not proof.passed:
        place = write_parity(folder, proof.as_json() | conditions)
        raise ParityError(_refusal(proof, place, f"kernels.backend={cell.backends[0]}"))
    return _remember(marker, proof, conditions)


def require_stack_parity(
    config: ModelConfig, resolved: str, device: str, *arguments: Any, **more: Any
) -> dict[str, Any] | None:
    """Make sure of the kernel of every kind of layer, as :func:`require_parity` of one.

    Args:
        config: Group ``model``.
        resolved: The backends that the run will use, joined.
        device: As there, and so are the others.

    Returns:
        The record for ``result.json``: of several cells the latest date, the sum of the checks, and
        the worst share.
    """
    records = [
        require_parity(part, backend, device, *arguments, **more)
        for part, backend in zip(config.parts(), requested_backends(config, resolved), strict=True)
    ]
    found = [one for one in records if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    return found[0] | {
        "passed": max(one["passed"] for one in found),
        "backend": joined([one["backend"] for one in found]),
        "checks": sum(one["checks"] for one in found),
        "worst_share_of_tolerance": max(one["worst_share_of_tolerance"] for one in found),
    }


def require_norm_parity(
    config: ModelConfig,
    requested: str,
    device: str,
    precision: str,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Make sure that the kernel of a run's norms has passed, as :func:`require_parity` its cell's.

    Models whose cell has no kernel have it, too.

    Args:
        config: Group ``model``.
        requested: As ``kernels.backend``: the norms choose by themselves.
        device: As there, and so are the others.
        precision: As there.
        folder: As there.
        say: As there.

    Returns:
        What ``result.json`` says about it; None where plain PyTorch computes the norms.

    Raises:
        ParityError: the kernel is wrong on this machine.
    """
    runs, conditions = _norm_runs(config, requested, device, precision)
    if not runs:
        return None
    backend = runs[0].backend
    marker = _marker(norms.NAME, backend, conditions)
    if (known := _recalled(marker)) is not None:
        return known
    say(f"checking the {backend} kernel of {norms.NAME} against plain PyTorch, once ...")
    proof = prove_norms(config.dim, runs, seed=SEED, quick=True)
    if not proof.passed:
        place = write_parity(folder, proof.as_json() | conditions)
        raise ParityError(_refusal(proof, place, _plain_norms(config)))
    return _remember(marker, proof, conditions)


def compiling_norm_kernels(
    config: ModelConfig, requested: str, device: str, precision: str
) -> AbstractContextManager[object]:
    """Compile what :func:`require_norm_parity` will check, unless it has passed, beside other work.

    Arguments as there.
    """
    runs, conditions = _norm_runs(config, requested, device, precision)
    if not runs or _marker(norms.NAME, runs[0].backend, conditions).exists():
        return nullcontext()
    return compiling_norms(config, runs, quick=True)


def _norm_runs(
    config: ModelConfig, requested: str, device: str, precision: str
) -> tuple[list[Run], dict[str, Any]]:
    """Return how a run's norms are checked, and under which conditions; no way if by PyTorch."""
    backend = norm_backend(requested, device)
    if config.wrapper != "rms" or backend == REFERENCE:
        return [], {}
    precisions = ["fp32", "bf16"] if precision == "bf16" else ["fp32"]
    conditions = {
        "cell": norms.NAME,
        "dim": config.dim,
        "backend": backend,
        "device": device,
        "precisions": precisions,
        "conditions": proof_conditions(),
    }
    return [Run(backend, device, name) for name in precisions], conditions


def _conditions(
    config: ModelConfig, backend: str, device: str, precisions: Sequence[str]
) -> dict[str, Any]:
    cell = registry.cell(config.cell)
    package = package_sources(cell.layer)
    return ({} if package is None else {"package": package}) | {
        "cell": config.cell,
        "options": _options_in_kernel(config),
        "backend": backend,
        "path": computation_path(cell, backend),
        "device": device,
        "precisions": list(precisions),
        "conditions": proof_conditions(),
    }


def _options_in_kernel(config: ModelConfig) -> dict[str, Value]:
    """Return the options that a kernel's result depends on: sizes, activations, numbers it gets."""
    declared = registry.cell(config.cell).options
    return {name: config.options[name] for name in sorted(declared) if declared[name].in_kernel}


def _marker(cell: str, backend: str, conditions: dict[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:20]
    return usable("kernels", kernel_cache() / "parity" / f"{cell}-{backend}-{key}.json")


def _recalled(marker: Path) -> dict[str, Any] | None:
    """Return what an earlier check found under the same conditions, and log which one it was."""
    try:
        known = json.loads(marker.read_text(encoding="utf-8"))
        parity = known["parity"]
        what = f"{known['cell']}: not checked again, its {parity['backend']} kernel has passed"
        _log.info("%s (%s, %s)", what, parity["passed"], marker)
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged
        return None
    return dict(parity)


def _remember(marker: Path, proof: Proof, conditions: dict[str, Any]) -> dict[str, Any]:
    worst = max(check.worst.relative_l2 / check.worst.tolerance for check in proof.checks)
    parity = {
        "passed": datetime.now().astimezone().isoformat(timespec="seconds"),
        "backend": conditions["backend"],
        "precisions": conditions["precisions"],
        "checks": len(proof.checks),
        "worst_share_of_tolerance": worst,
        "sources": conditions["conditions"]["sources"],
    }
    text = json.dumps({"parity": parity} | conditions | proof.as_json(), indent=2) + "\n"
    try:
        put_file(marker, text)
    except OSError as error:
        raise cannot_write(error) from None
    return parity


def _plain_norms(config: ModelConfig) -> str:
    """Return the settings under which plain PyTorch computes the norms."""
    cell = registry.cell(config.cell)
    slow = " baseline.allow_slow=true" if cell.package is not None else ""
    return f"kernels.backend={cell.backends[0]}{slow}"


def _refusal(proof: Proof, place: Path, remedy: str) -> str:
    failed = [check for check in proof.checks if not check.passed]
    first = failed[0]
    return (
        f"the {first.run.backend} kernel of {proof.cell} is wrong on this machine: "
        f"{first.worst.tensor} in {first.run.precision} at {first.sizes} {first.worst.error} "
        f"({len(failed)} of {len(proof.checks)} checks failed; {place}); "
        f"{remedy} trains without it"
    )
