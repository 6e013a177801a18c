"""Reads a machine: a recorded one by name, a file, or standard input."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text
from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.prints import read_print
from linkwise.topology.machine.recorded import (
    CAVEATS,
    is_printed,
    machine_names,
    read_machine_file,
    recorded_machine,
    records,
)
from linkwise.topology.machine.topo_matrix import UNKNOWN_MODEL

_MOST_NEAR = 3


@dataclass(frozen=True, slots=True)
class NamedMachine:
    name: str  # as the operator wrote it
    machine: Machine
    caveat: str = ""  # of a machine of which not all may have been read


def read_machine(source: str, model: str | None, option: str = "--machine") -> NamedMachine:
    """Read a machine. *source* is NAME, FILE, FILE#NAME or `-`.

    *model* adds what a printed table does not say. Errors name *option*.
    """
    if model is not None and not model.strip():
        raise BadInputError('--model: expected a name like "NVIDIA L40S"')
    try:
        if source in machine_names():
            if model is not None:
                raise BadInputError(f"--model {model}: the recorded machine {source} says its own")
            caveat = CAVEATS.get(records()[source].kind, "")
            return NamedMachine(source, recorded_machine(source), caveat)
        path, name = _split(source, option)
        text = _read(path, option)
        if name is None and is_printed(text):
            printed = read_print(text, model=model or UNKNOWN_MODEL)
            return NamedMachine(source, printed.machine, printed.untold)
        return NamedMachine(source, read_machine_file(text, name, model=model))
    except MachineError as error:
        raise BadInputError(f"{option} {source}: {error}") from None


def suggestion(name: str) -> str:
    """Suggest the names closest to *name*, and where to look."""
    wanted = name.lower()
    within = [each for each in machine_names() if wanted and wanted in each]
    near = [*within, *get_close_matches(wanted, machine_names(), n=_MOST_NEAR)]
    close = list(dict.fromkeys(near))[:_MOST_NEAR]
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"{meant}; see `linkwise machines`"


def _split(source: str, option: str) -> tuple[str, str | None]:
    """Split FILE#NAME. A file whose own name contains # takes precedence."""
    path, hash_sign, name = source.rpartition("#")
    whole = not hash_sign or Path(source).is_file()
    if not (source if whole else path):  # as a path it would be the current folder
        raise BadInputError(f"{option} {source!r}: expected a recorded machine, a file, or -")
    return (source, None) if whole else (path, name)


def _read(path: str, option: str) -> str:
    if path != "-" and not Path(path).exists():
        raise BadInputError(
            f"{option} {path}: no such file, and no recorded machine of that name"
            + suggestion(path)
        )
    return read_text(option, path)
