"""Places of what people hand over: machine files, manifests, flags."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.testing import CliRunner

from linkwise.cli.__main__ import main as linkwise
from linkwise.extender.__main__ import command as linkwise_extender
from linkwise.plugin.__main__ import main as linkwise_plugin
from linkwise.simulator.__main__ import command as linkwise_simulator
from linkwise.simulator.manifests.read_manifests import read_manifest_files
from tests.bad_input.table import Place

TABLE = """\
      GPU0  GPU1  CPU Affinity  NUMA Affinity
GPU0   X    NV4   0-15          0
GPU1  NV4    X    0-15          0
"""
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: one
spec:
  containers:
    - name: main
      image: x
      resources:
        limits:
          nvidia.com/gpu: 2
"""
PROGRAMS: dict[str, click.Command] = {
    "linkwise": linkwise,
    "linkwise-extender": linkwise_extender,
    "linkwise-plugin": linkwise_plugin,
    "linkwise-simulator": linkwise_simulator,
}


def run(program: str, *words: str) -> tuple[int, str]:
    """The exit status, and the last line that it printed."""
    result = CliRunner().invoke(PROGRAMS[program], words, prog_name=program, env={})
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output.rstrip("\n").rpartition("\n")[2]


class Commands:
    """These words on a command line: the exit status and the last line."""

    def give(self, given: Sequence[str]) -> str:
        """In this process; what is taken by mistake would serve until the test's time is over."""
        status, last = run(*given)
        return f"{status} {last}"

    def neighbour_goes_on(self) -> None:
        """The same program, asked well, answers. The two daemons would run, so they show help."""
        question = ("choose", "--machine", "dgx1-v100", "--size", "2", "-o", "json")
        assert run("linkwise", *question) == (0, "}")
        for program in ("linkwise-extender", "linkwise-plugin"):
            assert run(program, "--help")[0] == 0


class MachineFiles:
    """A file with this text, as `linkwise choose --machine FILE`: the refusal."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "machine"

    def give(self, given: str | bytes) -> str:
        self._file.write_bytes(given if isinstance(given, bytes) else given.encode())
        status, text = self._choose()
        assert status == 2
        return text.replace(str(self._file), "FILE")

    def _choose(self) -> tuple[int, str]:
        return run("linkwise", "choose", "--machine", str(self._file), "--size", "1")

    def neighbour_goes_on(self) -> None:
        """The same file, once it is good, is read."""
        self._file.write_text(TABLE)
        assert self._choose()[0] == 0


class Manifests:
    """A file of manifests with this text: the refusal."""

    def __init__(self, folder: Path) -> None:
        self._file, self._good = folder / "jobs.yaml", folder / "good.yaml"
        self._good.write_text(POD)

    def give(self, given: str) -> str:
        self._file.write_text(given)
        status, text = run("linkwise-simulator", str(self._good), str(self._file))
        assert status == 2
        return text.replace(f"{self._file.parent}/", "")

    def neighbour_goes_on(self) -> None:
        """The file beside it is read."""
        (pod,) = read_manifest_files([self._good])
        assert (pod.kind, pod.name) == ("Pod", "one")


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-") as directory:
        yield Path(directory)


def places(folder: Path) -> dict[str, Place]:
    return {
        "command line": Commands(),
        "machine file": MachineFiles(folder),
        "manifest": Manifests(folder),
    }
