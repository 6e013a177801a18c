"""In front of a vendor's device plugin, which registers with Linkwise; Linkwise registers with the
kubelet.

registry   the socket at which vendors' plugins register, as they would with the kubelet
vendor     one vendor's plugin for one resource: connection, options, list, calls
resource   PURE: joins what the vendor lists with what Linkwise knows about the GPUs
sharing    PURE: which GPUs vendors' plugins offer in parts
offer      what one resource offers now, and whether its vendor's plugin is well
server     the DevicePlugin that the kubelet calls in the vendor's place
front      connects the parts: which resources exist, and for how long
"""
