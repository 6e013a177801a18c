"""`python -m tests.real FOLDER`: what Linkwise answers about public topologies and manifests.

FOLDER has `topologies/` and `workloads/`; `answers.yaml` has what is right about each of their
files. A file without an answer there, or an answer without its file, is a failure too.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

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
    for text in wrong:
        click.echo(f"WRONG {text}")
    click.echo(f"{asked} questions, {len(wrong)} wrong")
    sys.exit(bool(wrong))


def _ask(file: Path, question: Question) -> Iterator[str]:
    """Yield what is wrong with the answer."""
    if "choose" in question:
        words = shlex.split(question["choose"])
        done = _run("linkwise", "choose", "--machine", str(file), *words, "-o", "json")
        if "refused" in question:
            yield from _not_refused(done, question["refused"])
        elif done.returncode:
            yield f"{question['choose']}: {done.stderr.strip()}"
        elif (chosen := json.loads(done.stdout)["chosen"]["gpus"]) != question["gpus"]:
            yield f"{question['choose']}: GPUs {chosen}, expected {question['gpus']}"
    elif "gangs" in question:
        done = _run("linkwise", "recognise", "-f", str(file), "-o", "json")
        expected = sorted(map(list, question["gangs"]))
        if done.returncode:
            yield f"recognise: {done.stderr.strip()}"
        elif (gangs := _gangs(json.loads(done.stdout)["pods"])) != expected:
            yield f"recognise: {gangs}, expected {expected}"
    elif "unknown" in question:
        done = _run("linkwise", "recognise", "-f", str(file))
        yield from _not_refused(done, question["unknown"])
    else:
        nodes = [word for node in question["starts"] for word in ("--node", node)]
        words = [*nodes, "--no-baseline", "--fail-if-waiting", str(file)]
        done = _run("linkwise-simulator", *words)
        if done.returncode:
            yield f"the simulator: exit status {done.returncode}: {done.stdout}{done.stderr}"


def _not_refused(done: "subprocess.CompletedProcess[str]", words: str) -> Iterator[str]:
    lines = done.stderr.strip().splitlines()
    if done.returncode not in (1, 2):
        yield f"exit status {done.returncode}, expected a refusal with {words!r}"
    elif len(lines) != 1 or words not in lines[0]:
        yield f"{done.stderr.strip()}: expected one line with {words!r}"


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


def _run(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(_BIN / program), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


if __name__ == "__main__":
    main()
