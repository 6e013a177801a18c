"""`linkwise choose`: which GPUs of a machine a job would get, and why not others.

It calls the same function as the plugin and the extender, so its answer is theirs. Exit status: 0 a
set was chosen, 1 none fits, 2 the question is malformed.
"""

import sys
from dataclasses import dataclass, replace

import click

from linkwise.cli.choose.answer import ChosenSet, write_json, write_text
from linkwise.cli.choose.gpu_list import read_gpus, write_gpus
from linkwise.cli.choose.machine_source import read_machine
from linkwise.cli.errors import BadInputError
from linkwise.cli.printed import output_option, say
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import LINK_WORDS, LinkClass, Machine
from linkwise.topology.sets.choose import Choice, choose, ranked
from linkwise.topology.sets.criteria import Difference, Question, difference
from linkwise.topology.sets.partition import choose_partition
from linkwise.topology.sets.tables import table_of
from linkwise.topology.vendors.known import vendor_of

_LINKS = click.Choice(list(LINK_WORDS), case_sensitive=False)


@dataclass(frozen=True, slots=True)
class ChooseQuestion:
    machine: Machine
    free: int
    size: int
    must: int
    require: LinkClass
    prefer: LinkClass


@click.command(
    name="choose",
    short_help="Which of a machine's free GPUs a job would get.",
    epilog="MACHINE is a recorded machine (`linkwise machines` lists them), a file, or - for "
    "standard input. A file is what `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi "
    "topology` printed, a dump of NCCL or RCCL (NCCL_TOPO_DUMP_FILE), or JSON in the format of "
    "`linkwise machines NAME -o json`, FILE#NAME where it has several.\n\n"
    "\b\nExample:\n  nvidia-smi topo -m | linkwise choose --machine - --size 4",
)
@click.option("--machine", "source", required=True, metavar="MACHINE", help="The machine.")
@click.option("--free", metavar="GPUS", help="Free GPUs, like 0,2,5-7.  [default: all]")
@click.option("--size", type=click.IntRange(min=1), help="How many GPUs to take.")
@click.option("--gang", metavar="MxN", help="GPUs for M members of N GPUs, instead of --size.")
@click.option("--must", metavar="GPUS", help="GPUs that the set must contain.")
@click.option("--require-link", type=_LINKS, help="Take no set with a link farther than this.")
@click.option("--prefer-link", type=_LINKS, help="As good as can be.  [default: nvlink]")
@click.option(
    "--policy",
    type=click.Choice(["ring", "partition"], case_sensitive=False),
    default="ring",
    show_default=True,
    help="ring: most all-reduce bandwidth. partition: as NVIDIA's go-gpuallocator chooses.",
)
@click.option("--model", help='GPU model for a printed table, like "NVIDIA L40S".')
@output_option
def choose_command(
    source: str,
    free: str | None,
    size: int | None,
    gang: str | None,
    must: str | None,
    require_link: str | None,
    prefer_link: str | None,
    policy: str,
    model: str | None,
    output: str,
) -> None:
    """Say which of a machine's free GPUs a job would get."""
    named = read_machine(source, model)
    members = _read_gang(gang, size, must, policy)
    total = size or members[0] * members[1]
    question = _read_question(named.machine, free, total, must, require_link, prefer_link)
    none = ChosenSet(
        named.name, named.machine, question.free, total, policy=policy, caveat=named.caveat
    )
    try:
        if gang is not None:
            answer = _answer_for_a_gang(replace(none, gang=members), question)
        elif policy == "partition":
            if require_link or prefer_link:
                raise BadInputError("--policy partition: knows no link classes: ask for none")
            answer = _answer_by_partition(none, question)
        else:
            answer = _answer_by_ring(none, question)
    except LinkwiseError as error:
        raise BadInputError(str(error)) from None
    answer = replace(answer, why=vendor_of(named.machine).own_words(answer.why))
    say(write_json(answer) if output == "json" else write_text(answer))
    sys.exit(0 if answer.chosen else 1)


def _read_gang(
    gang: str | None, size: int | None, must: str | None, policy: str
) -> tuple[int, int]:
    """Return members, and GPUs of each; with --size a gang of one."""
    if (gang is None) == (size is None):
        raise BadInputError("--size or --gang: expected one of the two")
    if gang is None:
        return 1, size or 0
    members, _, each = gang.partition("x")
    if not (members.isdecimal() and each.isdecimal() and int(members) and int(each)):
        raise BadInputError(f"--gang {gang}: expected members x GPUs of each, like 4x1")
    if must is not None or policy != "ring":
        raise BadInputError("--gang: expected neither --must nor another --policy than ring")
    return int(members), int(each)


