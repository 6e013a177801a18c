"""What a maker of GPUs has of its own, as far as no driver needs to be asked."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from linkwise.topology.machine.model import LinkClass, Machine

ComputeCapability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model. Speeds are GB/s in one direction.

    `family` is the vendor's word. `nvlinks` is the chip's number of the vendor's own links, 0 if it
    has none or if that is unknown. `nvlink_gbytes_per_s` is what a ring gets of one, and
    `nccl_nvlink_gbytes_per_s` what NCCL reckons with. `sharp_share` is the part of the latter that
    NVLink SHARP uses, 0 if no switch of the GPU's generation reduces. `pcie_gbytes_per_s` is x16
    below one switch. The speed between sockets is that of the CPUs in the vendor's own server of
    the GPU's generation. With `one_way_rings`, the vendor's library runs rings that use a link in
    one direction only.
    """

    family: str
    compute_capability: ComputeCapability | None
    memory_mib: int | None
    nvlinks: int
    nvlink_gbytes_per_s: float
    nccl_nvlink_gbytes_per_s: float
    sharp_share: float
    pcie_gbytes_per_s: float
    inter_socket_gbytes_per_s: float
    one_way_rings: bool = False


UNKNOWN = ModelFacts(
    family="undefined",
    compute_capability=None,
    memory_mib=None,
    nvlinks=0,
    nvlink_gbytes_per_s=12.0,
    nccl_nvlink_gbytes_per_s=12.0,
    sharp_share=0.0,
    pcie_gbytes_per_s=12.0,
    inter_socket_gbytes_per_s=6.0,
)
"""The slowest of each kind, so that no unknown model wins over a known one."""

Models = tuple[tuple[re.Pattern[str], ModelFacts], ...]


def patterns(models: Sequence[tuple[str, ModelFacts]]) -> Models:
    """Compile the patterns. Spaces may have become dashes, as in a label of GFD."""
    return tuple(
        (re.compile(pattern.replace(" ", "[ -]"), re.IGNORECASE), facts)
        for pattern, facts in models
    )


@dataclass(frozen=True, slots=True)
class Vendor:
    """What is one vendor's own.

    - `name` is `Machine.vendor`.
    - `link` is the word for its links between GPUs, which are `LinkClass.NVLINK` whatever the
      vendor, and `links` for several; `link_prefix` is written before their number.
    - `labels` are those below `label_prefix`, which is the domain of its resources too. Its own
      program for labels writes the model as `product_label`, with `label_blank` for a space.
    - `not_whole` says why the devices that a node offers are no whole GPUs, by its labels and their
      number; empty if the labels say nothing of the kind.
    - `models`: the first pattern that matches counts. Models that match `no_peer_to_peer` reach
      each other only through the host's memory, if nothing else is known.
    - With `routed`, GPUs that its links hold together, if over others, reach each other by them.
    - `part` matches what follows the domain in the name of a resource of parts of GPUs. With
      `parts_linked`, such parts reach each other within their GPU.
    - `pci_vendor` is its number as `lspci -d` takes it.
    - `dra_driver` is the name of its DRA driver, and of the DeviceClass that comes with it. Of a
      GPU, that publishes the id that the topology annotation has as the attribute `dra_id`.
    - `plugin_words` are in the names of the pods or images of its device plugin, which is asked for
      a preference among `most_asked` GPUs at most; None: among any number.
    """

    name: str
    link: str
    links: str
    link_prefix: str
    label_prefix: str
    labels: Callable[[Machine], Mapping[str, str]]
    product_label: str
    label_blank: str
    not_whole: Callable[[Mapping[str, str], int], str]
    models: Models
    no_peer_to_peer: re.Pattern[str] | None
    routed: bool
    part: re.Pattern[str]
    parts_linked: bool
    pci_vendor: str
    dra_driver: str
    dra_id: str
    plugin_words: tuple[str, ...]
    most_asked: int | None

    def facts_of(self, model: str) -> ModelFacts:
        """`UNKNOWN` if no pattern matches the name."""
        found = (facts for pattern, facts in self.models if pattern.search(model))
        return next(found, UNKNOWN)

    def labelled_model(self, labels: Mapping[str, str]) -> str:
        """The model that the node's *labels* name; empty if they name none."""
        return labels.get(self.product_label, "").replace(self.label_blank, " ")

    def word_of(self, link: LinkClass) -> str:
        """The class as people read it."""
        return self.link.upper() if link is LinkClass.NVLINK else link.name

    def own_words(self, text: str) -> str:
        """*text* with the vendor's words for its links, which it names as NVIDIA does: NVLinks,
        NVLINK, nvlink."""
        for word, own in (
            ("NVLinks", self.links),
            ("NVLINK", self.link.upper()),
            ("nvlink", self.link.lower()),
        ):
            text = text.replace(word, own)
        return text
