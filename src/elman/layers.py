"""The layers as ordinary modules: ``from elman.layers import E88``.

One class per cell of the registry, imported when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from elman.models.cells import registry

_CELLS = {cell.layer.partition(":")[2]: cell for cell in registry.cells().values()}

__all__ = sorted(_CELLS)


def __getattr__(name: str) -> Any:
    if name not in _CELLS:
        raise AttributeError(f"module {__name__!r} has no layer {name!r}; layers: {__all__}")
    from elman.models.build import layer_class

    layer = layer_class(_CELLS[name])
    globals()[name] = layer
    return layer


def __dir__() -> list[str]:
    return [*globals(), *__all__]
