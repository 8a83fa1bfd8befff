"""Shapes with the pens that draw them: as SVG on the page, as SVG and PDF for a paper."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elman.report.comparison.blocks import escape, one_line

CREATOR = "elman mode=report"
"""What the files of a paper say of their maker."""
Places = Sequence[tuple[float, float]]
# A unit of a picture in a figure of a paper: a picture of the usual 580 units is 4.8 inches wide.
_INCHES = 4.8 / 580
# Text stays text, and the same shapes make the same bytes.
_SETTINGS: Any = {"pdf.fonttype": 42}
_HATCHING = (
    '<pattern id="{name}-hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7" /></pattern>'
)
HATCH = "hatch"
"""The filling of a cell without a number."""
COLORS, DASHES = 10, 4
"""Colors distinguish rows; beyond ten rows dashes do too. That makes forty different lines."""
LIGHT = {
    **{"back": "#fff", "text": "#1c2024", "dim": "#5b6570", "line": "#d9dee3", "box": "#f4f6f8"},
    **{"warn": "#9a5b00", "bad": "#b3261e", "c0": "#2f78bd", "c1": "#cc6a1d", "c2": "#1f8f6a"},
    **{"c3": "#c0448a", "c4": "#7566c4", "c5": "#6b8a15", "c6": "#a0772d", "c7": "#cf4740"},
    **{"c8": "#1d93a6", "c9": "#70777e"},
}
"""The colors by name: of the page, and ``c0`` to ``c9`` of the rows."""
DARK = {
    **{"back": "#14171a", "text": "#e4e7ea", "dim": "#a0a9b2", "line": "#343b42"},
    **{"box": "#1d2125", "warn": "#e5b567", "bad": "#ff8a80", "c0": "#5aa5ea", "c1": "#ee9350"},
    **{"c2": "#45bd93", "c3": "#e578b5", "c4": "#a397ea", "c5": "#9dbd45", "c6": "#cda55e"},
    **{"c7": "#f4807a", "c8": "#4fc1d3", "c9": "#a3abb3"},
}
"""The same on a dark screen."""
SHADES = ("#0b3c5d", "#1f6f8b", "#3f9c8f", "#8cc084", "#d9e08b", "#fdf3c4")
"""Colors of a heat map from the best loss to the worst; they are the same on a dark screen."""
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
        stroke: Name of a color of :data:`LIGHT`, ``c`` for that of the row, or ``none``.
        width: Width of the line.
        dash: Lengths of its dashes and gaps; empty if it is whole.
        fill: Color inside, or of type.
        opacity: Of the color inside.
        size: Height of type; 0 for what is no text.
        bold: Whether the type is bold.
        halo: Whether the type has an edge in the color of the page, to be read on lines.
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
    "path.published": Pen("dim", 1.2, "4 3"),
    "rect.grown": Pen("line", fill="box"),
    "text.note": Pen(fill="dim", size=TYPE, halo=True),
    ".trial polyline": Pen("c", 1.5),
    ".trial polygon": Pen(fill="c"),
    ".trial polygon.hollow": Pen("c", 1.8, fill="back"),
    ".trial polygon.shade": Pen(fill="c", opacity=0.16),
    ".trial polygon.reach": Pen(fill="c", opacity=0.75),
    ".trial circle": Pen(fill="c"),
    ".trial circle.hollow": Pen("c", 1.8, fill="back"),
    ".trial circle.ring": Pen("c", 1.4),
    ".trial path": Pen("c", 1.4),
    ".trial path.sign": Pen("c", 1.8),
    ".trial path.published": Pen("c", 1.2, "4 3"),
    ".trial text.edge": _label("bad", bold=True),
    ".sign circle": Pen(fill="dim"),
    ".sign circle.hollow": Pen("dim", 1.8, fill="back"),
    ".sign circle.ring": Pen("dim", 1.4),
    ".sign path": Pen("dim", 1.8),
    ".sign path.published": Pen("dim", 1.2, "4 3"),
    ".strand polyline": Pen("c", 1.3),
    ".strand polyline.far": Pen("dim", 0.7),
    ".strand polyline.best": Pen("c", 3),
    ".strand polyline.failed": Pen("bad", 0.9, "3 3"),
    ".strand circle": Pen(fill="c"),
    ".strand circle.far": Pen(fill="dim"),
    ".strand path.sign": Pen("bad", 1.8),
    ".upright path": Pen("dim"),
    ".upright text": Pen(fill="text", size=TYPE),
    ".upright text.tick": Pen(fill="dim", size=TYPE, halo=True),
    ".share rect": Pen(fill="c"),
    ".share text": _label("text"),
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


def rules(colors: Mapping[str, str] | None = None, scale: float = 1.0) -> str:
    """Return the pens as CSS.

    Args:
        colors: The colors by name; without them they stay variables, as on the page.
        scale: How much larger type is than on the page.
    """
    rows = (f"c{at}" for at in range(COLORS))
    lines = [f"svg text{{font:{TYPE * scale:g}px {FONT}}}"]
    lines += [f"{name}{{{_properties(pen, colors, scale)}}}" for name, pen in PENS.items()]
    lines += [f".{name}{{color:{_color(name, colors)}}}" for name in rows]
    lines += [f".d{at} polyline{{stroke-dasharray:{dash}}}" for at, dash in enumerate(DASHED) if at]
    return "\n".join(lines)


def variables(colors: Mapping[str, str]) -> str:
    """Return colors as variables of CSS."""
    return " ".join(f"--{name}: {value};" for name, value in colors.items())


def _color(name: str, colors: Mapping[str, str] | None) -> str:
    if name == "c":
        return "currentColor"
    if name == "none" or name.startswith("#"):
        return name
    return f"var(--{name})" if colors is None else colors[name]


def _properties(pen: Pen, colors: Mapping[str, str] | None, scale: float) -> str:
    stroke, fill = _color(pen.stroke, colors), _color(pen.fill, colors)
    if pen.size:
        edge = f"paint-order:stroke;stroke:{_color('back', colors)};stroke-width:3px"
        properties = {
            f"font-size:{pen.size * scale:g}px": pen.size != TYPE,
            f"fill:{fill}": True,
            "font-weight:600": pen.bold,
            edge: pen.halo,
        }
    else:
        properties = {
            f"fill:{fill}": True,
            f"fill-opacity:{pen.opacity:g}": pen.opacity != 1,
            f"stroke:{stroke}": True,
            f"stroke-width:{pen.width:g}": pen.stroke != "none",
            f"stroke-dasharray:{pen.dash}": bool(pen.dash),
        }
    return ";".join(text for text, holds in properties.items() if holds)


@dataclass(frozen=True)
class Path:
    """Straight lines.

    Args:
        strokes: The places of each line.
        css: Its class.
        element: ``path``; ``polyline`` for one line, ``polygon`` for one that is closed.
        tip: What it says when one points at it.
    """

    strokes: Sequence[Places]
    css: str = ""
    element: str = "path"
    tip: str = ""


@dataclass(frozen=True)
class Circle:
    """A circle; ``value`` is what it says besides its ``tip`` when the page's script runs."""

    x: float
    y: float
    r: float
    css: str = ""
    tip: str = ""
    value: str = ""


