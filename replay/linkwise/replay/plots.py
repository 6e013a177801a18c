"""Plots as SVG, for pages: the same input gives the same bytes.

They are read on white and on black, so nothing is painted behind them, and the colours are of
medium brightness. matplotlib is the extra `plots`, and loaded where a plot is asked for.
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
_SIZE_INCHES = (7.0, 4.2)
_TITLE_PLACES = ((9, 0, "left"), (-9, 0, "right"), (0, 9, "center"), (0, -15, "center"))


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    title: str
    points: Sequence[tuple[float, float]]  # by x
    dots: Sequence[tuple[float, float]] = ()  # what somebody else has published of it


def curves(lines: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Lines, and dots of the same colour. Raises ReplayError without matplotlib."""
    figure, axes = _empty(x, y)
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


def points(named: Mapping[str, tuple[float, float]], x: Axis, y: Axis) -> str:
    """A dot for each, with its name beside it. Raises ReplayError without matplotlib."""
    figure, axes = _empty(x, y)
    there: dict[tuple[float, float], list[str]] = {}
    for (name, place), colour in zip(named.items(), _colours(len(named)), strict=True):
        axes.plot(*place, "o", color=colour, markersize=8)
        there.setdefault(place, []).append(name)
    axes.margins(0.12)
    _limit(axes, x, y)
    figure.canvas.draw()  # which fixes where the dots are
    _write_names(axes, there)
    return _svg(figure)


def _write_names(axes: "Axes", there: Mapping[tuple[float, float], Sequence[str]]) -> None:
    """Each beside its dot, where it lies over no other dot and no other name."""
    dots = {place: axes.transData.transform(place) for place in there}
    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in dots.values()]
    for place, names in sorted(there.items()):
        px, py = dots[place]
        text = ", ".join(names)
        width = 6.5 * len(text)
        boxes = [
            _box(px + dx - {"left": 0, "right": width, "center": width / 2}[align], py + dy, width)
            for dx, dy, align in _TITLE_PLACES
        ]
        overlaps = [sum(_overlap(box, other) for other in taken) for box in boxes]
        best = overlaps.index(min(overlaps))
        dx, dy, align = _TITLE_PLACES[best]
        taken.append(boxes[best])
        axes.annotate(
            text,
            place,
            xytext=(dx, dy - 3),
            textcoords="offset points",
            ha=align,
            color=_GREY,
            fontsize=9,
        )


def _box(left: float, middle: float, width: float) -> tuple[float, float, float, float]:
    return left, middle - 5, left + width, middle + 9


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _columns(places: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    there = list(places)
    return [x for x, _ in there], [y for _, y in there]


def _colours(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _empty(x: Axis, y: Axis) -> "tuple[Figure, Axes]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReplayError("--plot: expected matplotlib: pip install 'linkwise[plots]'") from error
    figure = Figure(figsize=_SIZE_INCHES, dpi=72, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x.title, color=_GREY)
    axes.set_ylabel(y.title, color=_GREY)
    axes.tick_params(colors=_GREY)
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_color(_GREY)
        spine.set_visible(side in ("left", "bottom"))
    axes.grid(color=_GREY, alpha=0.25, linewidth=0.6)
    return figure, axes


def _limit(axes: "Axes", x: Axis, y: Axis) -> None:
    """Once all is there: an open end is as far as that."""
    axes.set_xlim(x.least, x.most)
    axes.set_ylim(y.least, y.most)


def _svg(figure: "Figure") -> str:
    from matplotlib import rc_context

    text = StringIO()
    # Names of parts are random without a salt, and the time of writing stands in the file.
    with rc_context({"svg.hashsalt": "linkwise", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
