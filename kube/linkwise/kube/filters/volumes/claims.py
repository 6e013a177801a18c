"""What a pod's claims are before any node is looked at, and what refuses the pod on every node."""

from dataclasses import dataclass

from linkwise.kube.filters.pod_facts import ClaimUse, PodFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.volumes.storage import DELAYED, Storage, claim_class, is_bound, size
from linkwise.kube.objects import PersistentVolume, PersistentVolumeClaim, StorageClass

_RESTRICTIONS, _BINDING, _ZONE = "VolumeRestrictions", "VolumeBinding", "VolumeZone"
ONE_POD_ONLY = "ReadWriteOncePod"
IN_USE = Rejection(
    _RESTRICTIONS,
    (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
        "already in-use by another pod",
    ),
    resolvable=True,
)


@dataclass(frozen=True, slots=True)
class Delayed:
    """A claim that is bound once its pod has a node: to one of *candidates*, the smallest first,
    or to a volume that *provisioner* makes."""

    claim: PersistentVolumeClaim
    candidates: tuple[PersistentVolume, ...]
    provisioner: StorageClass


@dataclass(frozen=True, slots=True)
class Claims:
    """A pod's claims, all of which exist."""

    bound: tuple[PersistentVolume | None, ...] = ()  # None: the volume is gone
    delayed: tuple[Delayed, ...] = ()
    zoned: tuple[PersistentVolume, ...] = ()  # the bound ones whose zone labels count

    def __bool__(self) -> bool:
        return bool(self.bound or self.delayed)


def one_pod_only(pod: PodFacts, storage: Storage) -> frozenset[str]:
    """The names of the claims that no other pod may use at the same time."""
    named = (use.name for use in pod.claims if use.owner is None)
    found = ((name, storage.claim(pod.namespace, name)) for name in named)
    return frozenset(
        name for name, claim in found if claim and ONE_POD_ONLY in claim.spec.access_modes
    )


def claims_of(pod: PodFacts, storage: Storage) -> Claims | Rejection:
    """Return the claims, or why no node fits."""
    if rejection := _missing(pod, storage) or _broken(pod, storage):
        return rejection
    bound, delayed, zoned = [], [], []
    for use in pod.claims:
        claim = _found(use, pod, storage)
        if not is_bound(claim):
            known = _delaying(claim, storage)
            if known is None:
                return _never(_BINDING, "pod has unbound immediate PersistentVolumeClaims")
            delayed.append(Delayed(claim, storage.candidates(claim), known))
            continue
        bound.append(volume := storage.volume(claim.spec.volume_name))
        if use.owner is None:  # VolumeZone does not look at ephemeral volumes
            zoned.append((claim.spec.volume_name, volume))
    for name, volume in zoned:
        if volume is None:
            return _never(_ZONE, f'persistentvolume "{name}" not found')
    there = (volume for _, volume in zoned if volume is not None)
    ordered = sorted(delayed, key=lambda each: size(each.claim))
    return Claims(tuple(bound), tuple(ordered), tuple(there))


def _missing(pod: PodFacts, storage: Storage) -> Rejection | None:
    for use in pod.claims:
        if use.owner is None and storage.claim(pod.namespace, use.name) is None:
            return _never(_RESTRICTIONS, f'persistentvolumeclaim "{use.name}" not found')
    return None


def _broken(pod: PodFacts, storage: Storage) -> Rejection | None:
    for use in pod.claims:
        claim = storage.claim(pod.namespace, use.name)
        if claim is None:
            return _never(
                _BINDING,
                "waiting for ephemeral volume controller to create the persistentvolumeclaim "
                f'"{use.name}"',
            )
        if claim.status.phase == "Lost":
            lost = claim.spec.volume_name
            why = f'persistentvolumeclaim "{use.name}" bound to non-existent persistentvolume'
            return _never(_BINDING, f'{why} "{lost}"')
        if claim.metadata.deletion_timestamp is not None:
            return _never(_BINDING, f'persistentvolumeclaim "{use.name}" is being deleted')
        if use.owner is not None and not _is_owned(claim, use.owner):
            where = f"{pod.namespace}/{use.name}"
            return _never(_BINDING, f"PVC {where} was not created for the pod")
    return None


def _found(use: ClaimUse, pod: PodFacts, storage: Storage) -> PersistentVolumeClaim:
    claim = storage.claim(pod.namespace, use.name)
    assert claim is not None, "a missing claim is refused before"
    return claim


def _is_owned(claim: PersistentVolumeClaim, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in claim.metadata.owner_references)


def _delaying(claim: PersistentVolumeClaim, storage: Storage) -> StorageClass | None:
    """Return the claim's class if it waits for the pod's node; else the volume controller binds
    the claim."""
    if claim.spec.volume_name:
        return None
    known = storage.storage_class(claim_class(claim))
    return known if known is not None and known.volume_binding_mode == DELAYED else None


def _never(plugin: str, reason: str) -> Rejection:
    return Rejection(plugin, (reason,), resolvable=False)
