"""`python -m tests.real FOLDER`: what Linkwise answers about public topologies and manifests.

FOLDER has `field/`, `topologies/` and `workloads/`; `answers.yaml` has what is right about each of
their files. A file without an answer there, or an answer without its file, is a failure too. It has
`amd/`, which brings its answers (`amd.py`).
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from tests.real import amd

_ANSWERS = Path(__file__).parent / "answers.yaml"
_BIN = Path(sys.executable).parent
_SECONDS = 120.0
_MADE_UP = re.compile(r"(-[a-z0-9]{5})+$")  # what a controller adds to the names of its pods
Question = Mapping[str, Any]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(folder: Path) -> None:
    """Ask every question of `answers.yaml` about the files in FOLDER."""
    answers: Mapping[str, Mapping[str, Sequence[Question]]]
    answers = yaml.safe_load(_ANSWERS.read_text(encoding="utf-8"))
    asked, wrong = 0, []
    for kind, files in answers.items():
        found = {path.name for path in (folder / kind).iterdir() if path.name != "README.md"}
        wrong += [f"{kind}/{name}: no answer is known" for name in sorted(found - files.keys())]
        wrong += [f"{kind}/{name}: there is no such file" for name in sorted(files.keys() - found)]
        for name in sorted(found & files.keys()):
            for question in files[name]:
                asked += 1
                wrong += [f"{kind}/{name}: {text}" for text in _ask(folder / kind / name, question)]
    of_amd, strange = amd.ask(folder / "amd", _run)
    asked += of_amd
    wrong += [f"amd/{text}" for text in strange]
    for text in wrong:
        click.echo(f"WRONG {text}")
    click.echo(f"{asked} questions, {len(wrong)} wrong")
    sys.exit(bool(wrong))


def _ask(file: Path, question: Question) -> Iterator[str]:
    """Yield what is wrong with the answer."""
    judge = next(judge for key, judge in _JUDGES.items() if key in question)
    yield from judge(file, question)


def _choose(file: Path, question: Question) -> Iterator[str]:
    options = question["choose"]
    done = _run("linkwise", "choose", "--machine", file, *shlex.split(options), "-o", "json")
    if "refused" in question:
        lines = done.stderr.strip().splitlines()
        if not done.returncode or len(lines) != 1 or question["refused"] not in lines[0]:
            yield f"{options}: {_all(done)}: expected one line with {question['refused']!r}"
    elif done.returncode:
        yield f"{options}: {_all(done)}"
    elif (chosen := json.loads(done.stdout)["chosen"]["gpus"]) != question["gpus"]:
        yield f"{options}: GPUs {chosen}, expected {question['gpus']}"


def _notes(file: Path, question: Question) -> Iterator[str]:
    done = _run("linkwise", "choose", "--machine", file, *shlex.split(question["notes"]))
    if question["says"] not in done.stdout:
        yield f"{question['notes']}: {_all(done)}: expected {question['says']!r}"


def _recognise(file: Path, question: Question) -> Iterator[str]:
    done = _run("linkwise", "recognise", "-f", file, "-o", "json")
    expected = sorted(map(list, question["gangs"]))
    if done.returncode:
        yield f"recognise: {_all(done)}"
    elif (gangs := _gangs(json.loads(done.stdout)["pods"])) != expected:
        yield f"recognise: {gangs}, expected {expected}"


def _unknown(file: Path, question: Question) -> Iterator[str]:
    done = _run("linkwise", "recognise", "-f", file)
    if done.returncode != 1 or question["unknown"] not in _all(done):
        yield f"recognise: {_all(done)}: expected {question['unknown']!r}"


def _starts(file: Path, question: Question) -> Iterator[str]:
    nodes = [word for node in question["starts"] for word in ("--node", node)]
    done = _run("linkwise-simulator", *nodes, "--no-baseline", "--fail-if-waiting", file)
    if done.returncode:
        yield f"the simulator: {_all(done)}"


_JUDGES: Mapping[str, Callable[[Path, Question], Iterator[str]]] = {
    "choose": _choose,
    "notes": _notes,
    "gangs": _recognise,
    "unknown": _unknown,
    "starts": _starts,
}


def _all(done: "subprocess.CompletedProcess[str]") -> str:
    return f"exit status {done.returncode}: {(done.stdout + done.stderr).strip()}"


def _gangs(pods: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """[size/minimum, its pods …] of each gang, and of each pod alone. The minimum is that of the
    pod which needs the fewest others."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for number, pod in enumerate(pods):
        groups.setdefault(pod.get("gang") or f"alone {number}", []).append(pod)
    return sorted(
        [
            f"{members[0].get('size', 1)}/{min(pod.get('minimum', 1) for pod in members)}",
            *sorted(_MADE_UP.sub("", pod["name"]) for pod in members),
        ]
        for members in groups.values()
    )


def _run(program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [str(_BIN / program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


if __name__ == "__main__":
    main()
