"""Renders the report as JSON, for programs. Bandwidths are estimates, in GB/s."""

from collections.abc import Mapping

import msgspec

from linkwise.simulator.report.model import PodPlace, PodReport, Report, WorkloadReport

_DIGITS = 3  # of seconds
Fields = Mapping[str, object]


def render_json(report: Report) -> str:
    """Return the text, with the line break at its end."""
    written: Fields = {
        "good": not report.problems,
        "problems": report.problems,
        "compared": report.compared,  # hold exactly the GPUs of their plan, if there is no problem
        "seed": report.seed,
        "rival": report.rival.value,
        "draws": report.draws,
        "seconds": _rounded(report.seconds),
        "nodes": [
            {"name": node.name, "machine": node.title, "gpus": node.gpu_count}
            for node in report.nodes
        ],
        "workloads": [_workload(workload) for workload in report.workloads],
        "moved": report.moved,
        "to_come": report.to_come,
    }
    return msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n"


def _workload(workload: WorkloadReport) -> Fields:
    return {
        "name": workload.name,
        "needed": workload.needed,
        "running": workload.running,
        "waiting": len(workload.waiting),
        "ended": workload.ended,
        "failed": workload.failed,
        "gbytes_per_s": workload.gbytes_per_s,
        "bound_after_seconds": _rounded(workload.bound_after),
        "stock_gbytes_per_s": workload.stock_gbytes_per_s,
        "stock_running": workload.stock_running,
        "stock_mean_gbytes_per_s": workload.stock_mean,
        "pods": [_pod(pod) for pod in workload.pods],
        "without_gpus": [{"pod": each.pod, "why": each.why} for each in workload.without_gpus],
    }


def _pod(pod: PodReport) -> Fields:
    return {
        "pod": pod.pod,
        "member": pod.member,
        "state": pod.state,
        "seconds": {what: _rounded(time) for what, time in pod.times._asdict().items()},
        "place": _place(pod.place),
        "waits": pod.waits if pod.state == "waits" else "",
        "chosen": pod.chosen,
        "stock_draws": [_place(place) for place in pod.stock],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DIGITS)


def _place(place: PodPlace | None) -> Fields | None:
    """A lone GPU has neither a link nor a bandwidth."""
    if place is None:
        return None
    return {
        "node": place.node,
        "gpus": place.gpus,
        "link": place.link if place.talks else None,
        "gbytes_per_s": place.gbytes_per_s if place.talks else None,
    }
