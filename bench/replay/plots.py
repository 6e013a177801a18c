"""SVG plots for pages. The same input gives the same bytes.

Readers see them on white and on black, so the background is transparent and the colours are of
medium brightness. matplotlib is imported only for a plot.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from linkwise.replay.errors import ReplayError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#7a838c"
_COLOURS = ("#2f81d6", "#d55e00", "#1a9e74", "#b5658f", "#a0851b", "#8a6fd1", "#4a9eb0")
_SHAPES = "osD^vPX"
_SIZE_INCHES = (7.0, 4.2)


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    least: float | None = None
    most: float | None = None
    is_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    title: str
    points: Sequence[tuple[float, float]]  # by x
    dots: Sequence[tuple[float, float]] = ()  # values of it that others published


def curves(lines: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Plot lines, with dots of the same colour. Raises ReplayError without matplotlib."""
    figure, (axes,) = _empty([(x, y)])
    for line, colour in zip(lines, _colours(len(lines)), strict=True):
        axes.plot(*_columns(line.points), color=colour, linewidth=1.5, label=line.title)
        if line.dots:
            xs, ys = _columns(line.dots)
            axes.plot(xs, ys, "o", color=colour, markersize=4, fillstyle="none", linestyle="")
    if any(line.dots for line in lines):
        axes.plot([], [], "o", color=_GREY, markersize=4, fillstyle="none", label="published")
    _limit(axes, x, y)
    axes.legend(frameon=False, labelcolor=_GREY, fontsize=9, loc="lower right")
    return _svg(figure)


@dataclass(frozen=True, slots=True)
class Dots:
    """A panel with a dot for each name."""

    named: Mapping[str, tuple[float, float]]
    x: Axis
    y: Axis


def points(panels: Sequence[Dots]) -> str:
    """Plot *panels* side by side; a name looks the same in all. Raises ReplayError without
    matplotlib."""
    figure, panes = _empty([(panel.x, panel.y) for panel in panels])
    names = list(dict.fromkeys(name for panel in panels for name in panel.named))
    for panel, axes in zip(panels, panes, strict=True):
        for name, place in panel.named.items():
            # Dots may coincide, so each has a shape of its own and no fill.
            number = names.index(name)
            shape, colour = _SHAPES[number % len(_SHAPES)], _COLOURS[number % len(_COLOURS)]
            axes.plot(*place, shape, color=colour, markersize=9, fillstyle="none", label=name)
        axes.margins(0.12)
        _limit(axes, panel.x, panel.y)
    panes[0].legend(frameon=False, labelcolor=_GREY, fontsize=9)
    return _svg(figure)


def _columns(places: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    there = list(places)
    return [x for x, _ in there], [y for _, y in there]


def _colours(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _empty(panels: Sequence[tuple[Axis, Axis]]) -> "tuple[Figure, Sequence[Axes]]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReplayError("--plot: expected matplotlib: pip install matplotlib") from error
    width, height = _SIZE_INCHES
    wide = width * (1.0 if len(panels) == 1 else 1.5)
    figure = Figure(figsize=(wide, height), dpi=72, layout="constrained")
    panes: Sequence[Axes] = figure.subplots(1, len(panels), squeeze=False)[0].tolist()
    for axes, (x, y) in zip(panes, panels, strict=True):
        axes.set_xlabel(x.title, color=_GREY)
        axes.set_ylabel(y.title, color=_GREY)
        axes.tick_params(which="both", colors=_GREY)
        axes.set_facecolor("none")
        for side, spine in axes.spines.items():
            spine.set_color(_GREY)
            spine.set_visible(side in ("left", "bottom"))
        axes.grid(color=_GREY, alpha=0.25, linewidth=0.6)
    return figure, panes


def _limit(axes: "Axes", x: Axis, y: Axis) -> None:
    """Set scales and limits after all data is drawn: an open end follows the data."""
    if x.is_logarithmic:
        axes.set_xscale("log")
    if y.is_logarithmic:
        axes.set_yscale("log")
    axes.set_xlim(x.least, x.most)
    axes.set_ylim(y.least, y.most)


def _svg(figure: "Figure") -> str:
    from matplotlib import rc_context

    text = StringIO()
    # A salt makes the ids of parts reproducible; the metadata without a date does the same for the
    # file.
    with rc_context({"svg.hashsalt": "linkwise", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
