"""Which headers a kernel's name depends on: those that it includes, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.kernels import sources
from elman.kernels.sources import included_sources, sources_hash

FILES = {
    "cpu/engine.h": '#pragma once\n\n  # include "../cells/one.h"\n#include "near.h"',
    "cpu/near.h": '#include "cells/two.h"\n// #include "cells/three.h"\n',
    "cells/one.h": '#include "two.h"',
    "cells/two.h": '#include "one.h"',
    "cells/three.h": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of sources that include one another, even in a circle."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "source_folder", lambda: tmp_path.resolve())
    return tmp_path


TEXT = '#include "cpu/engine.h"\nint x;\n'


def test_includes_are_followed(folder: Path) -> None:
    found = [str(path.relative_to(folder)) for path in included_sources(TEXT)]
    assert found == ["cells/one.h", "cells/two.h", "cpu/engine.h", "cpu/near.h"]


@pytest.mark.parametrize(
    ("name", "counts"), [("cells/two.h", True), ("cpu/near.h", True), ("cells/three.h", False)]
)
def test_the_hash_changes_with_what_is_included_alone(
    folder: Path, name: str, counts: bool
) -> None:
    before = sources_hash(TEXT)
    assert sources_hash(TEXT + " ") != before
    (folder / name).write_text(FILES[name] + "\n// changed\n")
    sources._read.cache_clear()  # as in another process
    assert (sources_hash(TEXT) != before) == counts


def test_the_shipped_sources_are_found() -> None:
    names = [path.name for path in included_sources('#include "cells/matrix_state.h"')]
    assert "matrix_state.h" in names
