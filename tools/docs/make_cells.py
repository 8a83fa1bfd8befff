"""Writes docs/cells.md: every cell of the registry, with the facts of its real layer.

Run it after a change to a cell: ``python tools/docs/make_cells.py``. A test compares the committed
page with this script's output. Shapes and counts come from layers on the meta device. Layers are
counted at many sizes, and the formula is the one polynomial that gives all of these counts.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from elman.config.catalog import natural
from elman.models.build import layer_class
from elman.models.cells import registry
from elman.models.cells.declaration import Cell, Value
from elman.report.markdown import code, table
from elman.report.tables.option_words import as_typed, read_when, values_of

PAGE = Path(__file__).parents[2] / "docs" / "cells.md"
REFERENCE_DIM = 512
BATCH = 7
STEPS = (2, 3, 4)
OPTION_OF = {"H": "n_heads", "n": "n_state", "r": "rank", "N": "n_slots", "m": "mlp_width"}
# The packaged baselines count in heads, whose sizes are options of their own; slstm in heads too.
PACKAGED = {
    "mamba2": ["d", "H", "p", "n"],
    "mamba3": ["d", "H", "p", "n"],
    **{name: ["d", "H", "k", "v"] for name in ("deltaproduct", "fla_gdn", "gdn2", "kda")},
    "rwkv7": ["d", "r"],
    "slstm": ["d", "H", "k"],
}
RANKS = ("decay_rank", "gate_rank", "a_rank", "v_rank")
Sizes = Mapping[str, int]
"""Values of the symbols of the page."""
Monomial = tuple[str, ...]
Polynomial = dict[Monomial, float]

INTRODUCTION = f"""\
# Cells

This page lists every cell of this version. A cell's name is a value of `model.cell`, and of
`defaults: [/cell/<name>@_here_]` in a model's YAML. `tools/docs/make_cells.py` writes the page from
the registry and from layers built on the meta device, and a test compares them.

The columns of the first table:

- **step**: what one step computes. A prime marks the new state. `a > S` scales the value rows of S
  by a. `o` multiplies element by element. `(x)` and `v k^T` are outer products. u or c is the
  activated first projection. W, U and V are matrices, and b is a bias.
- **state**: what a layer returns beside its output with default options. It is fp32 or wider, but
  `past` (keys and values) has the dtype of the projections. `use_conv` adds
  `conv`: the last inputs of the convolution, d_conv - 1 of them.
- **parameters of a layer**: those of one layer with default options, without the norm before it,
  which has d more. The number after the formula is at dim {REFERENCE_DIM}. The two norms of llama
  are part of its layer, and its d is a multiple of head_dim.

