"""Leases, as leader election needs them: one of several writers wins, and each learns it."""

from tests.contract.api_world import Api, Object, version_of

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


def lease(holder: str | None, term: int = 1, **metadata: object) -> Object:
    now = "2026-11-21T12:00:00.000000Z"
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": term,
    }
    return {"metadata": {"name": "leader", **metadata}, "spec": spec}


def test_of_two_who_create_a_lease_the_second_is_refused(api: Api) -> None:
    leases = LEASES.format(api.namespace)
    made = api.ask("POST", leases, lease("a")).object
    assert made["spec"] == lease("a")["spec"]
    assert api.ask("POST", leases, lease("b")).refusal == (409, "AlreadyExists")
    assert api.get(f"{leases}/leader")["spec"]["holderIdentity"] == "a"


def test_of_two_who_take_a_lease_over_the_same_version_the_second_is_refused(api: Api) -> None:
    path = f"{LEASES.format(api.namespace)}/leader"
    before = version_of(api.ask("POST", LEASES.format(api.namespace), lease("a")).object)
    taken = api.ask("PUT", path, lease("b", 2, resourceVersion=before)).object
    assert version_of(taken) != before
    assert api.ask("PUT", path, lease("c", 2, resourceVersion=before)).refusal == (409, "Conflict")
    # Nor can the one before renew it.
    assert api.ask("PUT", path, lease("a", 1, resourceVersion=before)).refusal == (409, "Conflict")
    assert api.get(path)["spec"] == lease("b", 2)["spec"]


def test_a_lease_may_have_no_holder_and_may_be_empty(api: Api) -> None:
    leases = LEASES.format(api.namespace)
    made = api.ask("POST", leases, {"metadata": {"name": "leader"}}).object
    assert made["spec"] == {}
    held = api.ask("PUT", f"{leases}/leader", lease("a", resourceVersion=version_of(made))).object
    free = lease(None, resourceVersion=version_of(held))
    given_back = api.ask("PUT", f"{leases}/leader", free).object
    assert "holderIdentity" not in given_back["spec"]
    assert given_back["spec"]["leaseTransitions"] == 1


def test_a_lease_that_was_deleted_can_be_renewed_only_where_no_uid_is_named(api: Api) -> None:
    leases = LEASES.format(api.namespace)
    path = f"{leases}/leader"
    assert api.ask("GET", path).refusal == (404, "NotFound")
    made = api.ask("POST", leases, lease("a")).object
    uid, version = made["metadata"]["uid"], version_of(made)
    api.ask("DELETE", path)
    renewed = lease("a", uid=uid, resourceVersion=version)
    assert api.ask("PUT", path, renewed).refusal == (409, "Conflict")
    assert api.ask("GET", path).refusal == (404, "NotFound")
    # A version alone does not prevent it: a PUT creates a new Lease.
    again = api.ask("PUT", path, lease("a", resourceVersion=version)).object
    assert again["metadata"]["uid"] != uid
