"""The page's HTML: whole without a script, safe for any name, and readable in light and dark."""

import math
import re
from collections.abc import Callable, Iterator

import pytest

from linkwise.drawing.times import PodTimes
from linkwise.extender.next.core_settings import Moves
from linkwise.extender.run.page.render import HEADERS, Renderer
from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.show.page.elements import HIDDEN, Slots, changes
from linkwise.extender.show.page.explained import (
    ExplainedPage,
    gang_page,
    pod_page,
)
from linkwise.extender.show.page.group_page import group_page
from linkwise.extender.show.page.groups import Grouper
from linkwise.extender.show.page.idle_rows import IdlePage, idle_page
from linkwise.extender.show.page.moves_rows import moves_page
from linkwise.extender.show.page.overview import Overviews
from linkwise.extender.show.page.search import search
from linkwise.extender.state.views import (
    KeptWaitingView,
    MovePlanView,
    MoveState,
    MovesView,
    MoveView,
)
from linkwise.topology import names
from tests.extender.cluster import START, Cluster
from tests.extender.next.moves.movers import HOUR, MOVABLE, run, scattered, waits
from tests.extender.next.moves.movers import cluster as mover_cluster
from tests.extender.show.page.example_cluster import HOSTILE, empty, example, hostile, one_node
from tests.parsed_page import ParsedPage

RENDERER = Renderer()
CSS = RENDERER.files["page.css"].decode()
TIMES = {f"uid-{number}": PodTimes(START, START + 5, START + 9) for number in (1, 2)}
SCRIPT = RENDERER.files["page.js"].decode()


def overview(cluster: Cluster) -> tuple[ParsedPage, Slots]:
    snapshot = cluster.core.snapshot(cluster.now)
    page = Overviews().of(snapshot, Grouper().groups(snapshot))
    html = RENDERER.page(page, at=snapshot.at, stream="events?since=v")
    return ParsedPage(html.decode()), page.slots


def group(cluster: Cluster, number: int = 0) -> tuple[ParsedPage, Slots]:
    snapshot = cluster.core.snapshot(cluster.now)
    page = group_page(snapshot, Grouper().groups(snapshot)[number])
    html = RENDERER.page(page, at=snapshot.at, stream="events?since=v")
    return ParsedPage(html.decode()), page.slots


def searched(cluster: Cluster, key: str) -> tuple[ParsedPage, Slots]:
    """The page of a pod, of a gang, or of all idle pods."""
    snapshot = cluster.core.snapshot(cluster.now)
    groups = Grouper().groups(snapshot)
    kind, _, name = key.partition(" ")
    page: ExplainedPage | IdlePage | None = idle_page(view_idle(snapshot))
    if kind == "pod":
        page = pod_page(snapshot, groups, "ml", name)
    elif kind == "gang":
        gang = next(each for each in snapshot.gangs if each.key.name == name and not each.alone)
        page = gang_page(snapshot, groups, gang, TIMES)
    assert page is not None
    html = RENDERER.page(page, at=snapshot.at, stream="events?since=v")
    return ParsedPage(html.decode()), page.slots


def moves(cluster: Cluster) -> ParsedPage:
    snapshot = cluster.core.snapshot(cluster.now)
    html = RENDERER.page(moves_page(view_moves(snapshot)), at=snapshot.at, stream="events?since=v")
    return ParsedPage(html.decode())


def others(cluster: Cluster, words: str) -> Iterator[ParsedPage]:
    snapshot = cluster.core.snapshot(cluster.now)
    found = search(snapshot, Grouper().groups(snapshot), words)
    yield ParsedPage(RENDERER.found(found, words, at=snapshot.at).decode())
    yield searched(cluster, "idle")[0]
    for gang in snapshot.gangs:
        if not gang.alone:
            yield searched(cluster, f"gang {gang.key.name}")[0]
    for pod in snapshot.pods:
        yield searched(cluster, f"pod {pod.ref.name}")[0]


