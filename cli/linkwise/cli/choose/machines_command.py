"""`linkwise machines`: lists the recorded machines, or shows one of them."""

import click
import msgspec

from linkwise.cli.choose.machine_source import suggestion
from linkwise.cli.errors import BadInputError
from linkwise.cli.printed import say
from linkwise.cli.table import aligned
from linkwise.topology.annotations.labels import node_labels, nvlink_kind
from linkwise.topology.machine.recorded import machine_names, recorded_machine, records
from linkwise.topology.machine.topo_matrix import write_matrix


@click.command(name="machines")
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def machines_command(name: str | None, output: str) -> None:
    """List the recorded machines, or show the one called NAME."""
    if name is not None and name not in machine_names():
        raise BadInputError(f"{name}: no recorded machine of that name{suggestion(name)}")
    if output == "json":
        shown = {name: records()[name]} if name else records()
        written = msgspec.json.encode({"machines": shown})
        say(msgspec.json.format(written, indent=1), nl=True)
    else:
        say(_list() if name is None else _show(name))


def _list() -> str:
    rows = [("NAME", "GPUS", "NVLINK", "KIND", "TITLE")]
    for name, record in records().items():
        machine = recorded_machine(name)
        count = str(len(machine.gpus))
        rows.append((name, count, nvlink_kind(machine), record.kind, record.title))
    return aligned(rows, figures=[1])


def _show(name: str) -> str:
    record, machine = records()[name], recorded_machine(name)
    facts = [("title", record.title), ("source", f"{record.kind}: {record.source}")]
    if record.notes:
        facts.append(("notes", record.notes))
    labels = "".join(f"  {label}: {value}\n" for label, value in node_labels(machine).items())
    return f"{aligned(facts)}\n{write_matrix(machine)}\nLabels of a node like this:\n\n{labels}"
