"""Options of the skeleton that most cells share: a projection in, a convolution, one out."""

from __future__ import annotations

from elman.models.cells.declaration import Option

D_CONV = Option(4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True})
DROPOUT = Option(0.0, "dropout of the cell's output", minimum=0, maximum=1, in_kernel=False)
CONVOLUTION = {
    "use_conv": Option(False, "causal convolution before the first silu", size=True),
    "d_conv": D_CONV,
}


def expansion(of: str = "width of the state", default: float = 1.0) -> Option:
    """Return the option for an inner width int(dim * expansion); ``of`` names that width."""
    return Option(default, f"{of} over dim", above=0, size=True)


def skeleton_options(
    of: str = "width of the state",
    *,
    default: float = 1.0,
    convolution: bool = True,
    normal: str | None = "",
) -> dict[str, Option]:
    """Return the options of a cell between one projection in and one out.

    Args:
        of: The width that ``expansion`` sets, in words.
        default: Default of ``expansion``.
        convolution: Whether the layer may have a convolution before the cell.
        normal: What ``mamba2_init=normal`` draws besides the two projections, in words that begin
            with a comma; None leaves the option out.
    """
    found = {"expansion": expansion(of, default)}
    if convolution:
        found |= CONVOLUTION
    if normal is not None:
        found["mamba2_init"] = Option(
            "none",
            "initial weights of the first and last projection: none Xavier; normal N(0, 0.02^2)"
            + normal,
            choices=("none", "normal"),
            in_kernel=False,
        )
    return found | {"dropout": DROPOUT}