Symbols of sizes: B is the batch, d = dim, i = int(dim * expansion), n = n_state, H = n_heads, k and
p = head_dim, r = rank, N = n_slots, m = mlp_width. v is the value width of a head: n * expansion,
and k * expansion for deltaproduct, fla_gdn, gdn2 and kda. k of slstm is i / H. r of rwkv7 stands
for each of its ranks, and its layer is the first one of a model: the others have 2 d r + d more. t
counts the positions so far. If an option is 0 and 0 asks for a rule, the symbol is the size that
the rule gives.
"""


def own_cells() -> list[Cell]:
    """Return the cells of this package, not those that another package has added here."""
    own = (cell for cell in registry.cells().values() if cell.layer.startswith("elman."))
    return sorted(own, key=lambda cell: natural(cell.name))


def symbols(cell: Cell) -> list[str]:
    """Return the sizes that the parameter count of a cell may depend on."""
    if cell.name in PACKAGED:
        return PACKAGED[cell.name]
    named = {**OPTION_OF, "i": "expansion"}
    found = [symbol for symbol, option in named.items() if option in cell.options]
    # Heads without a projection before them: the expansion is of their values.
    if cell.name in ("e88", "e97"):
        found[-1] = "v"
    return ["d", *found]


def sizes(cell: Cell, draw: random.Random) -> Sizes:
    """Return a random value for each symbol of a cell."""
    if cell.name == "rwkv7":
        head = draw.choice((2, 4, 8))
        return {"p": head, "d": head * draw.randrange(3, 20), "r": draw.randrange(1, 9)}
    # Powers of two: a block of eight divides n, and v / n has no rounding.
    ranges = {"d": range(8, 40), "i": range(8, 40), "n": (8, 16, 32, 64), "v": range(2, 40)}
    if cell.name == "llama":
        ranges["d"] = range(8, 40, 2)
    if cell.name in PACKAGED:
        # Powers of two here, too: v / k has no rounding.
        ranges |= {"k": (2, 4, 8, 16, 32), "H": range(1, 12)}
    found: dict[str, int] = {}
    for symbol in symbols(cell):
        choices = ranges.get(symbol, range(1, 9))
        found[symbol] = draw.choice([size for size in choices if size not in found.values()])
    return found


def options_of(cell: Cell, given: Sizes) -> dict[str, Value]:
    """Return the options that give a layer these sizes."""
    if cell.name in ("mamba2", "mamba3"):
        width = (given["H"] * given["p"] + 0.5) / given["d"]
        return {"n_state": given["n"], "head_dim": given["p"], "expansion": width}
    if cell.name == "rwkv7":
        return {"head_dim": given["p"], **dict.fromkeys(RANKS, given["r"])}
    if cell.name == "slstm":
        return {"n_heads": given["H"], "expansion": (given["H"] * given["k"] + 0.5) / given["d"]}
    if cell.name in PACKAGED:
        ratio = given["v"] / given["k"]
        return {"n_heads": given["H"], "head_dim": given["k"], "expansion": ratio}
    found: dict[str, Value] = {
        OPTION_OF[symbol]: size for symbol, size in given.items() if symbol in OPTION_OF
    }
    if "i" in given:
        # A half more, because int(d * (i / d)) may be i - 1.
        found["expansion"] = (given["i"] + 0.5) / given["d"]
    if "v" in given:
        found["expansion"] = given["v"] / given["n"]
    if cell.name == "llama":
        found["head_dim"] = 2
    return found


def build(cell: Cell, dim: int, options: Mapping[str, Value]) -> nn.Module:
    """Return a layer without storage."""
    return layer_class(cell)(dim, **options, device="meta")


def count(layer: nn.Module) -> int:
    """Return the number of parameters of a layer."""
    return sum(parameter.numel() for parameter in layer.parameters())


def fit(names: list[str], samples: list[tuple[Sizes, int]]) -> Polynomial:
    """Return the polynomial of degree 3 in ``names`` that gives every count exactly."""
    monomials: list[Monomial] = [
        term
        for degree in (3, 2, 1, 0)
        for term in itertools.combinations_with_replacement(names, degree)
    ]
    values = np.array([[product(term, given) for term in monomials] for given, _ in samples])
    scale = values.max(axis=0)
    counts = np.array([number for _, number in samples])
    fitted, _, rank, _ = np.linalg.lstsq(values / scale, counts, rcond=None)
    assert rank == len(monomials), f"{len(samples)} samples are too few for {names}"
    found = {
        # Quarters: a fourth of the columns of mamba3 are pairs that turn.
        term: round(4 * factor) / 4
        for term, factor in zip(monomials, (fitted / scale).tolist(), strict=True)
        if round(4 * factor)
    }
    for given, number in samples:
        assert evaluate(found, given) == number, f"{number} parameters at {given}: not {found}"
    return found


def product(term: Monomial, given: Sizes) -> int:
    """Return the value of a product of sizes."""
    return math.prod(given[symbol] for symbol in term)


def evaluate(polynomial: Polynomial, given: Sizes) -> float:
    """Return the value of a polynomial."""
    return sum(factor * product(term, given) for term, factor in polynomial.items())


def written(polynomial: Polynomial) -> str:
    """Return a polynomial as the page shows it."""
    return f"`{' + '.join(_written_term(*item) for item in polynomial.items())}`"


def _written_term(term: Monomial, factor: float) -> str:
    powers = [(symbol, len(list(group))) for symbol, group in itertools.groupby(term)]
    words = [symbol if power == 1 else f"{symbol}^{power}" for symbol, power in powers]
    return " ".join(words if words and factor == 1 else [f"{factor:g}", *words])


def sampled(cell: Cell, expansion: float | None = None) -> list[tuple[Sizes, int]]:
    """Return sizes and parameter counts of a cell, always the same, a few more than a fit needs.

    Args:
        cell: The cell.
        expansion: Its expansion in every sample; None varies it.
    """
    draw = random.Random(0)
    found = []
    for _ in range(math.comb(len(symbols(cell)) + 3, 3) + 5):
        given = sizes(cell, draw)
        options = options_of(cell, given)
        if expansion is not None:
            options["expansion"] = expansion
        found.append((given, count(build(cell, given["d"], options))))
    return found


def parameters(cell: Cell) -> str:
    """Return the formula and the count at the reference size, for the table."""
    found = fit(symbols(cell), sampled(cell))
    text = written(found)
    if "i" in symbols(cell):
        # minGRU and minLSTM project their output exactly when the expansion is not 1.
        plain = sampled(cell, expansion=1.0)
        if any(evaluate(found, {**given, "i": given["d"]}) != number for given, number in plain):
            others = [symbol for symbol in symbols(cell) if symbol != "i"]
            text = f"{written(fit(others, plain))}; {text} unless expansion is 1"
    return f"{text}: {count(build(cell, REFERENCE_DIM, {})):,}"


def state(cell: Cell) -> str:
    """Return the names and shapes of a layer's state, for the table."""
    draw = random.Random(1)
    given = [sizes(cell, draw) for _ in range(3)]
    states = []
    for steps, one in zip(STEPS, given, strict=True):
        layer = build(cell, one["d"], options_of(cell, one))
        _, found = layer(torch.zeros(BATCH, steps, one["d"], device="meta"))
        states.append(found)
    shapes = []
    for name in states[0]:
        axes = list(zip(*(found[name].shape for found in states), strict=True))
        assert axes[0] == (BATCH,) * len(given)
        words = ["B", *(_axis(cell, lengths, given) for lengths in axes[1:])]
        shapes.append(f"`{name} [{', '.join(words)}]`")
    return ", ".join(shapes)