def all_pages(cluster: Cluster, words: str) -> list[ParsedPage]:
    groups = Grouper().groups(cluster.core.snapshot(cluster.now))
    drawn = [group(cluster, number)[0] for number in range(len(groups))]
    return [overview(cluster)[0], *drawn, *others(cluster, words)]


def test_without_a_script_the_first_page_is_a_table_of_who_waits_and_of_the_nodes() -> None:
    page, _ = overview(example())
    assert "72 GPUs on 9 nodes." in page.text
    assert "gang ml/pretrain 48 GPUs for 6 pods room for 3 of 6 members" in page.text
    links = [str(link.get("href")) for link in page.named("a")]
    assert "gang?namespace=ml&name=pretrain" in links
    assert "group?key=leaf-1%2C0" in links
    svgs = [svg["aria-label"] for svg in page.named("svg")]
    assert svgs[0] == "32 GPUs: 25 in use (2 idle), 7 reserved"


def test_without_a_script_a_rack_is_its_nodes_with_all_gpus_and_who_has_them() -> None:
    page, _ = group(example())
    assert "gpu-3 8 x NVIDIA H100 80GB HBM3 8 GPUs: 6 in use (2 idle), 2 reserved" in page.text
    assert page.text.count("in use: ml/finetune") == 4
    assert next(svg["aria-label"] for svg in page.named("svg")) == "GPUs of gpu-1 and their links"


def test_an_empty_cluster_says_so_and_what_to_do() -> None:
    text = overview(empty())[0].text
    assert "No gang and no pod waits for GPUs." in text
    assert "No node offers GPUs. kubectl linkwise doctor says what is missing." in text


def test_the_page_of_moves_says_which_pods_move_for_whom() -> None:
    at = mover_cluster()
    scattered(at)
    waits(at)
    page = moves(at)
    assert "pod ml/big 8 1 0.7 8.0" in page.text
    assert "ml/web n1 n2, GPUs 4-7 0.7 left pod ml/big" in page.text
    links = [str(link.get("href")) for link in page.named("a")]
    assert "pod?namespace=ml&name=web" in links
    assert (
        "1 pod moves so that others fit or a node is empty . Planned moves" in overview(at)[0].text
    )


def test_the_page_of_moves_shows_which_node_is_emptied() -> None:
    at = mover_cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.annotate_node("n1", names.EMPTY, "true")
    at.settle()
    assert "node n1 - 1 0.7" in moves(at).text


def test_the_page_of_moves_shows_who_does_not_consent_and_kept_others_waiting() -> None:
    at = mover_cluster()
    for node in ("n1", "n2"):
        run(at, f"web-{node}", 4, node, server=True)
    at.pass_time(5 * HOUR)
    waits(at)
    at.pass_time(5 * HOUR)
    page = moves(at)
    assert "Nothing to move" in page.text
    assert "ml/owner-of-web-n1 ReplicaSet 4 n1 pod ml/big 8 48 yes" in page.text
    assert "pod?namespace=ml&name=big" in [str(link.get("href")) for link in page.named("a")]


def test_names_in_moves_make_no_tags() -> None:
    move = MoveView(HOSTILE, HOSTILE, HOSTILE, (0,), 1.0, MoveState.ADVISED, None)
    plan = MovePlanView(f"pod {HOSTILE}", 1, 1.0, 1.0, (move,))
    kept = KeptWaitingView(
        HOSTILE, HOSTILE, HOSTILE, 1, (HOSTILE,), f"pod {HOSTILE}", 8, 1.0, now=True
    )
    view = MovesView(0.0, "advise", (plan,), (kept,))
    text = ParsedPage(
        RENDERER.page(moves_page(view), at=0.0, stream="events?since=v").decode()
    ).text
    assert text.count(HOSTILE) == 10


def test_advice_is_no_move() -> None:
    at = mover_cluster(Moves.ADVISE)
    scattered(at)
    waits(at)
    assert "ml/web n1 n2, GPUs 4-7 0.7 advised pod ml/big" in moves(at).text
    assert "1 pod would move with --moves=consent so that" in overview(at)[0].text