@dataclass(frozen=True)
class Text:
    """Text that begins, ends or has its middle at a place, and may rise by ``slope`` degrees."""

    x: float
    y: float
    text: str
    css: str = ""
    anchor: str = "start"
    slope: float = 0.0


@dataclass(frozen=True)
class Box:
    """A rectangle; ``fill``: a color of its own, or :data:`HATCH`."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    css: str = ""
    round: float = 0.0


@dataclass(frozen=True)
class Group:
    """Shapes that belong together.

    Args:
        shapes: The shapes.
        css: Its classes.
        row: Number of the row that it shows, if it shows one.
        style: The line style of that row.
        tip: What it says when one points at it.
        at: The place that stands for it.
        clipped: Whether it ends at the edges of the axes.
    """

    shapes: Sequence[Shape]
    css: str = ""
    row: int | None = None
    style: int | None = None
    tip: str = ""
    at: tuple[float, float] | None = None
    clipped: bool = False


Shape = Path | Circle | Text | Box | Group


@dataclass(frozen=True)
class Drawing:
    """A picture as shapes.

    Args:
        name: Its name in files and on the page.
        title: What it shows.
        width: Its width.
        height: Its height.
        shapes: The shapes.
        inside: Left, right, top and bottom of its axes.
        facts: Further attributes of its element, for the page's script.
        css: Its class.
        enlarged: How much larger than on the page its type is in a paper.
    """

    name: str
    title: str
    width: float
    height: float
    shapes: Sequence[Shape]
    inside: tuple[float, float, float, float] | None = None
    facts: dict[str, str] = field(default_factory=dict)
    css: str = "plot"
    enlarged: float = 1.3


def style_classes(style: int) -> str:
    """Return the classes that give a row its color and its dashes; they repeat after forty."""
    return f"c{style % COLORS} d{style // COLORS % DASHES}"


def svg(drawing: Drawing, *attributes: str, style: str = "") -> str:
    """Return a drawing as an element of a page, without the rules of its pens."""
    attrs = [f'class="{drawing.css}"', f'id="{drawing.name}"', *attributes]
    attrs.append(f'viewBox="0 0 {drawing.width:g} {drawing.height:g}" role="img"')
    attrs += [f'{name}="{escape(value)}"' for name, value in drawing.facts.items()]
    parts, name = [style], f"{drawing.name}-title"
    if drawing.inside is None:
        attrs.append(f'aria-label="{escape(drawing.title)}"')
    else:
        attrs.append(f'aria-labelledby="{name}"')
        parts.insert(0, f'<title id="{name}">{escape(drawing.title)}</title>')
        left, right, top, bottom = drawing.inside
        box = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
        parts.append(f'<clipPath id="{drawing.name}-inside"><rect {box} /></clipPath>')
    inside = "".join(_svg(shape, drawing.name) for shape in drawing.shapes)
    if f"#{drawing.name}-hatch" in inside:
        parts.append(_HATCHING.format(name=drawing.name))
    return f"<svg {' '.join(attrs)}>{''.join(parts)}{inside}</svg>"


def sample(style: int, marker: Shape | None = None) -> str:
    """Return the piece of line for a legend of the page, with the marker of an arm at (13, 5)."""
    kind, sign = ("line", "") if marker is None else ("trial", _svg(marker, ""))
    return (
        f'<svg class="sample {kind} {style_classes(style)}" width="26" height="10" '
        f'aria-hidden="true"><polyline points="1,5 25,5" />{sign}</svg>'
    )


def _svg(shape: Shape, name: str) -> str:
    match shape:
        case Path():
            return _path(shape)
        case Circle():
            value = f' data-tip="{escape(shape.value)}"' if shape.value else ""
            place = f'cx="{shape.x:.1f}" cy="{shape.y:.2f}" r="{shape.r:g}"{value}'
            return _element("circle", shape.css, place, shape.tip)
        case Text():
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
            if shape.slope:
                turn = f"translate({shape.x:.1f} {shape.y:.1f}) rotate({-shape.slope:g})"
                place = f'transform="{turn}"'
            place += f' text-anchor="{shape.anchor}"' * (shape.anchor != "start")
            css = f' class="{shape.css}"' if shape.css else ""
            return f"<text{css} {place}>{escape(shape.text)}</text>"
        case Box():
            size = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            size += f'height="{shape.height:.1f}"' + f' rx="{shape.round:g}"' * bool(shape.round)
            if shape.fill:  # a style, for the rule of its pen has a fill of its own
                fill = f"url(#{name}-hatch)" if shape.fill == HATCH else shape.fill
                size += f' style="fill:{fill}"'
            return _element("rect", shape.css, size)
    return _group(shape, name)


def _group(group: Group, name: str) -> str:
    css = [group.css] * bool(group.css)
    css += [] if group.style is None else [style_classes(group.style)]
    attributes = [f'class="{" ".join(css)}"'] * bool(css)
    attributes += [f'clip-path="url(#{name}-inside)"'] * group.clipped
    attributes += [] if group.row is None else [f'data-row="{group.row}"']
    attributes += [] if group.at is None else [f'data-at="{group.at[0]:.1f} {group.at[1]:.1f}"']
    tip = f"<title>{escape(group.tip)}</title>" if group.tip else ""
    inside = "".join(_svg(shape, name) for shape in group.shapes)
    return f"<g {' '.join(attributes)}>{tip}{inside}</g>"


def _path(path: Path) -> str:
    if path.element != "path":
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in path.strokes[0])
        return _element(path.element, path.css, f'points="{points}"', path.tip)
    strokes = "".join(map(_stroke, path.strokes))
    return _element("path", path.css, f'd="{strokes}"', path.tip)


def _stroke(places: Places) -> str:
    """Return a line as commands of SVG; one along an axis needs one number a place."""
    (x, y), *others = ((f"{x:.1f}", f"{y:.1f}") for x, y in places)
    parts = [f"M{x} {y}"]
    for to_x, to_y in others:
        parts.append(f"H{to_x}" if to_y == y else f"V{to_y}" if to_x == x else f"L{to_x} {to_y}")
        x, y = to_x, to_y
    return "".join(parts)


def _element(element: str, css: str, attributes: str, tip: str = "") -> str:
    own = f' class="{css}"' if css else ""
    if not tip:
        return f"<{element}{own} {attributes} />"
    return f"<{element}{own} {attributes}><title>{escape(tip)}</title></{element}>"


def figure_bytes(drawing: Drawing) -> dict[str, bytes]:
    """Return a drawing as the files of a figure: ``svg`` and ``pdf``."""
    size = f'xmlns="http://www.w3.org/2000/svg" width="{_INCHES * drawing.width:.2f}in"'
    style = f"<style>{escape_style(rules(LIGHT, drawing.enlarged))}</style>"
    style += f"<metadata>{CREATOR}</metadata>"
    return {
        "svg": f"{svg(drawing, size, style=style)}\n".encode(errors="replace"),
        "pdf": _Sheet(drawing).pdf(),
    }


def escape_style(text: str) -> str:
    """Return CSS as the text of an XML element; it has no signs that HTML would take otherwise."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


