"""In front of a vendor's device plugin: it registers with us, we register with the kubelet.

registry   the socket at which vendors' plugins register, as they would with the kubelet
vendor     one vendor's plugin for one resource: connection, options, list, calls
resource   PURE: what the vendor lists and what we know of the GPUs, joined
offer      what one resource offers now, and whether its vendor's plugin is well
server     the DevicePlugin that the kubelet meets in the vendor's place
front      all of it together: which resources there are, since when, until when
"""