def test_without_moves_the_page_says_why() -> None:
    assert "Moves are off: the extender runs with --moves=never." in moves(example()).text
    assert "Nothing to move" in moves(mover_cluster()).text
    assert overview(mover_cluster())[1]["m-some"]["hidden"] == HIDDEN


CHANGES: list[Callable[[Cluster], object]] = [
    lambda cluster: cluster.set_health("gpu-2", 5),
    lambda cluster: cluster.set_ready("gpu-7", ready=True),
    lambda cluster: cluster.delete("huge"),
    lambda cluster: cluster.delete("eval"),
    lambda cluster: cluster.stop("eval", "gpu-3"),
    lambda cluster: cluster.annotate_node("gpu-3", names.ACTIVITY, None),
    lambda cluster: cluster.delete("pretrain-0"),
    lambda cluster: cluster.delete("pretrain-1"),
    lambda cluster: cluster.settle(),
    lambda cluster: cluster.add_gang("other", 2, 8),
    lambda cluster: cluster.pass_time(7200),
]


@pytest.mark.parametrize("shown", [overview, group])
def test_an_open_page_that_sets_the_changes_shows_what_a_new_one_shows(
    shown: Callable[[Cluster], tuple[ParsedPage, Slots]],
) -> None:
    cluster = example()
    page, before = shown(cluster)
    opened = page.slots(before)
    for change in CHANGES:
        change(cluster)
        page, after = shown(cluster)
        changed = changes(before, after)
        for name, values in changed.items():
            opened[name].update(values)
        assert opened == page.slots(after) == after
        before = after
    assert page.elements


@pytest.mark.parametrize("key", ["gang train", "gang next", "pod eval", "pod huge", "idle"])
def test_an_open_page_of_a_gang_a_pod_or_idle_pods_shows_what_a_new_one_shows(key: str) -> None:
    cluster = example()
    page, before = searched(cluster, key)
    opened = page.slots(before)
    for seconds in (1, 600):
        cluster.now += seconds  # nothing is decided, so the page keeps its shape
        page, after = searched(cluster, key)
        assert after["at"] != before["at"]
        for name, values in changes(before, after).items():
            opened[name].update(values)
        assert opened == page.slots(after) == after
        before = after


def test_without_a_script_the_members_of_a_gang_have_their_times_as_texts() -> None:
    page, _ = searched(example(), "gang train")
    assert "train-0 runs 5s 9s 1970-01-12 13:46:40" in page.text
    assert "2 of 2 members run" in page.text
    assert "time not known" not in page.text


def test_whatever_things_are_called_no_tag_comes_of_it() -> None:
    pages = all_pages(hostile(), HOSTILE)
    assert len(pages) >= 4
    for page in pages:
        assert not page.named("img")
        assert all(script == {"src": "page.js", "defer": None} for script in page.named("script"))
        assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
        for _, attrs in page.tags:
            assert not str(attrs.get("href", "")).lower().startswith("javascript:")
    assert sum(HOSTILE in page.text for page in pages) == len(pages)


def test_nothing_is_loaded_but_its_own_files_and_nothing_stands_inline() -> None:
    """What the Content-Security-Policy would block must not be there."""
    for page in all_pages(example(), "ml"):
        assert not page.named("style")
        assert not [tag for tag, attrs in page.tags if "style" in attrs]
        loaded = {str(tag.get("href")) for tag in page.named("link")}
        assert loaded == {"data:,", "page.css"}
        assert not {"iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert "url(" not in CSS
    assert "@import" not in CSS
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_script_makes_no_markup() -> None:
    for sink in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "DOMParser", "eval"):
        assert sink not in SCRIPT
    assert "new Function" not in SCRIPT


def test_all_links_are_relative_so_any_proxy_may_be_in_front() -> None:
    for page in all_pages(example(), "ml"):
        for tag, attrs in page.tags:
            for key in ("href", "src", "action", "data-events"):
                value = str(attrs.get(key) or "")
                assert not re.match(r"/|[a-z]+://", value), (tag, key, value)


def test_every_control_and_table_has_a_name() -> None:
    for page in all_pages(example(), "ml"):
        assert page.named("html") == [{"lang": "en"}]
        assert page.named("label") == [{"for": "q"}]
        # The bars of a gang's members are hidden: all that they say stands beside them.
        drawn = [svg for svg in page.named("svg") if svg.get("aria-hidden") != "true"]
        assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in drawn)
        assert all(head.get("scope") in ("col", "row") for head in page.named("th"))
        ids = set(page.elements)
        labels = [str(a["aria-labelledby"]) for _, a in page.tags if "aria-labelledby" in a]
        assert set(labels) <= ids
        assert len(page.named("h1")) == 1


