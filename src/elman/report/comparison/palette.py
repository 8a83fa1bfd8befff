"""The colours and pens of every picture: on the page as CSS, in a paper as plain colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLOURS, DASHES = 10, 4
"""Colours distinguish rows; beyond ten rows dashes do too. That makes forty different lines."""
LIGHT = {
    **{"back": "#fff", "text": "#1c2024", "dim": "#5b6570", "line": "#d9dee3", "box": "#f4f6f8"},
    **{"warn": "#9a5b00", "bad": "#b3261e", "c0": "#2f78bd", "c1": "#cc6a1d", "c2": "#1f8f6a"},
    **{"c3": "#c0448a", "c4": "#7566c4", "c5": "#6b8a15", "c6": "#a0772d", "c7": "#cf4740"},
    **{"c8": "#1d93a6", "c9": "#70777e"},
}
"""The colours by name: of the page, and ``c0`` to ``c9`` of the rows."""
DARK = {
    **{"back": "#14171a", "text": "#e4e7ea", "dim": "#a0a9b2", "line": "#343b42"},
    **{"box": "#1d2125", "warn": "#e5b567", "bad": "#ff8a80", "c0": "#5aa5ea", "c1": "#ee9350"},
    **{"c2": "#45bd93", "c3": "#e578b5", "c4": "#a397ea", "c5": "#9dbd45", "c6": "#cda55e"},
    **{"c7": "#f4807a", "c8": "#4fc1d3", "c9": "#a3abb3"},
}
"""The same on a dark screen."""
SHADES = ("#0b3c5d", "#1f6f8b", "#3f9c8f", "#8cc084", "#d9e08b", "#fdf3c4")
"""Colours of a heat map from the best loss to the worst; they are the same on a dark screen."""
DARK_SHADES = 3
"""How many of them need white type."""
DASHED = ("", "7 3", "2 2.5", "8 3 2 3")
"""The dashes of a row's line, by the second part of its style."""
TYPE = 11.0
"""Height of type, in the units of a picture, unless its pen has another."""
FONT = 'system-ui, -apple-system, "Segoe UI", Arial, sans-serif'


@dataclass(frozen=True)
class Pen:
    """How a shape is drawn.

    Args:
        stroke: Name of a colour of :data:`LIGHT`, ``c`` for that of the row, or ``none``.
        width: Width of the line.
        dash: Lengths of its dashes and gaps; empty if it is whole.
        fill: Colour inside, or of type.
        opacity: Of the colour inside.
        size: Height of type; 0 for what is no text.
        bold: Whether the type is bold.
        halo: Whether the type has an edge in the colour of the page, to be read on lines.
    """

    stroke: str = "none"
    width: float = 1.0
    dash: str = ""
    fill: str = "none"
    opacity: float = 1.0
    size: float = 0.0
    bold: bool = False
    halo: bool = False


def _label(fill: str, *, bold: bool = False) -> Pen:
    return Pen(fill=fill, size=TYPE, bold=bold, halo=True)


