"""The answer of `linkwise choose`, for people and for programs."""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.cli.choose.gpu_list import write_gpus
from linkwise.cli.printed import in_json
from linkwise.drawing.tables import aligned
from linkwise.topology.machine.hardware import facts_of_gpu
from linkwise.topology.machine.model import LINK_WORDS, LinkClass, Machine
from linkwise.topology.sets.choose import Choice
from linkwise.topology.vendors.known import vendor_of
from linkwise.topology.vendors.vendor import UNKNOWN


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """The answer to a question about one machine.

    `runner_up` is the second-best set or, if no set was chosen, the nearest miss. `why` says why it
    lost, or why no set was chosen.
    """

    name: str
    machine: Machine
    free: int
    size: int
    policy: str
    chosen: Choice | None = None
    runner_up: Choice | None = None
    why: str = ""
    gang: tuple[int, int] | None = None  # members, and GPUs of each
    caveat: str = ""  # what to know of the machine before its GB/s are believed
    members: tuple[int, ...] = ()  # each member's GPUs as a bitmask, in the order of ranks


_FIGURES = (3, 4)
_WORDS = {link: word for word, link in LINK_WORDS.items()}
_LEFT = "left: what the GPUs that stay free are worth to later jobs, 0 to 1 of the idle machine."


def write_text(answer: ChosenSet) -> str:
    machine = answer.machine
    models = sorted({gpu.model for gpu in machine.gpus})
    rows = [
        ("machine", f"{answer.name}: {len(machine.gpus)} x {', '.join(models)}"),
        ("asked", f"{_asked(answer)} of the free GPUs {write_gpus(machine, answer.free)}"),
    ]
    if any(facts_of_gpu(gpu) is UNKNOWN for gpu in machine.gpus):
        rows.append(("note", "a model is not known: it counts as the slowest; see --model"))
    header = ("", "GPUs", "link", "GB/s", "left")
    if answer.chosen is None:
        text = aligned(rows) + f"\nNothing fits: {answer.why}.\n"
        if answer.runner_up is not None:
            # PIX counts as `switch`.
            word = _WORDS.get(answer.runner_up.ring_class, _WORDS[LinkClass.PXB])
            text += "\n" + aligned([header, _row(machine, "nearest", answer.runner_up)], _FIGURES)
            text += f"\nWith --require-link {word} it would be taken.\n\n{_gbytes_legend(answer)}\n"
        return text
    table = [header, _row(machine, "chosen", answer.chosen)]
    each = [write_gpus(machine, gpus) for gpus in answer.members]
    table += [(f"  rank {rank}", gpus, "", "", "") for rank, gpus in enumerate(each)]
    if answer.runner_up is not None:
        table.append(_row(machine, _second_name(answer), answer.runner_up))
    legend = f"{_gbytes_legend(answer)}\n{_LEFT}\n"
    return f"{aligned(rows)}\n{aligned(table, _FIGURES)}\n{_sentence(answer)}\n\n{legend}"


def _gbytes_legend(answer: ChosenSet) -> str:
    text = "GB/s: estimated all-reduce bus bandwidth, as nccl-tests measures it."
    return text + (f" For {answer.name} it\n{answer.caveat}." if answer.caveat else "")


def _asked(answer: ChosenSet) -> str:
    if not answer.gang:
        return f"{answer.size}"
    members, size = answer.gang
    return f"{answer.size}, for {members} members of {size},"


def _second_name(answer: ChosenSet) -> str:
    return "runner-up" if answer.policy == "ring" else "ring"


def _sentence(answer: ChosenSet) -> str:
    if answer.runner_up is None or answer.policy != "ring":
        return answer.why[0].upper() + answer.why[1:] + "."
    return f"Why not the runner-up: {answer.why}."


def _row(machine: Machine, name: str, choice: Choice) -> tuple[str, ...]:
    return (
        name,
        write_gpus(machine, choice.gpus),
        *(
            (vendor_of(machine).word_of(choice.ring_class), f"{choice.gbytes_per_s:.1f}")
            if _talks(choice)
            else "--"
        ),
        f"{choice.remaining_value:.3f}",
    )


def _talks(choice: Choice) -> bool:
    """A lone GPU has no link and no bandwidth."""
    return choice.gpus.bit_count() > 1


def write_json(answer: ChosenSet) -> str:
    """Return one JSON object. If nothing fits, `chosen` is null and `runner_up` is the nearest
    miss."""
    machine = answer.machine
    written: dict[str, object] = {
        "machine": answer.name,
        "policy": answer.policy,
        "free": machine.indices_of(answer.free),
        "size": answer.size,
        "chosen": _choice_json(machine, answer.chosen),
        "runner_up": _choice_json(machine, answer.runner_up),
        "why": answer.why,
    }
    if answer.gang:
        written["members"] = tuple(map(machine.indices_of, answer.members))
    if answer.caveat:
        written["caveat"] = answer.caveat  # of `gbytes_per_s`
    return in_json(written)


def _choice_json(machine: Machine, choice: Choice | None) -> Mapping[str, object] | None:
    if choice is None:
        return None
    talks = _talks(choice)
    return {
        "gpus": machine.indices_of(choice.gpus),
        "link": vendor_of(machine).word_of(choice.ring_class) if talks else None,
        "gbytes_per_s": round(choice.gbytes_per_s, 3) if talks else None,
        "future": round(choice.remaining_value, 6),
    }
