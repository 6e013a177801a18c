"""The report as one HTML file: no script, nothing to load, an SVG drawing of every node.

`report_svg` says where the shapes stand and the template how they look.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined

from linkwise.simulator.report.model import GpuTenant, PodPlace, Report, stock_tenants, tenants
from linkwise.simulator.report.svg import Drawing, draw
from linkwise.simulator.report.text import place_words, workload_words

COLOURS = 8  # how many the template's style sheet has


def render_html(report: Report) -> str:
    """The whole file as text."""
    environment = Environment(
        loader=PackageLoader("linkwise.simulator.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = {w.name: number % COLOURS for number, w in enumerate(report.workloads)}
    return environment.get_template("report.html").render(
        report=report,
        colours=colours,
        drawings=[_drawings(report, number, colours) for number in range(len(report.nodes))],
        fastest=_fastest(report),
        place_words=place_words,
        workload_words=workload_words,
        short=lambda workload, pod: GpuTenant(workload, pod).short,
    )


def _drawings(report: Report, number: int, colours: dict[str, int]) -> tuple[Drawing, ...]:
    """A node with us, and beside it with the first draw of the baseline if there is one."""
    node = report.nodes[number]
    ours = draw(node.machine, tenants(report, node.name), colours)
    if not report.draws:
        return (ours,)
    return (ours, draw(node.machine, stock_tenants(report, node.name), colours))


def _fastest(report: Report) -> float:
    """The longest bar of the table, in GB/s."""
    places: list[PodPlace | None] = []
    for _, pod in report.pods:
        places += [pod.place, *pod.stock[:1]]
    return max((p.gbytes_per_s for p in places if p and p.talks), default=1.0)
