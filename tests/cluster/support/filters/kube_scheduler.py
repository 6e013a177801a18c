"""Asks kube-scheduler's own filter plugins about one pod and all nodes of a small cluster."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from tests.cluster.support.programs import binaries

# Objects of Kubernetes as JSON, in lists by kind: "nodes", "pods" that run on them, "namespaces",
# "persistentVolumes", "persistentVolumeClaims", "storageClasses", "csiNodes"; "pod" is the one that
# waits.
Case = dict[str, Any]


class Verdict(msgspec.Struct, frozen=True):
    """Which plugin refuses a node, with kube-scheduler's status; all empty if the pod may run."""

    plugin: str
    code: str
    reasons: tuple[str, ...] | None


class Answer(msgspec.Struct, frozen=True):
    """*stored* is the case as an API server stores it; *error* says why it cannot be one."""

    stored: Case | None
    nodes: dict[str, Verdict] | None
    error: str

    @property
    def plugins(self) -> dict[str, str]:
        """The plugin that refuses each node, "" for a node that fits."""
        if self.nodes is None:
            raise ValueError(f"no answer: {self.error}")
        return {node: verdict.plugin for node, verdict in self.nodes.items()}


_DECODER = msgspec.json.Decoder(Answer)


@dataclass(frozen=True, slots=True)
class Plugins:
    """The running program."""

    _input: IO[bytes]
    _output: IO[bytes]
    _writer: ThreadPoolExecutor

    def ask(self, cases: Iterable[Case]) -> Iterator[Answer]:
        """Yield the answers, in the order of *cases*; read them all before you ask again."""
        lines = [json.dumps(case).encode() + b"\n" for case in cases]
        # The program works on several cases at once, so it must get more before it has answered.
        written = self._writer.submit(self._write, lines)
        for _ in lines:
            yield _DECODER.decode(self._output.readline())
        written.result()

    def _write(self, lines: list[bytes]) -> None:
        self._input.writelines(lines)
        self._input.flush()


@contextmanager
def plugins() -> Iterator[Plugins]:
    """Run kube-scheduler's plugins; build them if necessary."""
    program = binaries.filters() / "filters"
    with (
        subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor(1) as writer,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        yield Plugins(process.stdin, process.stdout, writer)
        process.stdin.close()
