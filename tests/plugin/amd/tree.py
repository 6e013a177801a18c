"""A /sys that is built here as amdgpu builds it: CPUs, GPUs, partitions, and ways between them."""

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from pathlib import Path

NODES = "class/kfd/kfd/topology/nodes"
ARCHITECTURES = {"MI50": 90006, "MI60": 90006, "MI100": 90008, "MI2": 90010, "MI3": 90402}
PCIE = "type 2\nweight 40\nmin_bandwidth 0\nmax_bandwidth 0\n"
ROUTED = "type 11\nweight 30\nmin_bandwidth 0\nmax_bandwidth 0\n"
FIRST_MINOR = 128


def xgmi(links: int) -> str:
    return f"type 11\nweight 15\nmin_bandwidth 50000\nmax_bandwidth {50000 * links}\n"


class AmdTree:
    """CPUs are the KFD nodes 0 and 1, and GPUs the nodes after them in the order in which they are
    added, partitions one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes = 0
        self._partitions = 0
        self._numbers: dict[str, int] = {}  # of each device's node, by its id
        for _ in range(2):
            self._node("cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")

    def _node(self, properties: str) -> int:
        folder = self.node(self._nodes)
        (folder / "io_links").mkdir(parents=True)
        (folder / "properties").write_text(properties)
        self._nodes += 1
        return self._nodes - 1

    def node(self, number: int) -> Path:
        return self.root / NODES / str(number)

    def node_of(self, device: str) -> Path:
        return self.node(self._numbers[device])

    def device(self, bus_id: str) -> Path:
        return self.root / "bus/pci/devices" / bus_id

    def gpu(
        self,
        bus_id: str,
        *,
        model: str = "AMD Instinct MI300X OAM",
        numa: int = 0,
        way: str = "",
        gib: int = 64,
        partitions: int = 1,
        mode: str = "",
    ) -> list[str]:
        """Add a GPU below the bridges of *way*; return the ids of its devices."""
        folder = self.root / "devices" / (way or f"pci0000:{bus_id[5:7]}") / bus_id
        folder.mkdir(parents=True)
        self.device(bus_id).parent.mkdir(parents=True, exist_ok=True)
        self.device(bus_id).symlink_to(folder)
        driver = self.root / "module/amdgpu/drivers/pci:amdgpu"
        driver.mkdir(parents=True, exist_ok=True)
        (driver / bus_id).symlink_to(folder)
        files = {
            "numa_node": numa,
            "product_name": model,
            "mem_info_vram_total": gib << 30,
            "mem_info_vram_used": 3 << 20,
            "gpu_busy_percent": 0,
            "current_link_width": 16,
            "max_link_width": 16,
            "pp_dpm_pcie": "0: 32.0GT/s, x16 619Mhz *",
            "ras/umc_err_count": "ue: 0\nce: 5",
            "ras/gfx_err_count": "ue: 0\nce: 0",
        } | (
            {"current_compute_partition": mode, "current_memory_partition": "NPS4"} if mode else {}
        )
        for name, text in files.items():
            self.write(bus_id, name, str(text))
        (folder / "config").write_bytes(b"\x02\x10\xa1\x74")
        ids = [bus_id]
        for _ in range(1, partitions):
            ids.append(f"amdgpu_xcp_{self._partitions}")
            self._partitions += 1
        domain, bus, device = (int(part, 16) for part in bus_id.partition(".")[0].split(":"))
        target = next((v for key, v in ARCHITECTURES.items() if key in model), 90402)
        for partition, name in enumerate(ids):
            minor = FIRST_MINOR + self._nodes
            number = self._node(
                f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {target}\n"
                f"location_id {bus << 8 | device << 3 | partition}\ndomain {domain}\n"
                f"drm_render_minor {minor}\nunique_id 1\nhive_id 12\n"
            )
            bank = self.node(number) / "mem_banks/0"
            bank.mkdir(parents=True)
            (bank / "properties").write_text(f"size_in_bytes {(gib << 30) // partitions}\n")
            place = folder if name == bus_id else self.root / "devices/platform" / name
            (place / "drm" / f"renderD{minor}").mkdir(parents=True)
            self._numbers[name] = number
        return ids

    def write(self, bus_id: str, name: str, text: str) -> None:
        path = self.device(bus_id) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")

    def way(self, first: str, second: str, properties: str, kind: str = "io_links") -> None:
        """From one device to the other, not back."""
        folder = self.node_of(first) / kind
        entry = folder / str(len(list(folder.iterdir())) if folder.exists() else 0)
        entry.mkdir(parents=True)
        ends = f"node_from {self._numbers[first]}\nnode_to {self._numbers[second]}\n"
        (entry / "properties").write_text(ends + properties)

    def ways(self, words: Mapping[tuple[str, str], str]) -> None:
        """Both ways."""
        for (first, second), properties in words.items():
            self.way(first, second, properties)
            self.way(second, first, properties)


def machine_of(
    root: Path,
    links: Sequence[Sequence[int]],
    *,
    bus_ids: Sequence[str] | None = None,
    numa: Sequence[int] | None = None,
    model: str = "AMD Instinct MI300X OAM",
    hives: Collection[Collection[int]] = (),
) -> AmdTree:
    """A machine with so many xGMI links between each two GPUs. Where there is none, they reach each
    other over those of other GPUs of their hive, or over PCIe."""
    tree = AmdTree(root)
    count = range(len(links))
    ids = bus_ids or [f"0000:{16 * place + 5:02x}:00.0" for place in count]
    for place in count:
        tree.gpu(ids[place], model=model, numa=numa[place] if numa else place * 2 // len(links))
    for first, second in permutations(count, 2):
        there = links[first][second]
        otherwise = ROUTED if any({first, second} <= {*hive} for hive in hives) else PCIE
        tree.way(ids[first], ids[second], xgmi(there) if there else otherwise)
    return tree


def mesh(count: int, links: int = 1) -> list[list[int]]:
    return [[0 if a == b else links for b in range(count)] for a in range(count)]