def _axis(cell: Cell, lengths: tuple[int, ...], given: list[Sizes]) -> str:
    """Return an axis as a symbol, a number or an eighth of n."""
    if len(set(lengths)) == 1:
        return str(lengths[0])
    if lengths == STEPS:
        return "t"
    if cell.name in PACKAGED and (word := _convolved(cell.name, lengths, given)):
        return word
    for symbol in symbols(cell):
        for factor, word in ((1, symbol), (2, f"2 {symbol}")):
            if lengths == tuple(factor * one[symbol] for one in given):
                return word
    assert lengths == tuple(one["n"] // 8 for one in given), f"{cell.name}: axis of {lengths}"
    return "n/8"


def _convolved(name: str, lengths: tuple[int, ...], given: list[Sizes]) -> str | None:
    """Return an axis of all that a packaged baseline convolves, or None if it is another axis."""
    if name == "mamba3":
        words, widths = "n/4", tuple(one["n"] // 4 for one in given)
    elif name == "mamba2":
        words, widths = "H p + 2 n", tuple(one["H"] * one["p"] + 2 * one["n"] for one in given)
    elif name == "deltaproduct":
        words = "3 H k + 2 H v"
        widths = tuple(one["H"] * (3 * one["k"] + 2 * one["v"]) for one in given)
    elif name == "slstm":
        words, widths = "H k", tuple(one["H"] * one["k"] for one in given)
    elif name == "rwkv7":
        if lengths == tuple(one["p"] for one in given):
            return "p"
        words, widths = "d/p", tuple(one["d"] // one["p"] for one in given)
    else:
        words = "2 H k + H v"
        widths = tuple(one["H"] * (2 * one["k"] + one["v"]) for one in given)
    return words if lengths == widths else None


def section(cell: Cell) -> str:
    """Return the part of the page about one cell's options."""
    rows = [
        [
            code(name),
            code(as_typed(option.default)),
            values_of(option, code),
            option.doc,
            read_when(option, code),
        ]
        for name, option in cell.options.items()
    ]
    return f"## {cell.name}\n\n`{cell.equation}`\n\n" + table(
        ["option", "default", "values", "what it does", "read with"], rows
    )


def page() -> str:
    """Return the whole page."""
    cells = own_cells()
    rows = [
        [
            f"[{cell.name}](#{cell.name})",
            cell.engine,
            f"`{cell.equation}`",
            state(cell),
            parameters(cell),
            cell.source,
            ", ".join(cell.backends),
        ]
        for cell in cells
    ]
    heads = ["cell", "engine", "step", "state", "parameters of a layer", "source", "backends"]
    return "\n\n".join([INTRODUCTION.rstrip(), table(heads, rows), *map(section, cells)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