def _read_question(
    machine: Machine,
    free: str | None,
    size: int,
    must: str | None,
    require_link: str | None,
    prefer_link: str | None,
) -> ChooseQuestion:
    free_gpus = machine.all_gpus if free is None else read_gpus("--free", free, machine)
    must_gpus = 0 if must is None else read_gpus("--must", must, machine)
    taken = must_gpus & ~free_gpus
    if taken:
        raise BadInputError(f"--must {must}: GPUs {write_gpus(machine, taken)} are not free")
    if must_gpus.bit_count() > size:
        raise BadInputError(f"--must {must}: {must_gpus.bit_count()} GPUs, but --size {size}")
    require = LINK_WORDS[require_link or "node"]
    prefer = LINK_WORDS[prefer_link or "nvlink"]
    if prefer < require:
        raise BadInputError(
            f"--prefer-link {prefer_link}: farther than --require-link {require_link}"
        )
    return ChooseQuestion(machine, free_gpus, size, must_gpus, require, prefer)


def _answer_by_ring(none: ChosenSet, question: ChooseQuestion) -> ChosenSet:
    machine = question.machine
    choices = ranked(
        machine,
        question.free,
        question.size,
        must=question.must,
        require=question.require,
        prefer=question.prefer,
        limit=2,
    )
    if not choices:
        return _refusal(none, question)
    chosen, *others = choices
    order_by = Question(table_of(machine), question.free, question.prefer)
    return replace(
        none,
        chosen=chosen,
        runner_up=others[0] if others else None,
        why=_why(None if not others else difference(order_by, chosen.gpus, others[0].gpus)),
    )


def _answer_for_a_gang(none: ChosenSet, question: ChooseQuestion) -> ChosenSet:
    """All its GPUs are one communicator, so the ring through all of them counts first."""
    # A tenth of a second that others do not wait for.
    from linkwise.extender.place.one_machine import gang_on, runner_up_on
    from linkwise.extender.state.cache.machine_kind import MachineKind

    machine, free = question.machine, question.free
    kind, require, prefer = MachineKind(machine, 0), question.require, question.prefer
    assert none.gang is not None, "it is asked for"
    members = gang_on(kind, free, *none.gang, require=require, prefer=prefer)
    if not members:
        return _refusal(none, question)
    found = runner_up_on(kind, free, members, require=require, prefer=prefer)
    others = () if found is None else tuple(found.other.gpus.values())
    return replace(
        none,
        chosen=_as_choice(machine, free, sum(members)),
        runner_up=_as_choice(machine, free, others[0]) if others else None,
        why=_why(None if found is None else found.difference),
        members=members,
    )


def _why(between: Difference | None) -> str:
    """Why the runner-up, the second of the two that differ, lost."""
    return "no other set would do" if between is None else between.why_not


def _answer_by_partition(none: ChosenSet, question: ChooseQuestion) -> ChosenSet:
    """Choose by NVIDIA's policy. The runner-up is what the ring policy would take."""
    machine = question.machine
    gpus = choose_partition(machine, question.free, question.size, must=question.must)
    if gpus is None:
        return _refusal(none, question)
    chosen = _as_choice(machine, question.free, gpus)
    ring = choose(machine, question.free, question.size, must=question.must)
    differs = ring is not None and ring.gpus != gpus
    return replace(
        none,
        chosen=chosen,
        runner_up=ring if differs else None,
        why="what the ring policy would take; partition weighs all pairs of all sets, not rings"
        if differs
        else "the ring policy would take the same",
    )


def _as_choice(machine: Machine, free: int, gpus: int) -> Choice:
    table = table_of(machine)
    return Choice(
        gpus=gpus,
        gbytes_per_s=float(table.values[gpus]),
        ring_class=LinkClass(int(table.ring_classes[gpus])),
        remaining_value=float(table.remaining_value[free & ~gpus]),
    )


def _refusal(none: ChosenSet, question: ChooseQuestion) -> ChosenSet:
    """Say what was requested, what there is, and what came nearest."""
    free, size = question.free.bit_count(), question.size
    if free < size:
        return replace(none, why=f"{size} GPUs wanted, {free} free")
    keep = f"keep to {question.require.name} or closer"
    if none.gang is not None:
        members, each = none.gang
        return replace(none, why=f"no {members} sets of {each} of the {free} free GPUs {keep}")
    holding = f" with {write_gpus(question.machine, question.must)}" if question.must else ""
    why = f"no {size} of the {free} free GPUs{holding} {keep}"
    return replace(none, runner_up=_nearest(question), why=why)


def _nearest(question: ChooseQuestion) -> Choice | None:
    """Return the set of the closest class that exists."""
    for link in sorted(LinkClass, reverse=True):
        choice = choose(
            question.machine, question.free, question.size, must=question.must, require=link
        )
        if choice is not None:
            return choice
    return None
