"""Lets a core read all that its pods depend on, as the extender's loop does."""

from collections.abc import Callable

from linkwise.extender.core import Core
from linkwise.extender.state.membership.owner_cache import FetchOwner, Found


def read_owners(core: Core, read: Callable[[FetchOwner], Found | None], now: float) -> None:
    while reads := core.owners_to_read(now):
        for each in reads:
            core.owner_read(each, read(each), now)
        while core.rejudge(now):
            pass