class _Sheet:
    """A sheet of matplotlib, in the units of a drawing, on which its shapes are drawn."""

    def __init__(self, drawing: Drawing) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.transforms import Bbox, TransformedBbox

        size = _INCHES * drawing.width, _INCHES * drawing.height
        self.figure = Figure(figsize=size)
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, drawing.width)
        self.axes.set_ylim(drawing.height, 0)
        self.points, self.enlarged = _INCHES * 72, drawing.enlarged
        self.inside: Any = None
        if drawing.inside is not None:
            left, right, top, bottom = drawing.inside
            self.inside = TransformedBbox(Bbox([[left, bottom], [right, top]]), self.axes.transData)
        self.depth = 0
        for shape in drawing.shapes:
            self.draw(shape, Group(()))

    def pdf(self) -> bytes:
        """Return it as a PDF file."""
        import matplotlib

        file = io.BytesIO()
        with matplotlib.rc_context(_SETTINGS):
            metadata = {"CreationDate": None, "Creator": CREATOR}
            self.figure.savefig(file, format="pdf", metadata=metadata)
        return file.getvalue()

    def draw(self, shape: Shape, group: Group) -> None:
        """Draw a shape of a group."""
        match shape:
            case Group():
                style = group.style if shape.style is None else shape.style
                css, clipped = shape.css or group.css, shape.clipped or group.clipped
                for one in shape.shapes:
                    self.draw(one, replace(shape, css=css, style=style, clipped=clipped))
            case Path():
                self._lines(shape, group)
            case Text():
                self._text(shape, pen_of(group.css, "text", shape.css))
            case Circle():
                from matplotlib.patches import Circle as Round

                ink = self._ink(pen_of(group.css, "circle", shape.css), group)
                self._add(Round((shape.x, shape.y), shape.r, **ink), group)
            case Box():
                self._box(shape, group)

    def _lines(self, path: Path, group: Group) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        pen = pen_of(group.css, path.element, path.css)
        if path.element == "polyline" and group.style is not None:
            pen = replace(pen, dash=DASHED[group.style // COLORS % DASHES] or pen.dash)
        ink = self._ink(pen, group) | {"joinstyle": "round", "capstyle": "butt"}
        strokes = [list(stroke) for stroke in path.strokes if stroke]
        if path.element == "polygon":
            strokes = [[*stroke, stroke[0]] for stroke in strokes]
        if strokes:
            outline = Outline.make_compound_path(*map(Outline, strokes))
            self._add(PathPatch(outline, **ink), group)

    def _box(self, box: Box, group: Group) -> None:
        from matplotlib.patches import Rectangle

        ink = self._ink(pen_of(group.css, "rect", box.css), group)
        if box.fill == HATCH:
            ink |= {"facecolor": "none", "hatch": "////", "hatchcolor": LIGHT["bad"]}
        elif box.fill:
            ink["facecolor"] = box.fill
        self._add(Rectangle((box.x, box.y), box.width, box.height, **ink), group)

    def _text(self, text: Text, pen: Pen) -> None:
        size = pen.size * self.enlarged * self.points
        sides = {"start": "left", "end": "right", "middle": "center"}
        form: Any = {"ha": sides[text.anchor], "va": "baseline", "rotation": text.slope}
        form |= {"rotation_mode": "anchor", "fontsize": size, "parse_math": False}
        form |= {"fontweight": "bold" if pen.bold else "normal"}
        if pen.halo:  # a box, for an edge would make outlines of the text
            form["bbox"] = {"facecolor": LIGHT["back"], "edgecolor": "none", "pad": 0.3}
        color = LIGHT.get(pen.fill, pen.fill)
        self._add(self.axes.text(text.x, text.y, one_line(text.text), color=color, **form), None)

    def _add(self, artist: Any, group: Group | None) -> None:
        """Put an artist above all earlier ones."""
        self.depth += 1
        artist.set_zorder(self.depth)
        if artist.axes is None:
            self.axes.add_patch(artist)
        if group is not None and group.clipped and self.inside is not None:
            artist.set_clip_path(None)
            artist.set_clip_box(self.inside)

    def _ink(self, pen: Pen, group: Group) -> dict[str, Any]:
        """Return the colors and widths of matplotlib for a pen."""
        from matplotlib.colors import to_rgba

        own = f"c{(group.style or 0) % COLORS}"
        edge, face = (
            LIGHT.get(own if name == "c" else name, name) for name in (pen.stroke, pen.fill)
        )
        ink: dict[str, Any] = {"edgecolor": edge, "linewidth": pen.width * self.points}
        ink["facecolor"] = face if face == "none" else to_rgba(face, pen.opacity)
        if pen.dash:
            # matplotlib counts dashes in widths of the line.
            lengths = [float(one) / pen.width for one in pen.dash.split()]
            ink["linestyle"] = (0, tuple(lengths))
        return ink
