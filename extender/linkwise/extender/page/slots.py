"""The changing parts of a page: elements by id, each with the attributes that change.

The template writes the values down, and `changes` finds what an open page has to set. The name
`text` stands for an element's text; `hidden` is empty for an element that is shown.
"""

from collections.abc import Mapping

Slots = Mapping[str, Mapping[str, str]]
HIDDEN, SHOWN = "hidden", ""


def changes(before: Slots, after: Slots) -> dict[str, dict[str, str]]:
    """What to set in a page that shows *before*, so that it shows *after*. Both have the same ids
    and attributes."""
    found = {}
    for name, values in after.items():
        old = before[name]
        if old is not values:
            different = {key: value for key, value in values.items() if old[key] != value}
            if different:
                found[name] = different
    return found
