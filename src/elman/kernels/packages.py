"""The packages of the packaged baselines: whether their kernels can run here, and the fix if not.

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
from pkgutil import extend_path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from elman.base.errors import UserError
from elman.kernels import flash_qla
from elman.kernels.triton_version import wrong_gated_delta

if TYPE_CHECKING:
    import torch

GPU = "cuda"
# tilelang and flash-qla look for a GPU and a compiler while they are imported.
_OF_IMPORTS = (AssertionError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Package:
    """A package of another project.

    Args:
        name: Name of the distribution for ``pip``.
        modules: Modules that must be importable; the package's own module comes first.
        oldest: First version that has the functions that we call.
        install: Command that installs it in addition to torch.
        skip_root: Whether its modules are imported without the package's root, because the root
            would import something that is missing.
        late: Packages, its root among them, that run only once something of their own is read,
            because they import much that its kernels do not need.
    """

    name: str
    modules: tuple[str, ...]
    oldest: str
    install: str
    skip_root: bool = False
    late: tuple[str, ...] = ()


PACKAGES = {
    "mamba-ssm": Package(
        "mamba-ssm",
        ("mamba_ssm", "triton", "einops", "packaging"),
        "2.2.2",
        # Only its Triton kernels are used, because compiling its CUDA extension takes half an hour.
        # Without FORCE its build looks for a wheel on the network, and fails with a CPU torch.
        "pip install setuptools wheel && MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE "
        "pip install --no-build-isolation 'elman[mamba]'",
        # The root imports transformers and the CUDA extension of the first Mamba.
        skip_root=True,
    ),
    "flash-linear-attention": Package(
        "flash-linear-attention",
        ("fla", "triton", "einops"),
        "0.6.0",
        "pip install 'elman[fla]'",
        # The root imports layers and models, and with them transformers, and the other one every
        # recurrence that there is: seconds of every run.
        late=("fla", "fla.ops"),
    ),
    flash_qla.PACKAGE: Package(
        flash_qla.PACKAGE,
        ("flash_qla",),  # what it needs beside is asked for below
        "0.1.2",
        "pip install 'elman[flash-qla]'",
    ),
}
"""All packages by name, as in ``Cell.package``, and what a backend on request needs beside it."""


def package_problem(name: str, device: torch.device | str) -> str | None:
    """Return why a package cannot run on a device and the command that fixes it.

    Args:
        name: Name in :data:`PACKAGES`.
        device: Where it would run.

    Returns:
        One line, or None if it can run. Also None for a device that is not a GPU: there elman's
        own plain PyTorch code runs, and the package is not needed.
    """
    if device_type(device) != GPU:
        return None
    if name == flash_qla.PACKAGE and (problem := _flash_qla_gpu_problem(device)):
        return problem  # no installation would help
    if problem := installation_problem(name):
        return problem
    if name == flash_qla.PACKAGE:
        versions = installed_version(name), installed_version("tilelang")
        return flash_qla.tilelang_problem(*versions) or flash_qla.compiler_problem()
    return _hopper_problem(device) if name == "flash-linear-attention" else None


def installation_problem(name: str) -> str | None:
    """Return why a package's kernels cannot be imported and the fix, or None; needs no GPU.

    Args:
        name: Name in :data:`PACKAGES`.
    """
    package = PACKAGES[name]
    missing = [module for module in package.modules if not importable(module)]
    if package.modules[0] in missing:
        return f"{name} is not installed; {package.install}"
    if missing:
        return f"{name} needs {' and '.join(missing)}; pip install {' '.join(missing)}"
    found = installed_version(name)
    if found is not None and Version(found) < Version(package.oldest):
        return f"{name} {found} is older than {package.oldest}; {package.install} --upgrade"
    return None


def import_kernels(name: str, module: str) -> ModuleType:
    """Import a module of a package, without the package's root if it can be left out.

    Args:
        name: Name in :data:`PACKAGES`.
        module: Dotted name below the package's root; empty for the root itself.

    Raises:
        UserError: it cannot be imported; the message has the command that fixes it.
    """
    package = PACKAGES[name]
    root = package.modules[0]
    from elman.kernels.uncompiled import imported_without_dynamo

    for late in package.late:
        _put_late(late, installed_version(name))
    try:
        with (
            _standing_in(root) if package.skip_root else nullcontext(),
            imported_without_dynamo(),
        ):
            imported = import_module(f"{root}.{module}" if module else root)
    except (ImportError, *_OF_IMPORTS) as error:
        raise UserError(f"{name} cannot be imported ({error}); {package.install}") from error
    if importable("triton"):
        from elman.kernels.package_variants import leave_variants_out
        from elman.kernels.triton_tuning import tune_together

        leave_variants_out()
        tune_together(root)
    return imported


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _hopper_problem(device: torch.device | str) -> str | None:
    """Return the problem of wrong gradients, flash-linear-attention issues 640, 983, 984."""
    import torch

    found = installed_version("triton")
    if found is None or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    if not wrong_gated_delta(Version(found)):
        return None
    return (
        f"triton {found} computes wrong gradients of flash-linear-attention's gated delta rule on "
        "Hopper; pip install --upgrade 'torch>=2.12.1', which brings triton 3.7.1"
    )


def _flash_qla_gpu_problem(device: torch.device | str) -> str | None:
    import torch

    return flash_qla.gpu_problem(torch.cuda.get_device_capability(device))


@contextmanager
def _standing_in(root: str) -> Iterator[None]:
    """Replace a package's root by an empty module while modules below it are imported."""
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


class _Late(ModuleType):
    """A package whose code runs when somebody reads a name that is not there yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # people who list modules look for such names
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # once
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _put_late(package: str, version_text: str | None) -> None:
    """Make a package importable module by module, before it has run.

    Args:
        package: Its name.
        version_text: The version of the distribution, which modules of it read from the root.
    """
    spec = find_spec(package) if package not in sys.modules else None
    if spec is None or spec.submodule_search_locations is None:
        return
    late = _Late(package)
    late.__spec__ = spec
    vars(late)["__version__"] = version_text
    late.__path__ = extend_path(list(spec.submodule_search_locations), package)
    sys.modules[package] = late
    above, _, own = package.rpartition(".")
    if above:
        setattr(sys.modules[above], own, late)


def device_type(device: torch.device | str) -> str:
    """Return the type of a device: ``cpu``, ``cuda``, and so on."""
    return str(device).partition(":")[0]


def importable(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    return find_spec(module) is not None
