"""YAML files that other packages bring along, found by entry points. Imports no torch.

An entry point of the group ``elman.conf`` names a folder inside a package, as in
``leaky = "leaky.conf"`` for ``leaky/conf/model/leaky.yaml``. Hydra looks there after elman's own
files, so no package can replace one of those.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from elman.base.errors import UserError

GROUP = "elman.conf"


@cache
def package_folders() -> dict[str, Path]:
    """Return the folders with YAML files of other packages, by the names of their entry points.

    Raises:
        UserError: an entry point names no folder.
    """
    named = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    return {entry.name: _folder(entry) for entry in named}


def _folder(entry: EntryPoint) -> Path:
    try:
        spec = find_spec(entry.value)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise UserError(
            f"entry point {GROUP}:{entry.name} = {entry.value}: no folder in an installed package; "
            "fix or reinstall the package that declares it"
        )
    return Path(places[0])


class PackageFiles(SearchPathPlugin):
    """Adds the folders of other packages to the places where Hydra looks for files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append each folder."""
        for name, folder in package_folders().items():
            search_path.append(provider=f"{GROUP}:{name}", path=f"file://{folder}")


@cache
def find_package_files() -> None:
    """Let Hydra find the files of other packages in this process."""
    Plugins.instance().register(PackageFiles)
