"""What a watch delivers, and when it makes the client start again: the reflector depends on it."""

from itertools import islice

from tests.contract.api_world import NODES, Api, Object, version_of


def told(events: list[Object]) -> list[str]:
    return [f"{event['type']} {event['object']['metadata']['name']}" for event in events]


def pod_elsewhere(api: Api) -> Object:
    spec = {"containers": [{"name": "main", "image": "x"}]}
    return {"metadata": {"name": api.namespace}, "spec": spec}


def test_a_watch_without_a_version_begins_with_all_there_is(api: Api) -> None:
    api.pod("a")
    api.pod("b")
    for start in ({}, {"resourceVersion": "0"}):
        with api.watch(api.pods, **start) as events:
            assert sorted(told(list(islice(events, 2)))) == ["ADDED a", "ADDED b"]
            api.patch(f"{api.pods}/a", {"metadata": {"labels": {"now": str(len(start))}}})
            assert told([next(events)]) == ["MODIFIED a"]


def test_a_watch_from_a_version_replays_what_came_after_it(api: Api) -> None:
    api.pod("before")
    version = api.version()
    api.pod("w")
    api.patch(f"{api.pods}/w", {"metadata": {"labels": {"a": "1"}}})
    api.ask("DELETE", f"{api.pods}/w")
    with api.watch(api.pods, resourceVersion=version) as events:
        seen = list(islice(events, 4))
    # A pod is marked before it goes, even where nothing is waited for.
    assert told(seen) == ["ADDED w", "MODIFIED w", "MODIFIED w", "DELETED w"]
    versions = [int(version_of(event["object"])) for event in seen]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


def test_a_watch_that_begins_at_an_event_is_told_what_came_after_it(api: Api) -> None:
    """So a reflector goes on from the last one it heard."""
    first = api.pod("a")
    api.pod("b")
    with api.watch(api.pods, resourceVersion=version_of(first)) as events:
        assert told([next(events)]) == ["ADDED b"]


def test_a_watch_with_a_selector_sees_objects_come_and_go(api: Api) -> None:
    version = api.version()
    here = api.node_name("n1")
    api.pod("a")
    api.bind("a", here)
    api.pod("b", nodeName=api.node_name("n2"))
    for phase in ("Running", "Failed"):
        api.patch(f"{api.pods}/a/status", {"status": {"phase": phase}})
    selector = f"spec.nodeName={here},status.phase!=Failed"
    with api.watch(api.pods, resourceVersion=version, fieldSelector=selector) as events:
        seen = list(islice(events, 3))
    assert told(seen) == ["ADDED a", "MODIFIED a", "DELETED a"]
    # What no longer matches is shown as it was when it still did, but in the version of the change.
    last = seen[-1]["object"]
    assert last["status"]["phase"] == "Running"
    assert version_of(last) == version_of(api.get(f"{api.pods}/a"))


def test_a_watch_from_a_forgotten_version_is_told_410_inside_the_stream(api: Api) -> None:
    version = api.version()
    api.pod("w")
    api.forget_history()
    with api.watch(api.pods, resourceVersion=version) as events:
        (event,) = events
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {version} (")


def test_a_watch_from_the_future_hears_nothing_until_it_is_reached(api: Api) -> None:
    """And no error: if the server lost its state, a client that goes on never learns of it."""
    made = api.pod("w")
    future = int(version_of(made)) + 20  # the server itself writes some in between
    with api.watch(api.pods, resourceVersion=future) as events:
        changes: list[Object] = []
        while not changes or int(version_of(changes[-1])) <= future:
            patch = {"metadata": {"labels": {"step": str(len(changes))}}}
            changes.append(api.patch(f"{api.pods}/w", patch).object)
        assert len(changes) > 1
        assert version_of(next(events)["object"]) == version_of(changes[-1])


def test_a_bookmark_comes_before_a_watch_ends_where_it_is_asked_for(api: Api) -> None:
    query = {"resourceVersion": version_of(api.pod("w")), "timeoutSeconds": 3}
    others = "/api/v1/namespaces/default/pods"
    with (
        api.watch(api.pods, **query) as unasked,
        api.watch(api.pods, **query, allowWatchBookmarks="true") as asked,
    ):
        other = api.ask("POST", others, pod_elsewhere(api)).object
        bookmark = next(asked)
        api.pod("late")  # two seconds are left
        assert told([event for event in asked if event["type"] != "BOOKMARK"]) == ["ADDED late"]
        assert told(list(unasked)) == ["ADDED late"]
    assert bookmark["type"] == "BOOKMARK"
    assert (bookmark["object"]["kind"], bookmark["object"]["apiVersion"]) == ("Pod", "v1")
    assert int(version_of(bookmark["object"])) >= int(version_of(other))
    assert not bookmark["object"]["metadata"].get("name")
    api.ask("DELETE", f"{others}/{api.namespace}")


def test_no_bookmark_comes_where_it_would_say_nothing_new(api: Api) -> None:
    query = {"resourceVersion": version_of(api.pod("w")), "timeoutSeconds": 3}
    with api.watch(api.pods, **query, allowWatchBookmarks="true") as events:
        assert list(events) == []


def test_a_deleted_object_is_shown_in_its_last_state_at_a_version_of_its_own(api: Api) -> None:
    api.node("n1", capacity={"nvidia.com/gpu": 8})
    path = f"{NODES}/{api.node_name('n1')}"
    changed = api.patch(path, {"metadata": {"labels": {"a": "1"}}}).object
    api.ask("DELETE", path)
    with api.watch(NODES, resourceVersion=version_of(changed)) as events:
        gone = next(events)
    assert told([gone]) == [f"DELETED {api.node_name('n1')}"]
    assert gone["object"]["metadata"]["labels"]["a"] == "1"
    assert int(version_of(gone["object"])) > int(version_of(changed))


def test_a_watch_through_one_namespace_does_not_hear_of_others(api: Api) -> None:
    version = api.version()
    elsewhere = "/api/v1/namespaces/default/pods"
    api.ask("POST", elsewhere, pod_elsewhere(api))
    api.ask("DELETE", f"{elsewhere}/{api.namespace}")
    api.pod("w")
    with api.watch(api.pods, resourceVersion=version) as events:
        assert told([next(events)]) == ["ADDED w"]
