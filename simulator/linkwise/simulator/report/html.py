"""Renders the report as one HTML file with an SVG drawing of every node; it loads nothing."""

from collections.abc import Mapping

from linkwise.drawing.html import environment
from linkwise.drawing.shapes import COLOURS, Drawing, Holder, draw
from linkwise.simulator.report.model import GpuTenant, PodPlace, Report, stock_tenants, tenants
from linkwise.simulator.report.text import (
    DRAW_HEADS,
    MOVED,
    WHY_HERE,
    about_the_baseline,
    alone_words,
    draw_rows,
    gain_figures,
    other_waits,
    place_words,
    workload_words,
)
from linkwise.simulator.report.timeline import LEGEND, MEASURED, timeline_of
from linkwise.topology.vendors.known import vendor_of


def render_html(report: Report) -> str:
    """Return the text of the file."""
    colours = {w.name: number % COLOURS for number, w in enumerate(report.workloads)}
    return (
        environment("linkwise.simulator.report")
        .get_template("report.html")
        .render(
            report=report,
            colours=colours,
            drawings=[_drawings(report, number, colours) for number in range(len(report.nodes))],
            fastest=_fastest(report),
            alone=alone_words(report),
            about=about_the_baseline(report),
            other_waits=other_waits(report),
            gain=gain_figures(report),
            timeline=timeline_of(report),
            legend=LEGEND,
            links=" or ".join(
                dict.fromkeys(vendor_of(node.machine).links for node in report.nodes)
            ),
            measured=MEASURED,
            draw_heads=DRAW_HEADS,
            draw_rows=draw_rows(report),
            place_words=place_words,
            workload_words=workload_words,
            why_here=WHY_HERE,
            moved_heading=MOVED,
            short=lambda workload, pod: GpuTenant(workload, pod).short,
        )
    )


def _drawings(report: Report, number: int, colours: dict[str, int]) -> tuple[Drawing, ...]:
    """Draw a node with Linkwise and, if there is a baseline, its first draw beside it."""
    node = report.nodes[number]
    ours = draw(node.machine, _holders(tenants(report, node.name), colours))
    if not report.draws:
        return (ours,)
    stock = draw(node.machine, _holders(stock_tenants(report, node.name), colours))
    return (ours, stock)


def _holders(held: Mapping[int, GpuTenant], colours: Mapping[str, int]) -> dict[int, Holder]:
    return {
        index: Holder(
            label=tenant.short,
            colour=colours[tenant.workload.name],
            words=f"held by {tenant.pod.pod} ({tenant.workload.name})",
        )
        for index, tenant in held.items()
    }


def _fastest(report: Report) -> float:
    """Return the GB/s of the longest bar in the table."""
    places: list[PodPlace | None] = []
    for _, pod in report.pods:
        places += [pod.place, *pod.stock[:1]]
    return max((p.gbytes_per_s for p in places if p and p.talks), default=1.0)