_MARK = Pen("warn", 1.3, "3 2")
PENS = {
    ".grid path": Pen("line"),
    ".grid text": Pen(fill="dim", size=TYPE),
    "text.name": Pen(fill="text", size=TYPE),
    "path.rule": Pen("line"),
    "polyline.floor": Pen("dim", 1, "5 3"),
    "polyline.through": Pen("dim"),
    "polyline.front": Pen("dim", 1, "3 3"),
    ".line polyline": Pen("c", 1.3),
    ".line polyline.thin": Pen("c", 0.9),
    ".line polygon": Pen(fill="c", opacity=0.16),
    ".line circle": Pen(fill="c"),
    ".line path.cross": Pen("c", 1.8),
    ".line path.mark": _MARK,
    ".point path": Pen("c", 1.2),
    ".point path.mark": _MARK,
    ".point circle": Pen(fill="c"),
    ".point circle.hollow": Pen("c", 1.8, fill="back"),
    ".point circle.ring": Pen("text", 1.6),
    ".point text": _label("text"),
    ".point text.best": _label("text", bold=True),
    ".point text.bad": _label("bad"),
    ".point text.wait": _label("dim"),
    ".bad path.cross": Pen("bad", 2),
    ".bad circle.hollow": Pen("c", 1.8, fill="back"),
    ".cell rect": Pen("back", 1.5),
    ".cell rect.none": Pen("back", 1.5, fill="box"),
    ".cell.best rect": Pen("c1", 4),
    ".cell text.on-dark": Pen(fill="#fff", size=10.5),
    ".cell text.on-light": Pen(fill="#14171a", size=10.5),
    ".cell text.on-none": Pen(fill="bad", size=10.5, halo=True),
    ".cell text.on-wait": Pen(fill="dim", size=10.5),
    "path.hatch": Pen("bad", 1.2),
    ".task rect": Pen("line", fill="box"),
    ".task path": Pen("dim"),
    ".task circle": Pen(fill="text", opacity=0.75),
    ".task text": Pen(fill="text", size=10.5),
    ".task.solved rect": Pen("c2", 2, fill="box"),
    ".task.solved circle": Pen(fill="c2", opacity=0.75),
    ".task.chance rect": Pen("bad", 1, "3 2", fill="box"),
    ".task.chance circle": Pen(fill="bad", opacity=0.75),
}
"""The pen of each kind of shape: the classes of its group, its element and its own class."""


def pen_of(group: str, element: str, css: str) -> Pen:
    """Return the pen of a shape: that of all its classes, or else of its group's first alone.

    Args:
        group: Classes of its group, apart by blanks; empty outside a group.
        element: The element of SVG.
        css: Its own class, or empty.
    """
    groups = [f".{group.replace(' ', '.')} ", f".{group.split(' ')[0]} "] if group else []
    own = [f"{element}.{css}"] * bool(css)
    names = [before + name for name in (*own, element) for before in (*groups, "")]
    return next(PENS[name] for name in names if name in PENS)


def rules(colours: Mapping[str, str] | None = None, scale: float = 1.0) -> str:
    """Return the pens as CSS.

    Args:
        colours: The colours by name; without them they stay variables, as on the page.
        scale: How much larger type is than on the page.
    """
    rows = (f"c{at}" for at in range(COLOURS))
    found = [f"svg text{{font:{TYPE * scale:g}px {FONT}}}"]
    found += [f"{name}{{{_properties(pen, colours, scale)}}}" for name, pen in PENS.items()]
    found += [f".{name}{{color:{_colour(name, colours)}}}" for name in rows]
    found += [f".d{at} polyline{{stroke-dasharray:{dash}}}" for at, dash in enumerate(DASHED) if at]
    return "\n".join(found)


def variables(colours: Mapping[str, str]) -> str:
    """Return colours as variables of CSS."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _colour(name: str, colours: Mapping[str, str] | None) -> str:
    if name == "c":
        return "currentColor"
    if name == "none" or name.startswith("#"):
        return name
    return f"var(--{name})" if colours is None else colours[name]


def _properties(pen: Pen, colours: Mapping[str, str] | None, scale: float) -> str:
    stroke, fill = _colour(pen.stroke, colours), _colour(pen.fill, colours)
    if pen.size:
        edge = f"paint-order:stroke;stroke:{_colour('back', colours)};stroke-width:3px"
        found = {
            f"font-size:{pen.size * scale:g}px": pen.size != TYPE,
            f"fill:{fill}": True,
            "font-weight:600": pen.bold,
            edge: pen.halo,
        }
    else:
        found = {
            f"fill:{fill}": True,
            f"fill-opacity:{pen.opacity:g}": pen.opacity != 1,
            f"stroke:{stroke}": True,
            f"stroke-width:{pen.width:g}": pen.stroke != "none",
            f"stroke-dasharray:{pen.dash}": bool(pen.dash),
        }
    return ";".join(text for text, holds in found.items() if holds)
