"""Which vendors there are, and whose a machine or a resource is."""

from collections.abc import Sequence

from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.amd import AMD
from linkwise.topology.vendors.nvidia import NVIDIA
from linkwise.topology.vendors.vendor import Vendor

VENDORS = {vendor.name: vendor for vendor in (NVIDIA, AMD)}
RESOURCES = tuple(f"{vendor.label_prefix}gpu" for vendor in VENDORS.values())
"""Whole GPUs of each vendor, by the names that its own device plugin uses."""


def vendor_of(machine: Machine) -> Vendor:
    """A vendor that is not known, as a newer plugin may write it, counts as the first."""
    return VENDORS.get(machine.vendor, NVIDIA)


def vendor_of_resource(resource: str) -> Vendor | None:
    """Whose devices have this name; None if that is none of the vendors."""
    domain = resource.partition("/")[0]
    return next((each for each in VENDORS.values() if each.label_prefix == f"{domain}/"), None)


def device_class_of(resource: str) -> str:
    """The DeviceClass of such devices that the vendor's DRA driver comes with."""
    return (vendor_of_resource(resource) or NVIDIA).dra_driver


def id_attribute(driver: str) -> tuple[str, str]:
    """By which attribute a DRA driver publishes the id of a GPU: domain and name. One that is no
    vendor's counts as the first vendor's."""
    own = (each.dra_id for each in VENDORS.values() if each.dra_driver == driver)
    domain, _, name = next(own, NVIDIA.dra_id).rpartition("/")
    return domain or driver, name


def resource_of_machine(machine: Machine, resources: Sequence[str]) -> str:
    """The first of *resources* that has the name of the vendor's devices; else the first."""
    vendor = vendor_of(machine)
    own = (each for each in resources if vendor_of_resource(each) is vendor)
    return next(own, resources[0])
