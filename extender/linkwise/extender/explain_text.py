"""An explanation as text, for a person at a terminal: why a pod is where it is, or why it waits.

One fact a line, its name in front, so that it reads aloud and can be cut with `grep`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from linkwise.extender.views import Explanation, GangView, MemberView, Wanted

_WIDTH = 10  # of the names in front


def render(explanation: Explanation) -> str:
    """Several lines, without a last line feed."""
    return "\n".join(_lines(explanation))


def _lines(it: Explanation) -> Iterator[str]:
    yield f"{it.namespace}/{it.name}: {it.state}"
    if it.summary:
        yield f"  {it.summary}"
    if it.wanted is not None:
        yield _fact("wanted", _wanted(it.wanted))
    if it.node:
        yield _fact("node", it.node)
    for container, uuids in it.gpus.items():
        yield from (_fact("GPU", f"{container}: {uuid}") for uuid in uuids)
    if it.link:
        yield _fact("link", f"{it.link}, {it.gbytes_per_s:.0f} GB/s estimated")
    if it.reasons:
        nodes = it.fitting_nodes + sum(count.nodes for count in it.reasons)
        yield _fact(
            "nodes", f"{it.fitting_nodes} of {nodes} have GPUs for this pod by itself; the others:"
        )
        yield from (_fact("", f"{count.nodes:>5}  {count.reason}") for count in it.reasons)
    if it.nearest is not None:
        yield _fact("nearest", f"{it.nearest.node}: {it.nearest.lacks}")
    if it.gang is not None:
        yield from _gang(it.gang)


def _gang(gang: GangView) -> Iterator[str]:
    yield _fact("gang", f"{gang.name}: {gang.phase}, a gang of {gang.size}")
    if gang.reason:
        yield _fact("", gang.reason)
    if gang.plan:
        made = f" made {_time(gang.made)}" if gang.made is not None else ""
        yield _fact("plan", f"{gang.plan}{made}")
    if gang.deadline is not None and not gang.started:
        yield _fact("deadline", f"{_time(gang.deadline)}; then a partial gang gives all back")
    if gang.refusals:
        yield _fact(
            "given up", f"{gang.refusals} plan{'' if gang.refusals == 1 else 's'} until now"
        )
    longest = max((len(member.pod) for member in gang.members), default=0)
    yield from (_fact("", _member(member, longest)) for member in gang.members)


def _member(member: MemberView, width: int) -> str:
    rank = "-" if member.rank is None else str(member.rank)
    where = f" on {member.node}" if member.node else ""
    return f"{rank:>5}  {member.pod:<{width}}  {member.state}{where}"


def _wanted(wanted: Wanted) -> str:
    parts = [f"{wanted.gpus} GPU{'' if wanted.gpus == 1 else 's'}"]
    if len(wanted.containers) > 1:
        shares = ", ".join(f"{name} {gpus}" for name, gpus in wanted.containers.items())
        parts[0] += f" ({shares})"
    if wanted.models:
        parts.append(f"model {' or '.join(wanted.models)}")
    if wanted.memory_mib:
        parts.append(f"{wanted.memory_mib} MiB each")
    if wanted.require_link != "node":  # which every GPU set has
        parts.append(f"link {wanted.require_link} required")
    elif wanted.prefer_link:
        parts.append(f"link {wanted.prefer_link} preferred")
    return ", ".join(parts)


def _fact(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}{text}".rstrip()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
