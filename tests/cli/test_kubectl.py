"""`kubectl linkwise`, as kubectl runs it, against the extender's own routes behind a proxy."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from linkwise.cli import history_table, kubectl_tables
from linkwise.cli.kubectl import complete, main
from linkwise.drawing.tables import Column, figure
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.routes import create_app
from linkwise.extender.show.explain.texts.tables import why_no_moves
from linkwise.extender.show.explain.usage import view_use
from linkwise.extender.state.decisions import Decision, What
from linkwise.extender.state.views import (
    EmptiedNode,
    EmptyingView,
    GpuView,
    HistoryView,
    IdlePod,
    IdleView,
    KeptWaitingView,
    MovePlanView,
    MoveState,
    MovesView,
    MoveView,
    NodeView,
    StaysView,
    WouldStartView,
)
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.names import EMPTY
from tests.cli.api_proxy import Proxy, served, write_kubeconfig
from tests.divided import SHARED, all_three
from tests.extender.cluster import Cluster
from tests.extender.shares.cluster import ShareCluster
from tests.extender.world import ApiObjects, wait_for
from tests.machines import DGX_1V

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def running() -> Iterator[Proxy]:
    with ApiServer() as server:
        world, metrics = ApiObjects(server), ExtenderMetrics()
        world.add_node("n1")
        world.add_node("n2", "dgx1-v100")
        shell = Loop(Core(CoreSettings()), world.client, metrics)
        shell.start()
        wait_for(lambda: not shell.waits_for())
        world.add_gang("train", 1, 6)
        wait_for(lambda: world.is_planned("train-0"))
        world.add_gang("huge", 3)  # of the same second, so its name would come first
        world.add_pod("lonely", 8)
        app = create_app(shell, metrics)
        client = app.test_client()
        wait_for(lambda: b"room for 1 of 3" in client.get("/gangs").data)
        wait_for(lambda: client.get("/explain/ml/lonely").status_code == 200)
        with served(app) as proxy:
            yield proxy
        shell.stop()


@pytest.fixture
def proxy(running: Proxy) -> Iterator[Proxy]:
    yield running
    running.refusal = None


@pytest.fixture(autouse=True)
def _kubeconfig(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "config", proxy.url)
    monkeypatch.setenv("KUBECONFIG", str(path))
    # The kubernetes package reads the environment when it is imported.
    monkeypatch.setattr("linkwise.cli.proxied.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def lines(*arguments: str) -> list[str]:
    answer = run(*arguments)
    assert answer.exit_code == 0, answer.output
    return answer.stdout.splitlines()


def refused(*arguments: str) -> str:
    answer = run(*arguments)
    assert answer.exit_code == 1, answer.output
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    return line.removeprefix("linkwise: ")


def test_the_package_installs_it_under_the_names_that_kubectl_looks_for() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, installed in (("kubectl-linkwise", main), ("kubectl_complete-linkwise", complete)):
        module, _, function = package["scripts"][name].partition(":")
        assert getattr(import_module(module), function) is installed


def test_a_pod_is_explained_in_words() -> None:
    told = lines("explain", "lonely")
    assert told[0].startswith("ml/lonely: has waited ")
    assert told[1:] == lines("explain", "pod/lonely", "-n", "ml")[1:]  # the first has the time
    assert "  nearest   n2: " not in told


def test_a_gang_is_explained_in_words() -> None:
    told = lines("explain", "gang/huge")
    assert told[0].startswith("gang ml/huge: has waited ")
    assert told[1] == "  Gang huge: no room for the whole gang, even without other pods."


def test_a_gang_with_gpus_is_told_what_else_there_was() -> None:
    told = lines("explain", "gang/train")
    assert "  worth     450.3 GB/s estimated: ring on n1 450.3" in told
    other = told.index("  runner-up n1, GPUs 0,1,2,3,4,6: 450.3 GB/s, as the cluster is now")
    assert told[other + 1] == "            as good, except for lowest indices"
    as_json = json.loads(run("explain", "gang/train", "-o", "json").stdout)
    (train,) = (
        gang for gang in json.loads(run("gangs", "-o", "json").stdout) if gang["name"] == "train"
    )
    assert as_json["gang"]["runner_up"] == train["runner_up"]
    assert train["runner_up"]["nodes"] == ["n1"]
    assert train["runner_up"]["verdict"] == "equal"
    of_member = json.loads(run("explain", "train-0", "-o", "json").stdout)
    assert of_member["communicator"] == {"together": 450.3, "inside": 450.3}


def test_without_a_name_everything_that_waits_is_explained() -> None:
    told = lines("explain")
    assert "1 gang and 1 pod in no gang wait, the most urgent first." in told
    assert lines("explain", "-A")[1:2] == told[1:2]
    assert lines("explain", "-n", "theirs")[-1] == "Nothing waits for GPUs in namespace theirs."


def test_json_is_what_the_extender_says() -> None:
    told = json.loads(run("explain", "lonely", "-o", "json").stdout)
    assert (told["name"], told["state"]) == ("lonely", "waiting")
    told = json.loads(run("explain", "-o", "json").stdout)
    assert [gang["gang"]["name"] for gang in told["gangs"]] == ["huge"]
    told = json.loads(run("gangs", "-o", "json", "-n", "theirs").stdout)
    assert told == []
    assert [gang["name"] for gang in json.loads(run("gangs", "-A", "-o", "json").stdout)] == [
        "huge",
        "train",
    ]
    assert json.loads(run("nodes", "-o", "json").stdout)[0]["name"] == "n1"
    assert json.loads(run("top", "-o", "json").stdout)["nodes"] == 2


def test_gangs_are_a_table() -> None:
    header, *rows = lines("gangs")
    assert header.split() == [
        *("NAME", "PHASE", "BOUND", "PLANNED", "MIN", "SIZE", "GB/S", "AGE", "GIVES", "BACK"),
        *("WAITS", "FOR"),
    ]
    huge, train = (row.split(maxsplit=8) for row in rows)
    assert huge[:7] == ["huge", "forming", "0", "0", "3", "3", "-"]
    assert huge[8].startswith("-           room for 1 of 3 members; most on one node: n")
    assert train[:7] == ["train", "planned", "0", "1", "1", "1", "450"]
    assert train[8].startswith("in ")
    header, *rows = lines("gangs", "-A")
    assert header.startswith("NAMESPACE  NAME   PHASE")
    assert rows[0].split()[:3] == ["ml", "huge", "forming"]


def test_history_is_a_table_of_what_was_decided() -> None:
    since, empty, header, *rows = lines("history")
    assert re.fullmatch(
        r"This extender has led since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; "
        "what was before is in the log.",
        since,
    )
    assert empty == ""
    assert header.split("  ")[0] == "TIME (UTC)"
    assert header.split()[2:] == ["WHAT", "WHO", "GPUS", "WHERE", "WHY"]
    (row,) = (row for row in rows if "train-0" in row)
    assert row.split()[2:] == ["planned", "train-0", "6", "n1", "-"]
    assert lines("history", "train-0") == lines("history", "gang/train")
    assert lines("history", "pod/train-0")[3:] == [row]
    assert row.replace("planned", "ml         planned") in lines("history", "-A")
    assert lines("history", "node/n1")[3].split()[2:5] == ["ml", "planned", "train-0"]


def test_where_nothing_was_decided_it_says_so() -> None:
    (line,) = lines("history", "-n", "theirs")
    assert line.startswith("No decisions. This extender has led since ")
    (line,) = lines("history", "gang/huge")
    assert line.startswith("No decisions. ")
    assert json.loads(run("history", "-n", "theirs", "-o", "json").stdout)["decisions"] == []


def test_history_of_what_is_not_known_is_refused() -> None:
    assert refused("history", "nope") == "no pod ml/nope is known"
    assert refused("history", "trai") == "no pod ml/trai is known; there is gang/train, pod/train-0"
    assert refused("history", "gang/nope") == "no gang ml/nope is known"
    assert refused("history", "node/n9") == "no node n9 is known"


def decided(what: What, *pods: str, gang: str = "", at: float = 0.0, **more: Any) -> list[Decision]:
    return [Decision(at, what, f"ml/{pod}", gang, (f"n-{pod}",), **more) for pod in pods]


def test_many_members_of_a_gang_are_one_row_of_the_history() -> None:
    big = [f"w-{rank}" for rank in range(6)]
    view = HistoryView(
        at=99.0,
        began=0.0,
        dropped=12,
        decisions=(
            *decided(What.PLANNED, "old", from_annotation=True),
            *decided(What.PLANNED, *big, gang="ml/big", count=8, at=5.0),
            *decided(What.PLANNED, "few-0", "few-1", gang="ml/few", count=1, at=6.0),
            *decided(What.BOUND, *big, gang="ml/big", count=8, at=7.0),
            *decided(What.EVICTED, "few-0", gang="ml/few", at=8.0, why="for pod ml/\x1b[31mx"),
            Decision(9.0, What.RESERVED, gang="ml/a", nodes=("n1",), more_nodes=7, count=64),
        ),
    )
    head, older, empty, *table = history_table.history(view, within="ml").splitlines()
    assert head.startswith("This extender has led since 1970-01-01 00:00:00 UTC; ")
    assert (older, empty) == ("Older ones of this term are no longer kept: 12.", "")
    many = ["gang/big: 6 pods", "48", "n-w-0, n-w-1, n-w-2 and 3 more", "-"]
    earlier = "made by an earlier leader, as the pod's annotation says"
    assert [re.split(" {2,}", row.removeprefix("1970-01-01 00:00:0")) for row in table] == [
        ["TIME (UTC)", "WHAT", "WHO", "GPUS", "WHERE", "WHY"],
        ["0", "planned", "old", "-", "n-old", earlier],
        ["5", "planned", *many],
        ["6", "planned", "few-0", "1", "n-few-0", "-"],
        ["6", "planned", "few-1", "1", "n-few-1", "-"],
        ["7", "bound", *many],
        ["8", "evicted", "few-0", "-", "n-few-0", r"for pod ml/\u001b[31mx"],
        ["9", "reserved", "gang/a", "64", "n1 and 7 more", "-"],
    ]


def test_a_victim_of_another_namespace_shows_which() -> None:
    evicted = Decision(5.0, What.EVICTED, "theirs/low", for_whom="gang ml/big", why="for it")
    view = HistoryView(9.0, 0.0, 0, (evicted, *decided(What.PLANNED, "big-0", at=6.0)))
    _, _, header, *rows = history_table.history(view, within="ml").splitlines()
    assert header.split()[2] == "NAMESPACE"
    assert [row.split()[2:5] for row in rows] == [
        ["theirs", "evicted", "low"],
        ["ml", "planned", "big-0"],
    ]


def test_no_gangs_are_no_table() -> None:
    answer = run("gangs", "-n", "theirs")
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert answer.stderr == "No gangs in namespace theirs.\n"


def test_nodes_are_a_table_with_the_best_set_that_is_free() -> None:
    header, first, second = lines("nodes")
    assert header.split() == [
        *(
            "NAME",
            "GPUS",
            "USED",
            "PLANNED",
            "RESERVED",
            "FREE",
            "BEST",
            "FREE",
            "SET",
            "KIND",
            "PROBLEM",
        ),
    ]
    assert first.split()[:6] == ["n1", "8", "0", "6", "0", "2"]
    assert " 2 by nvlink, " in first
    assert " 8 x H100 80GB HBM3 " in first
    assert second.split()[:6] == ["n2", "8", "0", "0", "0", "8"]


def test_the_table_of_nodes_names_the_gpus_that_are_not_healthy() -> None:
    states = ("free", "unhealthy", "used", "unhealthy")
    gpus = (GpuView(at, f"GPU-{at}", "L4", True, state, "") for at, state in enumerate(states))
    view = NodeView("n1", True, "", "", tuple(gpus), "4 x L4", None, 1, 0, 0.0)
    assert kubectl_tables.nodes([view]).splitlines()[1].endswith("  GPUs 1,3 unhealthy")


def test_top_says_how_much_is_used_and_what_still_fits() -> None:
    told = lines("top")
    assert told[0] == "16 GPUs on 2 nodes: 0 in use (0 %), 6 planned, 10 free"
    table = told[2:5]
    assert table[0].split() == [
        *("KIND", "NODES", "GPUS", "USED", "PLANNED", "RESERVED", "FREE", "LARGEST", "SPLIT"),
        *("FIT", "1", "FIT", "2", "FIT", "4", "FIT", "8"),
    ]
    fits = {row.partition("  ")[0]: row.split()[-4:] for row in table[1:]}
    assert fits == {
        "8 x H100 80GB HBM3": ["2", "1", "0", "0"],
        "8 x Tesla V100-SXM2": [
            *("8", "4", "2", "1"),
        ],
    }
    (row,) = [line for line in told if line.startswith("ml ")]
    assert row.split() == ["ml", "0", "6", "1", "4", "32"]
    assert max(map(len, told)) <= 120


def test_idle_says_how_many_pods_do_nothing() -> None:
    assert lines("idle") == ["Pods with GPUs: 0 idle, 0 not idle."]
    assert json.loads(run("idle", "-o", "json").stdout)["would_start"] == []


def test_idle_pods_are_a_table_with_what_would_start_without_them() -> None:
    day = 86400.0
    it = IdleView(
        at=2 * day,
        pods=(
            IdlePod("ml/notebook-ada", "", False, "gpu-1", 2, day, False, 1, 12, 2 * day + 600),
            IdlePod("vision/sweep-0", "sweep", True, "gpu-12", 8, 2 * day - 7500, True, None, None),
        ),
        not_idle=5,
        unknown=1,
        waiting=4,
        untried=1,
        would_start=(WouldStartView("gang ml/train", 16, ("pod ml/notebook-ada", "gang v/x")),),
    )
    assert kubectl_tables.idle(it).splitlines() == [
        "Pods with GPUs: 2 idle, with 10 GPUs, 5 not idle, "
        "1 unknown, as nothing reports their work.",
        "",
        "NAMESPACE  POD           GPUS  IDLE FOR       BUSY IN 24H  GPU MEMORY  NODE    GANG"
        "                EVICTED IF NEEDED",
        "ml         notebook-ada     2  1d             1 % or less  12 GiB      gpu-1   -"
        "                   in 10m",
        "vision     sweep-0          8  at least 2h5m  -            -           gpu-12"
        "  sweep, which works  never",
        "",
        "WAITING        GPUS  WOULD START WITHOUT",
        "gang ml/train    16  pod ml/notebook-ada, gang v/x",
        "",
        "Each is tried by itself, as if the others did not wait.",
        "",
        "Not tried, because the queue is long: 1.",
    ]
    many = WouldStartView("gang ml/large", 64, tuple(f"pod ml/nb-{n}" for n in range(6)))
    assert kubectl_tables.idle(replace(it, would_start=(many,))).splitlines()[7] == (
        "gang ml/large    64  pod ml/nb-0, pod ml/nb-1, pod ml/nb-2, pod ml/nb-3 and 2 more"
    )
    ripe = replace(it.pods[0], reclaim_from=it.at)
    assert kubectl_tables.idle(replace(it, pods=(ripe,))).splitlines()[3].endswith("-     now")
    never = replace(it.pods[0], day_percent=0)
    assert "  0 %  " in kubectl_tables.idle(replace(it, pods=(never,)))
    without_waiters = replace(it, pods=it.pods[:1], unknown=0, untried=0, would_start=())
    assert kubectl_tables.idle(without_waiters).splitlines()[-1] == (
        "4 gangs and pods wait; none would start without the idle pods."
    )


def test_moves_says_in_one_sentence_why_it_has_none() -> None:
    said = run("moves")
    assert (said.stdout, said.stderr) == (
        "",
        "Moves are off: the extender runs with --moves=never.\n",
    )
    assert json.loads(run("moves", "-o", "json").stdout)["allowed"] == "never"
    assert why_no_moves(MovesView(0.0, "advise", ())).startswith("Nothing to move: ")


def test_moves_are_a_table_of_those_that_wait_and_one_of_pods() -> None:
    web = MoveView("ml/web", "gpu-1", "gpu-3", (1, 5, 6), 1800.0, MoveState.LEFT, 1288.0)
    embed = MoveView("ml/embed", "gpu-1", "gpu-2", (), 2400.0, MoveState.EVICTING, None)
    plan = MovePlanView("gang ml/train", 16, 4200.0, 28800.0, (web, embed))
    it = MovesView(1000.0, "consent", (plan,))
    assert kubectl_tables.moves(it).splitlines() == [
        "FOR            GPUS  PODS THAT MOVE  GPU HOURS LOST  GPU HOURS SAVED",
        "gang ml/train    16               2             1.2              8.0",
        "",
        "FOR            POD       FROM   TO     GPUS THERE  GPU HOURS LOST  STATE",
        "gang ml/train  ml/web    gpu-1  gpu-3  1,5,6                  0.5"
        "  left, target kept for 4m48s",
        "gang ml/train  ml/embed  gpu-1  gpu-2  -                      0.7  evicting",
    ]
    advised = replace(web, state=MoveState.ADVISED, kept_until=None)
    advice = replace(plan, saved_gpu_seconds=None, moves=(advised,))
    told = kubectl_tables.moves(MovesView(1000.0, "advise", (advice,))).splitlines()
    assert told[1].endswith("  no end")
    assert told[4].endswith("  advised")
    assert told[-1].startswith("Advice: nothing is moved without --moves=consent.")


def test_who_does_not_consent_to_moves_and_kept_others_waiting_is_a_table_of_its_own() -> None:
    web = KeptWaitingView(
        "team-a", "Deployment", "web", 2, ("n4",), "gang ml/train", 32, 41 * 3600.0, now=True
    )
    embed = replace(web, name="embed", gpu_seconds=4137.2 * 3600)
    it = MovesView(1000.0, "consent", (), (web, replace(embed, kind="", now=False)))
    assert kubectl_tables.moves(it).splitlines() == [
        "Nothing to move: no gang or pod waits for which moves are found that are worth it.",
        "",
        "DO NOT CONSENT  KIND        GPUS  NODE  KEPT WAITING   ITS GPUS  GPU HOURS WAITED  STILL",
        "team-a/web      Deployment     2  n4    gang ml/train        32                41  yes",
        "team-a/embed    -              2  n4    gang ml/train        32             4,100  no",
        "",
        "Moves of these pods would have made room. GPU HOURS WAITED: their part of the wait, times"
        " the GPUs",
        "that wait, since the leader's term began.",
    ]


def test_moves_for_a_node_get_no_gpus_and_save_no_wait() -> None:
    web = MoveView("ml/web", "gpu-1", "gpu-3", (1, 5, 6), 1800.0, MoveState.EVICTING, None)
    it = MovesView(1000.0, "consent", (MovePlanView("node gpu-1", 0, 1800.0, 0.0, (web,)),))
    assert kubectl_tables.moves(it).splitlines()[1].split() == [
        "node",
        "gpu-1",
        "-",
        "1",
        "0.5",
        "-",
    ]


def test_emptying_a_node_is_shown_first_and_begins_with_yes(proxy: Proxy) -> None:
    proxy.patches.clear()
    told = lines("empty", "n1")
    assert told[0].split() == ["STAYS", "ON", "GPUS", "WHY"]
    assert told[1].split(None, 3) == ["ml/train-0", "n1", "6", Stays.GANG.value]
    assert told[3:] == [
        "No pod is moved: the extender runs with --moves=never.",
        "Nothing is changed. With --yes, these get no new pods with GPUs: n1.",
    ]
    assert proxy.patches == []
    told = lines("empty", "n1", "n2", "--yes")
    assert told[-1] == "Being emptied: n1, n2. New pods with GPUs are placed elsewhere."
    assert proxy.patches == [
        (f"/api/v1/nodes/{name}", {"metadata": {"annotations": {EMPTY: "true"}}})
        for name in ("n1", "n2")
    ]
    assert json.loads(run("empty", "n2", "-o", "json").stdout)["nodes"] == [
        {"node": "n2", "gpus": 0, "emptied": False}
    ]


def test_emptying_a_node_ends_with_undo(proxy: Proxy) -> None:
    proxy.patches.clear()
    assert lines("empty", "--undo", "n1") == ["No longer being emptied: n1."]
    assert proxy.patches == [("/api/v1/nodes/n1", {"metadata": {"annotations": {EMPTY: None}}})]


def test_emptying_names_what_is_wrong(proxy: Proxy) -> None:
    proxy.patches.clear()
    assert refused("empty", "n1", "n9", "--yes") == "no node n9 is known"
    assert proxy.patches == []
    for option in ("--yes", "--undo"):
        answer = run("empty", option)
        assert (answer.exit_code, answer.stderr) == (2, f"linkwise: {option}: expected NODE\n")
    assert run("empty", "n1", "--yes", "--undo").exit_code == 2
    assert lines("empty") == ["No node is being emptied."]
    proxy.refusal = ("403 Forbidden", "Forbidden", 'nodes "n1" is forbidden')
    assert refused("empty", "n1", "--undo") == (
        'node n1 cannot be annotated: nodes "n1" is forbidden: verb patch on nodes is needed'
    )


def test_emptying_is_a_table_of_pods_that_move_and_one_of_those_that_stay() -> None:
    web = MoveView("ml/web", "gpu-1", "gpu-3", (1, 5), 1200.0, MoveState.ADVISED, None)
    left = MoveView("ml/embed", "gpu-1", "gpu-2", (), 2400.0, MoveState.LEFT, 1288.0)
    stays = StaysView("ml/train", "gpu-1", 2, "it is a member of a gang")
    nodes = (EmptiedNode("gpu-1", 8, emptied=True), EmptiedNode("gpu-4", 0, emptied=False))
    it = EmptyingView(1000.0, "consent", nodes, (web, left), (stays,))
    assert kubectl_tables.emptying(it, begins=False).splitlines() == [
        "POD       FROM   TO     GPUS THERE  GPU HOURS LOST  STATE",
        "ml/web    gpu-1  gpu-3  1,5                    0.3  would move",
        "ml/embed  gpu-1  gpu-2  -                      0.7  left, target kept for 4m48s",
        "",
        "STAYS     ON     GPUS  WHY",
        "ml/train  gpu-1     2  it is a member of a gang",
        "",
        "No pod has GPUs of gpu-4.",
        "Being emptied: gpu-1. New pods with GPUs are placed elsewhere.",
        "Nothing is changed. With --yes, these are emptied: gpu-4.",
    ]


def test_top_names_the_nodes_that_take_no_pods() -> None:
    at = Cluster()
    at.add_node("n1")
    at.cordon("n1")
    told = kubectl_tables.use(view_use(at.core.snapshot(at.now))).splitlines()
    assert told[1] == "n1 takes no new pods: cordoned. 8 GPUs are free there."
    assert told[4].split()[-4:] == ["0", "0", "0", "0"]


def test_nodes_with_divided_gpus_have_a_column_for_free_shares() -> None:
    at = ShareCluster()
    at.add_divided("n0", all_three(DGX_1V))
    at.add_node("n1")
    at.add_taker("w", {SHARED: 2})
    at.try_to_place("w")
    table = kubectl_tables.nodes(at.core.nodes(at.now)).splitlines()
    assert "FREE  FREE SHARES" in table[0]
    assert "gpu 2/2, gpu.shared 3/5, mig-1g.10gb 3/3, mig-3g.40gb 1/1" in table[1]
    assert table[2].split()[5:7] == ["8", "-"]
    told = kubectl_tables.use(view_use(at.core.snapshot(at.now)))
    assert "16 GPUs on 2 nodes: 0 in use (0 %), 0 planned, 11 free, 5 divided" in told


def test_nodes_have_a_column_for_the_topology_manager_if_it_is_known_of_any() -> None:
    known = NodeView(
        *("n1", True, "", "", (), "8 x L4", None, 8, 0, 1.0),
        topology_manager="single-numa-node, scope pod (configz)",
    )
    unknown = replace(known, name="n2", topology_manager="")
    table = kubectl_tables.nodes([known, unknown]).splitlines()
    assert "TOPOLOGY MANAGER" in table[0]
    assert "single-numa-node, scope pod (configz)" in table[1]
    assert "unknown" in table[2]
    assert "TOPOLOGY MANAGER" not in kubectl_tables.nodes([unknown])


def test_every_table_fits_a_terminal_and_a_pipe_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Column[str]] = [Column("name", lambda row: row)]
    table = f"NAME\n{'x' * 200}\nshort\n"
    assert kubectl_tables.shown(names, ("x" * 200, "short")) == table
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    cut = f"NAME\n{'x' * 99}…\nshort\n"
    assert kubectl_tables.shown(names, ("x" * 200, "short")) == cut
    monkeypatch.setenv("COLUMNS", "40")
    why: list[Column[str]] = [*names, Column("why", lambda _: "room for 2 of 4 members, no more")]
    assert kubectl_tables.shown(why, ("gang/a",)) == (
        "NAME    WHY\ngang/a  room for 2 of 4 members, no more\n"
    )
    assert kubectl_tables.shown(why, ("gang/of-ten-letters",)) == (
        "NAME\ngang/of-ten-letters\n  WHY: room for 2 of 4 members, no more\n"
    )
    assert kubectl_tables.shown(why, ("gang/longer",)) == (
        "NAME         WHY\ngang/longer  room for 2 of 4 members, no\n             more\n"
    )


def test_no_table_hides_what_is_wrong_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "24")
    name: list[Column[str]] = [Column("name", str), figure("size", len)]
    problem: Column[str] = Column("problem", {"gpu-1": "2 GPUs are broken: row-map ab-cd"}.get)
    shown = kubectl_tables.shown([*name, problem], ("gpu-1", "gpu-2-of-rack-7"))
    assert shown == (
        "NAME             SIZE\n"
        "gpu-1               5\n"
        "  PROBLEM: 2 GPUs are\n"
        "    broken: row-map\n"
        "    ab-cd\n"
        "gpu-2-of-rack-7    15\n"
    )
    long = "of a very long name, which leaves no room"
    assert kubectl_tables.shown(name, (long,)).splitlines()[1].endswith("…")


def test_an_unknown_pod_or_gang_is_named() -> None:
    assert refused("explain", "none") == "no pod ml/none is known"
    assert refused("explain", "gang/none") == "no gang ml/none is known"
    assert refused("explain", "none", "-o", "json") == "no pod ml/none is known"
    assert refused("explain", "job/none") == "no gang ml/job/none is known"


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    assert refused("explain", "huge") == (
        "no pod ml/huge is known; there is gang/huge, pod/huge-0, pod/huge-1, …"
    )
    assert refused("explain", "huge", "-n", "theirs") == (
        "no pod theirs/huge is known; there is gang/huge in namespace ml"
    )


def test_who_may_not_ask_is_told_which_right_is_missing(proxy: Proxy) -> None:
    forbidden = 'User "eve" cannot get resource "services/proxy"'
    proxy.refusal = ("403 Forbidden", "Forbidden", forbidden)
    assert refused("top") == (
        f"you may not ask the extender: {forbidden}. A Role in namespace kube-system is needed "
        "with verb get on services/proxy, resourceNames [linkwise-extender:http]"
    )


def test_an_extender_that_is_not_ready_or_not_there_is_told(proxy: Proxy) -> None:
    none = 'no endpoints available for service "linkwise-extender:http"'
    proxy.refusal = ("503 Service Unavailable", "ServiceUnavailable", none)
    assert refused("nodes") == (
        f"the extender at kube-system/linkwise-extender:http is not ready: {none}"
    )
    proxy.refusal = None
    assert "Service gpu/elsewhere:http not found: name it with --extender" in refused(
        "nodes", "--extender", "gpu/elsewhere:http"
    )


def test_an_api_server_that_is_away_or_does_not_know_us_is_told(
    proxy: Proxy, tmp_path: Path
) -> None:
    assert refused("top", "--context", "away").startswith(
        "the API server at http://127.0.0.1:9 cannot be reached: "
    )
    stranger = write_kubeconfig(tmp_path / "stranger", proxy.url, token="stolen")
    assert refused("top", "--kubeconfig", str(stranger)).startswith(
        f"the API server at {proxy.url} does not know who you are"
    )


def test_a_context_without_a_namespace_means_default(proxy: Proxy, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", proxy.url)
    path.write_text(path.read_text().replace(', "namespace": "ml"', ""))
    assert refused("explain", "lonely", "--kubeconfig", str(path)) == (
        "no pod default/lonely is known; there is pod/lonely in namespace ml"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("explain", "gang/"),
            "gang/: expected POD, pod/POD, gang/NAME or KIND/NAME of the gang's owner",
        ),
        (("history", "x", "-A"), "x -A: a name is of one namespace: -n NAME"),
        (("history", "node/"), "node/: expected POD, pod/POD, gang/NAME or KIND/NAME"),
        (("explain", "x", "-A"), "x -A: a name is of one namespace: -n NAME"),
        (("top", "--extender", "nowhere"), "--extender nowhere: expected NAMESPACE/SERVICE:PORT"),
        (("top", "--kubeconfig", "/no/such"), "--kubeconfig /no/such: "),
        (("top", "--context", "other"), "kubeconfig, --context other: "),
        (("explain", "-x"), "No such option"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(arguments: tuple[str, ...], text: str) -> None:
    answer = run(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith(f"linkwise: {text}")


def test_without_any_kubeconfig_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    answer = run("top")
    assert (answer.exit_code, answer.stderr) == (
        2,
        "linkwise: no kubeconfig: there is no /no/such, and this is no pod\n",
    )


def test_every_command_and_flag_is_documented() -> None:
    page = (ROOT / "docs" / "kubectl.md").read_text()
    assert isinstance(main, click.Group)
    assert len(main.commands) == 10
    for name, command in main.commands.items():
        assert f"`kubectl linkwise {name}" in page
        flags = {flag for option in command.params for flag in option.opts if flag[0] == "-"}
        assert not [flag for flag in flags if f"`{flag}`" not in page]
