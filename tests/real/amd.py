"""AMD's machines: `links.json` has the xGMI links of each, `questions.json` the sets that are best
by links alone, and `kfd-of-three-machines.txt` what the kernel of three others shows.

Each machine takes the way of a real one: a /sys, the plugin's source, the table that it makes, and
`linkwise choose`. The answers are the same where GPUs of one hive without a link reach each other
over the links of others. What their tools print, in `raw`, shows which GPUs links join.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

from linkwise.plugin.amd.source import AmdInventory
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.prints import read_print
from linkwise.topology.machine.topo_matrix import write_matrix
from linkwise.topology.sets.bandwidth import islands, positions_of
from linkwise.topology.sets.choose import choose
from tests.plugin.amd.tree import NODES, machine_of

Run = Callable[..., "CompletedProcess[str]"]
_OF_NODE = re.compile(r"([0-9]+): (cpu_cores_count=.*)")
_OF_LINKS = re.compile(r"   (io_links|p2p_links): (.*)")
_LINK = re.compile(r"([0-9]+):([0-9]+)/([0-9]+)/([0-9]+)-([0-9]+)/([0-9]+)")


def ask(folder: Path, run: Run) -> tuple[int, list[str]]:
    """How many questions there were, and what is wrong with the answers."""
    machines: Mapping[str, Mapping[str, Any]] = _json(folder / "links.json")
    questions: Mapping[str, list[Mapping[str, Any]]] = _json(folder / "questions.json")
    wrong = [f"{name}: no links are known" for name in sorted(questions.keys() - machines.keys())]
    asked = 0
    for name, record in machines.items():
        with TemporaryDirectory() as directory:
            machine, model = _read(Path(directory), name, record)
            found = [
                [0 if a == b else machine.link(a, b).nvlinks for b in range(len(machine.gpus))]
                for a in range(len(machine.gpus))
            ]
            # The source takes GPUs by bus id.
            ids = record["bdf"] or sorted(gpu.uuid for gpu in machine.gpus)
            order = sorted(range(len(ids)), key=ids.__getitem__)
            asked += 1
            if found != [[record["links"][a][b] for b in order] for a in order]:
                wrong.append(f"{name}: links {found}, expected {record['links']}")
            table = Path(directory) / "table.txt"
            table.write_text(write_matrix(machine), encoding="utf-8")
            for question in questions.get(name, []):
                asked += 1
                wrong += [f"{name}: {text}" for text in _choose(table, model, order, question, run)]
            hives = [[order[gpu] for gpu in positions_of(hive)] for hive in islands(machine)]
            routed, _ = _read(Path(directory) / "routed", name, record, hives)
            for question in questions.get(name, []):
                asked += 1
                wrong += [f"{name}, routed: {text}" for text in _judge(routed, order, question)]
    for file in sorted((folder / "raw").glob("*.txt")):
        if known := machines.get(file.name.partition(".")[0]):
            asked += 1
            wrong += [f"{file.name}: {text}" for text in _print(file, known["links"])]
    kfd, strange = _kfd((folder / "kfd-of-three-machines.txt").read_text(encoding="utf-8"))
    return asked + kfd, wrong + strange


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _read(
    root: Path, name: str, record: Mapping[str, Any], hives: Collection[Collection[int]] = ()
) -> tuple[Machine, str]:
    model = f"AMD Instinct {name.partition('-')[0].upper()}"
    ids, numa = record["bdf"], record["numa"]
    tree = machine_of(root, record["links"], bus_ids=ids, numa=numa, model=model, hives=hives)
    return AmdInventory(sys_root=tree.root).read().machine, model


def _choose(
    table: Path, model: str, order: list[int], question: Mapping[str, Any], run: Run
) -> Iterator[str]:
    free = ",".join(str(order.index(gpu)) for gpu in question["free"])
    options = ("--free", free, "--size", str(question["size"]), "--model", model, "-o", "json")
    done = run("linkwise", "choose", "--machine", table, *options)
    if done.returncode:
        yield f"{question['free']}: exit status {done.returncode}: {done.stderr.strip()}"
        return
    yield from _compare(json.loads(done.stdout)["chosen"]["gpus"], order, question)


def _judge(machine: Machine, order: list[int], question: Mapping[str, Any]) -> Iterator[str]:
    free = sum(1 << order.index(gpu) for gpu in question["free"])
    choice = choose(machine, free, question["size"])
    yield from _compare(() if choice is None else positions_of(choice.gpus), order, question)


def _print(file: Path, links: list[list[int]]) -> Iterator[str]:
    """Which GPUs xGMI joins, as its tool printed it."""
    machine = read_print(file.read_text(encoding="utf-8")).machine
    found = [bool(link.nvlinks) for link in machine.links]
    expected = [bool(links[a][b]) for a, b in combinations(range(len(links)), 2)]
    if found != expected:
        yield f"joined {found}, expected {expected}"


def _compare(gpus: Iterable[int], order: list[int], question: Mapping[str, Any]) -> Iterator[str]:
    chosen = sorted(order[gpu] for gpu in gpus)
    if chosen not in question["best"]:
        free_of = f"{question['size']} of {question['free']}"
        yield f"{free_of}: GPUs {chosen}, expected one of {question['best']}"


def _kfd(text: str) -> tuple[int, list[str]]:
    """The three trees as far as they are printed: what the source makes of them."""
    wrong: list[str] = []
    asked = 0
    for part in text.split("## ")[1:]:
        name = part.partition(":")[0]
        asked += 1
        with TemporaryDirectory() as directory:
            machine = _of_kfd(Path(directory), part)
        shapes = {
            (
                len(gpu.parts or ()),
                machine.link(place, other).nvlinks,
                machine.link(place, other).peer_to_peer,
            )
            for place, gpu in enumerate(machine.gpus)
            for other in range(len(machine.gpus))
            if place != other
        }
        if shapes != _SHAPES[name]:
            wrong.append(f"kfd {name}: {shapes}, expected {_SHAPES[name]}")
    return asked, wrong


# Partitions of each GPU, xGMI links of a pair, and peer access.
_SHAPES = {
    "mi210": {(0, 1, True), (0, 0, True)},
    # Two GPUs at most are printed of these, and of the last one some of its partitions.
    "cpx": {(8, 1, True), (2, 1, True)},
    "mi308": {(4, 1, True), (2, 1, True)},
}


def _of_kfd(root: Path, text: str) -> Machine:
    number = ""
    ids: dict[str, list[str]] = {}
    nodes = root / NODES
    for line in text.splitlines():
        if match := _OF_NODE.match(line):
            number, values = match[1], dict(word.split("=") for word in match[2].split())
            (nodes / number).mkdir(parents=True)
            lines = [f"{name} {value}" for name, value in values.items()]
            (nodes / number / "properties").write_text("\n".join(lines))
            if values["simd_count"] != "0":
                ids.setdefault(str(int(values["location_id"]) >> 3), []).append(
                    values["drm_render_minor"]
                )
        elif match := _OF_LINKS.match(line):
            for place, each in enumerate(_LINK.finditer(match[2])):
                link = nodes / number / match[1] / str(place)
                link.mkdir(parents=True)
                to, kind, weight, least, most, _ = each.groups()
                (link / "properties").write_text(
                    f"node_to {to}\ntype {kind}\nweight {weight}\n"
                    f"min_bandwidth {least}\nmax_bandwidth {most}\n"
                )
    partitions = 0
    for location, renders in ids.items():
        bus_id = f"0000:{int(location) >> 5:02x}:{int(location) & 31:02x}.0"
        folder = root / "devices/pci0000:00" / bus_id
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (root / "module/amdgpu/drivers/pci:amdgpu").mkdir(parents=True, exist_ok=True)
        (folder / "drm" / f"renderD{renders[0]}").mkdir(parents=True)
        (root / "bus/pci/devices" / bus_id).symlink_to(folder)
        (root / "module/amdgpu/drivers/pci:amdgpu" / bus_id).symlink_to(folder)
        for render in renders[1:]:
            name = f"amdgpu_xcp_{partitions}"
            partitions += 1
            (root / "devices/platform" / name / "drm" / f"renderD{render}").mkdir(parents=True)
    return AmdInventory(sys_root=root).read().machine
