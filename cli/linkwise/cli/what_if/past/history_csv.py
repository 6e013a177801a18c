"""Pods of a longer span than a cluster lists, from a CSV file with one pod per line.

Required: namespace, pod, gpus, created. Optional: uid, node, bound, ended, gang, gang_size,
priority, node_selector. Other columns are ignored. Each line becomes the Pod that kubectl would
have listed, so all later steps treat both alike.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import StringIO

from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text, shown
from linkwise.cli.what_if.past.lives import PastCondition, PastPod, PastStatus, ended_at
from linkwise.kube.objects import Container, ObjectMeta, PodSpec, Resources, Toleration
from linkwise.pods.annotations import MAX_GANG, ask_of
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

NEEDED = ("namespace", "pod", "gpus", "created")
OPTIONAL = ("uid", "node", "bound", "ended", "gang", "gang_size", "priority", "node_selector")
_TIME = "a time like 2026-03-01T08:00:00Z, or seconds since 1970"
_MOST_GPUS = 10**6


def read_history(path: str, resource: str) -> list[PastPod]:
    """Read the file. Raises BadInputError with file, line and column."""
    where = shown("--history", path)
    rows = csv.DictReader(StringIO(read_text("--history", path)), strict=True)
    try:
        columns = rows.fieldnames or ()
        for name in NEEDED:
            if name not in columns:
                found = ", ".join(columns) or "nothing"
                raise BadInputError(f"{where}: line 1: no column {name} in: {found}")
        lines = [(rows.line_num, row) for row in rows]
    except csv.Error as error:
        raise BadInputError(f"{where}: line {rows.reader.line_num}: {error}") from None
    read = [_HistoryRow(f"{where}: line {line}", row) for line, row in lines]
    members = Counter((row.text("namespace"), row.text("gang")) for row in read)
    pods = [row.pod(resource, members) for row in read]
    seen: dict[str, str] = {}
    for row, pod in zip(read, pods, strict=True):
        uid = pod.metadata.uid
        if uid in seen:
            raise row.error("uid", f"{uid!r} stands in {seen[uid]} too: expected it once")
        seen[uid] = row.where.rpartition(": ")[2]
    return pods


class _HistoryRow:
    def __init__(self, where: str, texts: Mapping[str, str | None]) -> None:
        self.where, self._texts = where, texts

    def text(self, column: str) -> str:
        return (self._texts.get(column) or "").strip()

    def error(self, column: str, problem: str) -> BadInputError:
        return BadInputError(f"{self.where}: {column}: {problem}")

    def pod(self, resource: str, members: Mapping[tuple[str, str], int]) -> PastPod:
        namespace, name = self._needed("namespace"), self._needed("pod")
        created = self._time("created")
        if created is None:
            raise self.error("created", f"'': expected {_TIME}")
        bound, ended = self._time("bound"), self._time("ended")
        if ended is not None and bound is None:
            raise self.error("bound", f"'' with ended {self.text('ended')!r}: expected {_TIME}")
        limits = {resource: self._count("gpus", 1, _MOST_GPUS)}
        phase = "Pending" if bound is None else "Running" if ended is None else "Succeeded"
        scheduled = PastCondition(type="PodScheduled", status="True", last_transition_time=bound)
        return PastPod(
            metadata=ObjectMeta(
                name=name,
                namespace=namespace,
                uid=self.text("uid") or f"{namespace}/{name}/{created.timestamp():.0f}",
                annotations=self._gang(members),
                creation_timestamp=created,
            ),
            spec=PodSpec(
                node_name=self.text("node") if bound is not None else "",
                node_selector=dict(self._selector()),
                # Its tolerations are unknown, but it did get a node.
                tolerations=(Toleration(operator="Exists"),),
                containers=(Container(name="main", resources=Resources(limits=dict(limits))),),
                priority=self._count("priority", -(10**9), 2 * 10**9)
                if self.text("priority")
                else 0,
                restart_policy="Never",
            ),
            status=PastStatus(
                phase=phase,
                conditions=() if bound is None else (scheduled,),
                container_statuses=() if bound is None else (ended_at(bound, ended),),
            ),
        )

    def _gang(self, members: Mapping[tuple[str, str], int]) -> dict[str, str]:
        name = self.text("gang")
        if not name:
            return {}
        size = members[self.text("namespace"), name]
        if self.text("gang_size"):
            size = self._count("gang_size", 1, MAX_GANG)
        said = {names.GANG: name, names.GANG_SIZE: str(size)}
        try:
            ask_of(said, {})
        except AnnotationError as error:
            raise self.error("gang", str(error)) from None
        return said

    def _selector(self) -> Iterator[tuple[str, str]]:
        text = self.text("node_selector")
        for part in filter(None, text.split(";")):
            key, sign, value = part.partition("=")
            if not (sign and key.strip()):
                raise self.error("node_selector", f"{text!r}: expected key=value;key=value")
            yield key.strip(), value.strip()

    def _needed(self, column: str) -> str:
        text = self.text(column)
        if not text:
            raise self.error(column, "'': expected a name")
        return text

    def _count(self, column: str, least: int, most: int) -> int:
        text = self.text(column)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 12):
            raise self.error(column, f"{text!r}: expected a whole number, {least} or more")
        if not least <= int(text) <= most:
            raise self.error(column, f"{text!r}: expected {least} to {most}")
        return int(text)

    def _time(self, column: str) -> datetime | None:
        text = self.text(column)
        if not text:
            return None
        try:
            if text.replace(".", "", 1).isdigit():
                return datetime.fromtimestamp(float(text), UTC)
            found = datetime.fromisoformat(text)
        except (ValueError, OverflowError, OSError):
            raise self.error(column, f"{text!r}: expected {_TIME}") from None
        return found if found.tzinfo else found.replace(tzinfo=UTC)
