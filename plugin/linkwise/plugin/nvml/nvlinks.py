"""One GPU's NVLinks: which are up, where they end, and which have been up and are not."""

from collections.abc import Mapping
from dataclasses import dataclass

import pynvml

from linkwise.plugin.nvml.library import Handle, Nvml, not_supported, sysfs_bus_id
from linkwise.plugin.nvml.nvlink_topology import ActiveLink, End
from linkwise.plugin.nvml.questions import Questions

_ENDS = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: End.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: End.SWITCH,
}
_KNOWN, NO_NVLINKS = "NVLinks", "no NVLinks"  # the names of the stored answers


@dataclass(frozen=True, slots=True)
class NvLinks:
    """`down` are links that were up, and of which the driver now says that they are not."""

    up: tuple[ActiveLink, ...] = ()
    down: tuple[ActiveLink, ...] = ()


def read_nvlinks(nvml: Nvml, questions: Questions, handle: Handle) -> NvLinks:
    """Read all links. If the driver fails to answer about a link, that link stays as it was. So do
    the links after it, without a call for each: a dying GPU would fail 36 of them."""
    if questions.known(NO_NVLINKS):  # a card gets none while it is in use
        questions.keep(NO_NVLINKS, True)
        return NvLinks()
    known: Mapping[int, ActiveLink] = questions.known(_KNOWN) or {}
    up: dict[int, ActiveLink] = {}
    down: dict[int, ActiveLink] = {}
    unwired = 0
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, number)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                unwired += 1  # a later one may be wired
                down |= {number: known[number]} if number in known else {}
                continue
            if not_supported(error) or (
                error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT
                and number > max(known, default=-1)
            ):
                break  # this driver, or this chip, has no more links
            questions.failed("nvmlDeviceGetNvLinkState", error)
            up |= {later: link for later, link in known.items() if later >= number}
            break
        if state == pynvml.NVML_FEATURE_ENABLED:
            try:
                up[number] = _read_link(nvml, handle, number)
            except pynvml.NVMLError as error:
                questions.failed("nvmlDeviceGetNvLinkRemotePciInfo", error)
                up[number] = known.get(number, ActiveLink(number, End.OTHER))
        elif number in known:
            down[number] = known[number]
    questions.keep(_KNOWN, {**down, **up})
    questions.keep(NO_NVLINKS, unwired == pynvml.NVML_NVLINK_MAX_LINKS and not known)
    return NvLinks(tuple(up.values()), tuple(down.values()))


def _read_link(nvml: Nvml, handle: Handle, number: int) -> ActiveLink:
    """Raises NVMLError, but not if the driver is too old to know the answer."""
    end = End.UNTOLD
    try:
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
        end = _ENDS.get(kind, End.OTHER)
    except pynvml.NVMLError as error:
        if not not_supported(error):
            raise
    if end is End.SWITCH:
        return ActiveLink(number, end)
    try:
        told = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId
    except pynvml.NVMLError as error:
        if not not_supported(error):
            raise
        return ActiveLink(number, End.OTHER)
    return ActiveLink(number, end, sysfs_bus_id(told))
