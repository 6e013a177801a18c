"""What the registry keeps of a gang follows the gang's pods."""

from linkwise.extender.api.records import GangKey
from linkwise.extender.gangs.failed_searches import requests_of
from linkwise.extender.gangs.partial_admission import needed
from linkwise.extender.gangs.registry import Needed
from tests.extender.cluster import Cluster


def test_what_a_gang_needs_is_kept_until_its_members_change() -> None:
    at = Cluster()
    at.add_node("n0", "hgx-h100")
    at.add_gang("g", 3, 8, gang_min="2")
    at.settle()
    registry = at.core._planner.registry
    gang = registry.gangs[GangKey("ml", "g")]
    before = registry.needed_of(gang)
    assert [member.ref.name for member in before.members.open] == ["g-0", "g-1"]
    assert registry.needed_of(gang) is before
    at.delete("g-0")
    at.settle()
    after = registry.needed_of(gang)
    assert [member.ref.name for member in after.members.open] == ["g-1", "g-2"]
    of_gang = needed(registry.members_of(gang))
    assert after == Needed(of_gang, requests_of(of_gang.open))
