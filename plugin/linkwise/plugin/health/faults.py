"""PURE. Which GPUs may be given out: a bad finding counts at once, good ones only with time.

A GPU that fails and answers again may fail once more under load. So each of its causes keeps it
out until several probes in a row were clean and its probation is over. Then the GPU comes back by
itself. If it fails again within a day, it waits twice as long each time. One GPU's causes never
affect another GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from linkwise.plugin.gpus.inventory import Finding, Probe, Xid
from linkwise.plugin.health.conditions import Treatment, Treatments, xid_text

RESET_TIMES = 12  # the probation after an XID that asks for a reset, in probations
LONGEST_SECONDS = (
    86400.0  # after XIDs; after what a probe finds, no longer than a reset's first one
)
FORGIVEN_SECONDS = 86400.0  # after so long in health, the next fault counts as the first


@dataclass(frozen=True, slots=True)
class Policy:
    """`probe_seconds` is the time between probes. `clean_probes` times `probe_seconds` is the
    probation after what a probe finds; `probation_seconds` is the probation after an XID."""

    clean_probes: int = 3
    probe_seconds: float = 10.0
    probation_seconds: float = 300.0
    treatments: Treatments = field(default_factory=Treatments)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a GPU is out, or is noted. `until` is when its probation ends. `until_told` is the same
    if the driver itself says that the GPU needs nothing to recover. `clean_probes` counts those in
    a row since a probe or an XID last showed the cause."""

    text: str
    out: bool
    until: float
    until_told: float
    clean_probes: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one GPU: its causes by condition, in the order in which they came up."""

    causes: Mapping[str, Cause] = field(default_factory=dict)
    relapses: int = 0
    well_since: float | None = None  # when it last came back

    @property
    def reason(self) -> str:
        """Why it is out; empty while it may be given out."""
        return "; ".join(cause.text for cause in self.causes.values() if cause.out)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(cause.text for cause in self.causes.values() if not cause.out)


WELL = Health()


def after_probe(
    healths: Mapping[str, Health], probe: Probe, policy: Policy, *, now: float
) -> dict[str, Health]:
    """The GPUs that have something to remember, after one more probe."""
    after: dict[str, Health] = {}
    for uuid in (*healths, *(uuid for uuid in probe.findings if uuid not in healths)):
        health = healths.get(uuid, WELL)
        if uuid not in probe.unanswered:
            told = uuid in probe.recovery_told
            health = _probed(health, probe.findings.get(uuid, ()), policy, told=told, now=now)
        if health != WELL:
            after[uuid] = health
    return after


def after_xids(
    healths: Mapping[str, Health], xids: Sequence[Xid], policy: Policy, *, now: float
) -> dict[str, Health]:
    after = dict(healths)
    for xid in xids:
        treatment = policy.treatments.of_xid(xid.number)
        if treatment is not Treatment.IGNORE:
            health = after.get(xid.uuid, WELL)
            after[xid.uuid] = _struck(health, xid.number, treatment, policy, now=now)
    return after


def _probed(
    health: Health, findings: Sequence[Finding], policy: Policy, *, told: bool, now: float
) -> Health:
    seen: dict[str, str] = {}
    for finding in findings:
        if policy.treatments.of(finding.condition) is not Treatment.IGNORE:
            said = seen.get(finding.condition)
            seen[finding.condition] = f"{said}; {finding.text}" if said else finding.text
    for condition, text in seen.items():
        health = _found(health, condition, text, policy, now=now)
    causes: dict[str, Cause] = {}
    for condition, cause in health.causes.items():
        if condition in seen:
            causes[condition] = cause
            continue
        clean = cause.clean_probes + 1
        until = cause.until_told if told else cause.until
        if clean < policy.clean_probes or now < until:
            causes[condition] = replace(cause, clean_probes=clean)
    after = replace(health, causes=causes)
    if health.reason and not after.reason:
        return replace(after, well_since=now)
    if not causes and health.well_since is not None:
        return after if now - health.well_since < FORGIVEN_SECONDS else WELL
    return after


def _found(health: Health, condition: str, text: str, policy: Policy, *, now: float) -> Health:
    """Add what a probe finds. It lasts while probes find it, and some clean probes longer."""
    out = policy.treatments.of(condition) is not Treatment.NOTE
    base = policy.clean_probes * policy.probe_seconds
    longest = max(base, policy.probation_seconds * RESET_TIMES)
    return _with_cause(health, condition, Cause(text, out, base, base), longest, now=now)


def _struck(
    health: Health, number: int, treatment: Treatment, policy: Policy, *, now: float
) -> Health:
    base = policy.probation_seconds
    times = RESET_TIMES if treatment is Treatment.RESET else 1
    cause = Cause(xid_text(number), treatment is not Treatment.NOTE, base * times, base)
    return _with_cause(health, f"xid-{number}", cause, LONGEST_SECONDS, now=now)


def _with_cause(
    health: Health, condition: str, cause: Cause, longest: float, *, now: float
) -> Health:
    """*cause* has the lengths of its probations instead of their ends."""
    if cause.out and not health.reason and health.well_since is not None:
        again = now - health.well_since < FORGIVEN_SECONDS
        health = replace(health, relapses=health.relapses + 1 if again else 0)
    times = 2.0 ** min(health.relapses, 20) if cause.out else 1.0
    before = health.causes.get(condition)
    until = now + min(cause.until * times, longest)
    until_told = now + min(cause.until_told * times, longest)
    cause = replace(
        cause,
        until=max(until, before.until if before else until),
        until_told=max(until_told, before.until_told if before else until_told),
    )
    return replace(health, causes={**health.causes, condition: cause})


@dataclass(frozen=True, slots=True)
class Change:
    uuid: str
    healthy: bool
    reason: str


def changes(before: Mapping[str, Health], after: Mapping[str, Health]) -> tuple[Change, ...]:
    """What to report to people: GPUs that went out, came back, or are out for another reason."""
    told: list[Change] = []
    for uuid in sorted({*before, *after}):
        was, now = before.get(uuid, WELL).reason, after.get(uuid, WELL).reason
        if now and now != was:
            told.append(Change(uuid, healthy=False, reason=now))
        elif was and not now:
            told.append(Change(uuid, healthy=True, reason=f"clean again after: {was}"))
    return tuple(told)


def new_notes(
    before: Mapping[str, Health], after: Mapping[str, Health]
) -> tuple[tuple[str, str], ...]:
    """Notes that are new since *before*, as uuid and text."""
    return tuple(
        (uuid, note)
        for uuid, health in sorted(after.items())
        for note in health.notes
        if note not in before.get(uuid, WELL).notes
    )
