"""The packages whose kernels run the packaged baselines: can they run here, and what mends it.

Imports torch only to look at a GPU, so that a cell can name its package before torch is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from packaging.version import Version

from elman.base.errors import UserError
from elman.kernels.compiler import compiler_problem
from elman.models.backends import AUTO, REFERENCE, best_backend, choose_backend

if TYPE_CHECKING:
    import torch

    from elman.models.cells.declaration import Cell

PLAIN_PATH = "plain PyTorch, chunked"
_GPU = "cuda"


@dataclass(frozen=True)
class Package:
    """A package of another project.

    Args:
        name: Name of the distribution, as ``pip`` knows it.
        modules: What must be importable, the package's own module first.
        oldest: First version with the functions that are called.
        install: Command that installs it beside torch.
        skip_root: Whether a module of it is imported without the package's root, which would
            import what is not there.
    """

    name: str
    modules: tuple[str, ...]
    oldest: str
    install: str
    skip_root: bool = False


PACKAGES = {
    "mamba-ssm": Package(
        "mamba-ssm",
        ("mamba_ssm", "triton", "einops", "packaging"),
        "2.2.2",
        # Only its Triton kernels are used: compiling its CUDA extension takes half an hour. Without
        # FORCE its build asks the network for a wheel, and ends at a CPU build of torch.
        "pip install setuptools wheel && MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE "
        "pip install --no-build-isolation 'elman[mamba]'",
        # The root imports the extension of the first Mamba, and transformers.
        skip_root=True,
    ),
    "flash-linear-attention": Package(
        "flash-linear-attention",
        ("fla", "triton", "einops"),
        "0.6.0",
        "pip install 'elman[fla]'",
    ),
}
"""By name, as in ``Cell.package``."""


def package_problem(name: str, device: torch.device | str) -> str | None:
    """Return why a package cannot run on a device and the command that mends it.

    Args:
        name: ``mamba-ssm`` or ``flash-linear-attention``.
        device: Where it would run.

    Returns:
        One line, or None if nothing stands in the way. None too on a device other than a GPU,
        where no package is needed: plain PyTorch of this package runs there.
    """
    if _device_type(device) != _GPU:
        return None
    if problem := installation_problem(name):
        return problem
    return _hopper_problem(device) if name == "flash-linear-attention" else None


def installation_problem(name: str) -> str | None:
    """Return why a package's kernels cannot be imported and what mends it, or None; no GPU needed.

    Args:
        name: ``mamba-ssm`` or ``flash-linear-attention``.
    """
    package = PACKAGES[name]
    missing = [module for module in package.modules if not _importable(module)]
    if package.modules[0] in missing:
        return f"{name} is not installed; {package.install}"
    if missing:
        return f"{name} needs {' and '.join(missing)}; pip install {' '.join(missing)}"
    found = installed_version(name)
    if found is not None and Version(found) < Version(package.oldest):
        return f"{name} {found} is older than {package.oldest}; {package.install} --upgrade"
    return None


def resolve_backend(
    cell: Cell, requested: str, device: torch.device | str, *, allow_slow: bool = False
) -> str:
    """Return the backend that runs a model of ``cell``: what is there decides, not hope.

    As :func:`~elman.models.backends.choose_backend`, but a packaged baseline on a GPU has its
    package checked, and is refused where it would run as plain PyTorch.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        allow_slow: As ``baseline.allow_slow``.

    Raises:
        UserError: no such backend here, or the package is missing or known to be wrong here.
    """
    chosen = choose_backend(cell, requested, _device_type(device))
    if cell.package is None or _device_type(device) != _GPU:
        return chosen
    if chosen == REFERENCE:
        if allow_slow:
            return chosen
        raise UserError(
            f"kernels.backend={requested}: plain PyTorch is the slow path of baseline {cell.name} "
            "on a GPU; drop it or add baseline.allow_slow=true, which marks the result"
        )
    problem = package_problem(cell.package, device)
    if problem is None:
        return chosen
    if requested == AUTO and allow_slow:
        return REFERENCE
    raise UserError(
        f"model.cell={cell.name} on a GPU: {problem}"
        + (", or add baseline.allow_slow=true (plain PyTorch, marked)" if requested == AUTO else "")
    )


def slow_reason(cell: Cell, requested: str, device: torch.device | str) -> str | None:
    """Return why a cell runs as plain PyTorch on a device, or None if kernels of some kind run it.

    Args:
        cell: The cell, under its options.
        requested: As ``kernels.backend``.
        device: Where the model runs.
    """
    kind = _device_type(device)
    where = "a GPU" if kind == _GPU else "a CPU"
    if requested == REFERENCE:
        return "kernels.backend=reference asks for it"
    if cell.package is not None and kind == _GPU:
        return installation_problem(cell.package)
    if requested != AUTO:
        return None
    if cell.package is not None:
        return f"the package's kernels do not run on {where}"
    fastest = best_backend(cell, kind)
    if fastest == REFERENCE:
        return f"no kernel for {where}" + (f", {cell.reason}" if cell.reason else "")
    return compiler_problem() if fastest == "cpu" else None


def slow_note(cell: Cell, requested: str, device: torch.device | str, backend: str) -> str | None:
    """Return the line which says that a model runs as plain PyTorch, and why; None if it does not.

    Args:
        cell: The cell, under its options.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        backend: The backend that runs it, as :func:`resolve_backend` returned it.
    """
    if not on_slow_path(backend):
        return None
    reason = slow_reason(cell, requested, device)
    return f"slow path: plain PyTorch runs cell {cell.name}" + (f" ({reason})" if reason else "")


def refused_slow_path(cell: Cell, requested: str, *, allow_slow: bool) -> bool:
    """Whether :func:`resolve_backend` refuses a cell on a GPU for what :func:`slow_reason` says.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.
    """
    return cell.package is not None and not (allow_slow and requested in (AUTO, REFERENCE))


def computation_path(cell: Cell, backend: str) -> str | None:
    """Return in words what computes a packaged baseline, for the result; None for other cells.

    Args:
        cell: The cell.
        backend: The backend that runs it, as :func:`resolve_backend` returned it.
    """
    if cell.package is None:
        return None
    if backend == REFERENCE:
        return PLAIN_PATH
    found = f"{cell.package} {installed_version(cell.package) or 'of unknown version'}"
    if cell.package != "mamba-ssm":
        return found
    conv = installed_version("causal-conv1d") if _importable("causal_conv1d") else None
    return f"{found} (causal-conv1d {conv})" if conv else f"{found} (unfused, torch convolution)"


def tuning_note(path: str | None, backend: str) -> str | None:
    """Return why the first calls of a packaged baseline take long, or None if they do not.

    Args:
        path: What :func:`computation_path` returned.
        backend: The backend that runs it.
    """
    if path is None or on_slow_path(backend):
        return None
    return "Triton compiles and tunes the package's kernels first, which takes up to a minute"


def on_slow_path(backend: str) -> bool:
    """Return whether a cell runs as plain PyTorch, without kernels: its row is marked."""
    return backend == REFERENCE


def import_kernels(name: str, module: str) -> ModuleType:
    """Import a module of a package, without the package's root where that is to be skipped.

    Args:
        name: Name in :data:`PACKAGES`.
        module: Dotted name below the package's root.

    Raises:
        UserError: it cannot be imported; the message has the command that mends it.
    """
    package = PACKAGES[name]
    root = package.modules[0]
    try:
        with _standing_in(root) if package.skip_root else nullcontext():
            imported = import_module(f"{root}.{module}")
    except ImportError as error:
        raise UserError(f"{name} cannot be imported ({error}); {package.install}") from error
    if _importable("triton"):
        from elman.kernels.triton_tuning import tune_together

        tune_together(root)
    return imported


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _hopper_problem(device: torch.device | str) -> str | None:
    """Wrong gradients of the gated delta rule: flash-linear-attention issues 640, 983, 984."""
    import torch

    found = installed_version("triton")
    if found is None or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    if not Version("3.4.0") <= Version(found) < Version("3.7.1"):
        return None
    return (
        f"triton {found} computes wrong gradients of flash-linear-attention's gated delta rule on "
        "Hopper; pip install --upgrade 'torch>=2.12.1', which brings triton 3.7.1"
    )


@contextmanager
def _standing_in(root: str) -> Iterator[None]:
    """Put an empty module in the place of a package's root while modules below it are imported."""
    spec = find_spec(root) if root not in sys.modules else None
    if spec is None or spec.submodule_search_locations is None:
        yield
        return
    stand_in = ModuleType(root)
    stand_in.__path__ = list(spec.submodule_search_locations)
    sys.modules[root] = stand_in
    try:
        yield
    finally:
        del sys.modules[root]


def _device_type(device: torch.device | str) -> str:
    return str(device).partition(":")[0]


def _importable(module: str) -> bool:
    return find_spec(module) is not None