def test_one_node_is_one_row() -> None:
    page, _ = overview(one_node())
    assert "8 GPUs on 1 node." in page.text
    assert len(page.named("svg")) == 1


def test_a_narrow_screen_shows_which_rack_has_a_broken_gpu_or_a_closed_node() -> None:
    narrow = CSS.partition("@media (max-width: 720px)")[2]
    (hidden,) = re.findall(r"\.groups \.number:is\(([^)]*)\) \{ display: none; \}", narrow)
    columns = {column.strip() for column in hidden.split(",")}
    assert columns == {".held", ".divided", ".reserved", ".idle"}
    assert not re.search(r"\.(?:unhealthy|closed)\b[^{]*\{[^}]*display: none", CSS)


def test_the_key_shows_the_shapes_by_which_the_states_differ() -> None:
    shown = dict(
        re.findall(r"^\.k-(\w+) \{ background: (linear-gradient[^}]*) \}", CSS, re.M | re.S)
    )
    assert shown.keys() == {"held", "reserved", "unhealthy", "divided"}
    assert len({re.sub(r"--\w+", "", each) for each in shown.values()}) == len(shown)


# Colours


def colours(*, dark: bool) -> dict[str, str]:
    """The custom properties that hold in one of the two schemes."""
    of_dark = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n.*?\n\}\n", re.DOTALL)
    text = of_dark.sub("", CSS) + "".join(of_dark.findall(CSS) if dark else ())
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", text))


def linear(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return _linear(red), _linear(green), _linear(blue)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """By WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_a_contrast_of_four_and_a_half(*, dark: bool) -> None:
    now = colours(dark=dark)
    for ink in ("ink", "soft", "anchor", "bad"):
        for ground in ("ground", "card"):
            assert contrast(now[ink], now[ground]) >= 4.5, (ink, ground)
    assert contrast(now["soft"], now["numa"]) >= 4.5
    assert contrast(now["soft"], now["switch"]) >= 4.0  # bold, and repeated in words
    for number in range(8):
        assert contrast("#ffffff", now[f"c{number}"]) >= 4.5


def test_no_colour_of_a_pod_is_like_that_of_a_state() -> None:
    """Blue is the colour of what is in use, and pods that have a colour are."""
    now = colours(dark=False)
    for state in ("held", "reserved", "unhealthy", "divided"):
        for number in range(8):
            assert difference(now[state], now[f"c{number}"]) > 0.075, (state, number)


def difference(one: str, other: str) -> float:
    """The distance in Oklab (https://bottosson.github.io/posts/oklab/); one that is just seen is
    some 0.02."""
    return math.dist(oklab(one), oklab(other))


def oklab(colour: str) -> tuple[float, float, float]:
    red, green, blue = linear(colour)
    cones = (
        0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue,
        0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue,
        0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue,
    )
    long, middle, short = (cone ** (1 / 3) for cone in cones)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize("dark", [False, True])
def test_shapes_have_a_contrast_of_three(*, dark: bool) -> None:
    now = colours(dark=dark)
    for shape in ("used", "held", "reserved", "unhealthy", "divided", "edge", "anchor"):
        assert contrast(now[shape], now["card"]) >= 3, shape
    for number in range(8):
        assert contrast(now[f"c{number}"], now["card"]) >= 3
        assert contrast(now[f"c{number}"], now["numa"]) >= 2.9
