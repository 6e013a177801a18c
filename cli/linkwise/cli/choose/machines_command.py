"""`linkwise machines`: lists the recorded machines, or shows one of them."""

import click
import msgspec

from linkwise.cli.choose.machine_source import suggestion
from linkwise.cli.errors import BadInputError
from linkwise.cli.printed import output_option, say, terminal_width
from linkwise.drawing.tables import Column, Table, aligned, figure
from linkwise.topology.annotations.labels import node_labels, nvlink_kind
from linkwise.topology.machine.recorded import machine_names, recorded_machine, records
from linkwise.topology.machine.topo_matrix import write_matrix


@click.command(
    name="machines",
    short_help="List the recorded machines, or show one.",
    epilog="\b\nExample:\n  linkwise machines dgx1-v100",
)
@click.argument("name", required=False)
@output_option
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
    columns: list[Column[str]] = [
        Column("NAME", lambda name: name),
        figure("GPUS", lambda name: len(recorded_machine(name).gpus)),
        Column("NVLINK", lambda name: nvlink_kind(recorded_machine(name))),
        Column("KIND", lambda name: records()[name].kind),
        Column("TITLE", lambda name: records()[name].title),
    ]
    return Table.of(columns, records()).fitted(terminal_width())


def _show(name: str) -> str:
    record, machine = records()[name], recorded_machine(name)
    facts = [("title", record.title), ("source", f"{record.kind}: {record.source}")]
    if record.notes:
        facts.append(("notes", record.notes))
    labels = "".join(f"  {label}: {value}\n" for label, value in node_labels(machine).items())
    return f"{aligned(facts)}\n{write_matrix(machine)}\nLabels of a node like this:\n\n{labels}"
