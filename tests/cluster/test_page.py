"""The live page in a real Chromium: with and without a script, in light and dark, on a phone, by
keyboard, for a screen reader, and with hostile names."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from linkwise.drawing.times import PodTimes
from linkwise.extender.run.page.viewers import Viewers
from linkwise.topology import names
from tests.extender.cluster import START, Cluster
from tests.extender.show.page.example_cluster import (
    HOSTILE,
    empty,
    example,
    hostile,
    large,
    one_node,
)
from tests.extender.show.page.served_page import ServedPage, served

RACK = "group?key=leaf-1%2C0"
GANG = "gang?namespace=ml&name=pretrain"
RUNS = "gang?namespace=ml&name=train"
PATHS = ("", RACK, GANG, RUNS, "search?q=train", "pod?namespace=ml&name=huge", "idle")
_SECONDS = 60.0


class Browser:
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def emulate(self, *, dark: bool = False, width: int = 1280, script: bool = True) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        for command, values in (
            ("Emulation.setEmulatedMedia", {"features": [scheme]}),
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setScriptExecutionDisabled", {"value": not script}),
        ):
            self.driver.execute_cdp_cmd(command, values)

    def open(self, page: ServedPage, path: str = "") -> None:
        self.driver.get(f"{page.url}{path}")

    def text(self, selector: str = "main") -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def wait(self, condition: Callable[[], bool]) -> None:
        """The page may load itself again between the search for an element and its reading."""
        late = WebDriverWait(self.driver, _SECONDS, 0.5, (StaleElementReferenceException,))
        late.until(lambda _: condition())

    def wait_text(self, selector: str, text: str) -> None:
        self.wait(lambda: self.text(selector) == text)

    def wait_live(self) -> None:
        self.wait_text("#live", "live")

    def run(self, script: str) -> object:
        return self.driver.execute_script(f"return {script}")

    def complaints(self) -> list[str]:
        """What the console has: a blocked script or style is there, and so is any error."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in entries]

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of each node that a screen reader meets."""
        self.driver.execute_cdp_cmd("Accessibility.enable", {})
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: Chrome) -> Iterator[Browser]:
    found = Browser(driver)
    found.emulate()
    found.complaints()
    yield found
    driver.get("about:blank")  # closes its stream


@contextmanager
def opened(browser: Browser, cluster: Cluster, path: str = "") -> Iterator[ServedPage]:
    with served(cluster) as page:
        browser.open(page, path)
        yield page
        browser.driver.get("about:blank")


def test_one_nodes_change_appears_in_the_open_page_without_a_reload(browser: Browser) -> None:
    with opened(browser, example()) as page:
        browser.wait_live()
        browser.run("window.mark = 1")
        browser.wait_text("#all-unhealthy", "1")
        with page.lock:
            page.cluster.set_health("gpu-6", 0, 1)
        browser.wait_text("#all-unhealthy", "3")
        drawn = "document.querySelector('#g1-unhealthy').getAttribute('d')"
        assert str(browser.run(drawn)).count("M") == 2
        assert browser.run("window.mark") == 1
        assert browser.complaints() == []


def test_the_queue_follows_gangs_that_come_and_go(browser: Browser) -> None:
    with opened(browser, one_node()) as page:
        browser.wait_live()
        assert "No gang and no pod waits" in browser.text()
        with page.lock:
            page.cluster.add_gang("late", 3, 8)
            page.cluster.settle()
        browser.wait_text("#q0-who", "gang ml/late")
        link = browser.driver.find_element(By.ID, "q0-who")
        assert str(link.get_attribute("href")).endswith("/ui/gang?namespace=ml&name=late")
        assert "No gang and no pod waits" not in browser.text()
        with page.lock:
            for rank in range(3):
                page.cluster.delete(f"late-{rank}")
            page.cluster.settle()
        browser.wait_text("#q-waiting", "0")
        assert "No gang and no pod waits" in browser.text()


def test_an_open_rack_follows_who_has_its_gpus(browser: Browser) -> None:
    with opened(browser, one_node(), "group?key=0") as page:
        browser.wait_live()
        taken = "document.querySelectorAll('#n0 svg .taken').length"
        assert browser.run(taken) == 2
        with page.lock:
            page.cluster.add_pod("second", 3)
            page.cluster.settle()
            assert page.cluster.schedule("second")
            page.cluster.start("second")
        browser.wait_text("#n0-sum", "8 GPUs: 5 in use, 3 free")
        assert "ml/second" in browser.text("#n0 table")
        assert browser.run(taken) == 5


def test_an_open_gang_and_an_open_pod_follow_the_cluster(browser: Browser) -> None:
    with opened(browser, example(), GANG) as page:
        browser.wait_live()
        browser.run("window.mark = 1")
        with page.lock:
            page.cluster.now += 3600
        browser.wait(lambda: "has waited 1h" in browser.text("pre"))
        assert browser.run("window.mark") == 1
        browser.open(page, "pod?namespace=ml&name=huge")
        browser.wait_live()
        with page.lock:
            page.cluster.delete("huge")
        browser.wait_text("#live", "not live: what this page shows is gone")
        assert "pod ml/huge" in browser.text("h1")


def test_a_pod_that_becomes_idle_is_marked_in_the_open_pages(browser: Browser) -> None:
    with opened(browser, example()) as page:
        browser.wait_live()
        assert browser.text("#i-pods") == "2"
        assert browser.run("document.querySelector('#g0-idle').getAttribute('d')")
        with page.lock:
            page.cluster.annotate_node("gpu-3", names.ACTIVITY, None)
        browser.wait_text("#i-pods", "1")
        assert not browser.run("document.querySelector('#g0-idle').getAttribute('d')")
        browser.open(page, "idle")
        assert "ml/notebook-ada" in browser.text("table.idle")


def test_the_bars_of_a_gangs_members_are_drawn_with_their_times_beside(browser: Browser) -> None:
    with served(example()) as page:
        page.times = {
            "train-0": PodTimes(START, START + 10, START + 20),
            "train-1": PodTimes(START, START + 10, START + 40),
        }
        browser.open(page, RUNS)
        widths = browser.run(
            "[...document.querySelectorAll('.times .runs')].map(each => each.getBBox().width)"
        )
        assert isinstance(widths, list)
        assert len(widths) == 2
        assert widths[0] > widths[1] > 0
        row = browser.text(".members tbody tr:last-child")
        assert row == "train-1\nruns 10s 40s 1970-01-12 13:46:40"
        browser.driver.get("about:blank")


def test_the_page_is_loaded_again_when_a_node_comes(browser: Browser) -> None:
    with opened(browser, one_node()) as page:
        browser.wait_live()
        with page.lock:
            page.cluster.add_node("gpu-2")
        browser.wait(lambda: "16 GPUs on 2 nodes." in browser.text())


def test_after_a_break_the_page_becomes_live_again(browser: Browser) -> None:
    with opened(browser, one_node()) as page:
        browser.wait_live()
        page.live.viewers.close()
        with page.lock:
            page.cluster.set_health("gpu-1", 7)
        browser.wait_text("#all-unhealthy", "1")
        browser.wait_live()


def test_while_the_leader_changes_the_page_stays_and_comes_back_by_itself(
    browser: Browser,
) -> None:
    with opened(browser, one_node()) as page:
        browser.wait_live()
        with page.lock:
            page.leads = False
        browser.wait(lambda: browser.text("#live") != "live")
        assert "8 GPUs on 1 node." in browser.text()
        with page.lock:
            page.leads = True
            page.cluster.add_node("gpu-2")
        browser.wait(lambda: "16 GPUs on 2 nodes." in browser.text())
        browser.wait_live()


def test_without_a_place_the_page_says_that_it_is_not_live(browser: Browser) -> None:
    with served(one_node(), viewers=Viewers(0)) as page:
        browser.open(page)
        browser.wait_text(
            "#live", "not live: the extender accepts no more viewers now, or is not ready"
        )
        assert "8 GPUs on 1 node." in browser.text()


@pytest.mark.parametrize("path", PATHS)
def test_without_javascript_everything_is_there(path: str, browser: Browser) -> None:
    browser.emulate(script=False)
    with opened(browser, example(), path):
        assert len(browser.text()) > 100
        assert browser.text("#live").startswith("as of ")


def test_without_javascript_links_lead_from_the_cluster_to_a_gang(browser: Browser) -> None:
    browser.emulate(script=False)
    with opened(browser, example()):
        browser.driver.find_element(By.LINK_TEXT, "gang ml/pretrain").click()
        assert browser.text("h1") == "gang ml/pretrain"
        assert "GPUs planned for 0 of 6 members it waits for this" in browser.text(".steps")
        assert "waits for 4 GPUs: ml/next-0" in browser.text("pre")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_wider_than_the_window_and_nothing_is_blocked(
    path: str, width: int, browser: Browser, *, dark: bool
) -> None:
    browser.emulate(dark=dark, width=width)
    with opened(browser, example(), path):
        root = "document.documentElement"
        assert browser.run(f"{root}.scrollWidth <= {root}.clientWidth")
        assert width - 20 <= int(str(browser.run(f"{root}.clientWidth"))) <= width
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(18, 22, 29)" if dark else "rgb(247, 248, 250)")
        assert browser.complaints() == []


def test_a_narrow_screen_shows_broken_gpus_and_closed_nodes_without_scrolling(
    browser: Browser,
) -> None:
    browser.emulate(dark=False, width=400)
    with opened(browser, example()):
        card = "document.querySelector('.groups').parentElement"
        assert browser.run(f"{card}.scrollWidth <= {card}.clientWidth")
        for state in ("unhealthy", "closed"):
            shown = f"getComputedStyle(document.querySelector('.groups td.{state}')).display"
            assert browser.run(shown) == "table-cell"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser: Browser) -> None:
    with opened(browser, example()):
        browser.wait_live()
        reached = []
        for _ in range(14):
            browser.driver.switch_to.active_element.send_keys(Keys.TAB)
            focused = browser.driver.switch_to.active_element
            reached.append(focused.text or focused.get_attribute("id") or focused.tag_name)
            width = browser.run("getComputedStyle(document.activeElement).outlineWidth")
            assert width == "3px"
        wanted = ["Skip to the content", "Linkwise", "q", "Search", "pod ml/broken", "ml/eval"]
        assert [each for each in reached if each in wanted] == wanted
        assert "leaf leaf-1" in reached
        browser.driver.find_element(By.LINK_TEXT, "leaf leaf-1").send_keys(Keys.ENTER)
        browser.wait(lambda: browser.text("h1") == "leaf leaf-1")


def test_enter_in_the_search_field_finds_a_node(browser: Browser) -> None:
    with opened(browser, example()):
        browser.driver.find_element(By.ID, "q").send_keys("gpu-7", Keys.ENTER)
        browser.wait(lambda: browser.text("h1") == "Search")
        browser.driver.find_element(By.LINK_TEXT, "gpu-7").click()
        target = browser.run("document.querySelector(':target h2').textContent")
        assert target == "gpu-7"
        assert "takes no pods now: node is not ready" in browser.text(":target")


def test_a_screen_reader_has_a_name_for_everything(browser: Browser) -> None:
    with opened(browser, example()):
        browser.wait_live()
        met = browser.accessible()
        for role in ("link", "button", "searchbox", "image", "heading", "columnheader"):
            named = [name for each, name in met if each == role]
            assert named, role
            assert all(named), role
        assert ("searchbox", "Pod, gang, node or namespace") in met
        assert ("image", "32 GPUs: 25 in use (2 idle), 7 reserved") in met
        assert ("search", "") in met or ("search", "search") in met
    with opened(browser, example(), RACK):
        assert ("image", "GPUs of gpu-1 and their links") in browser.accessible()


@pytest.mark.parametrize("script", [True, False])
def test_hostile_names_are_shown_and_nothing_of_them_runs(
    browser: Browser, *, script: bool
) -> None:
    browser.emulate(script=script)
    cluster = hostile()
    with opened(browser, cluster) as page:
        if script:
            browser.wait_live()
            with page.lock:
                cluster.add_gang(f"z{HOSTILE}", 9, 8)
                cluster.settle()
            browser.wait_text("#q-waiting", "3")
        shown = browser.text()
        assert f"gang ml/g{HOSTILE}" in shown
        assert HOSTILE in browser.text(".groups")
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0
        for link in ("gang?namespace=ml", "group?key", "pod?namespace=ml"):
            selector = f"main a[href*='{link}']"
            browser.driver.find_elements(By.CSS_SELECTOR, selector)[0].click()
            assert HOSTILE in browser.text("h1")
            assert browser.run("document.querySelectorAll('main img, main script').length") == 0
            browser.driver.back()
        assert browser.complaints() == []


def test_a_message_can_set_no_markup_no_handler_and_no_foreign_address(browser: Browser) -> None:
    with opened(browser, example()) as page:
        browser.wait_live()
        evil = {
            "q0-who": {"href": "javascript:alert(1)", "onclick": "alert(1)", "text": HOSTILE},
            "nothing": {"text": "x"},
        }
        event = f"event: change\ndata: {json.dumps(evil)}\n\n"
        page.live.viewers.push("", event.encode())
        browser.wait_text("#q0-who", HOSTILE)
        link = browser.driver.find_element(By.ID, "q0-who")
        assert link.get_attribute("onclick") is None
        assert "javascript:" not in str(link.get_attribute("href"))


def test_an_empty_cluster_and_a_large_one_are_shown(browser: Browser) -> None:
    with opened(browser, empty()):
        assert "No node offers GPUs." in browser.text()
    with opened(browser, large(1000)):
        browser.wait_live()
        assert "8,000 GPUs on 1,000 nodes." in browser.text()
        assert browser.run("document.querySelectorAll('.groups tbody tr').length") == 32
        assert browser.complaints() == []
