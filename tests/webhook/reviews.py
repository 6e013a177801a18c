"""AdmissionReviews as the API server writes them, and the answers."""

import json
from base64 import b64decode
from typing import Any

from linkwise.simulator.api_server.patches import json_patch
from linkwise.webhook.answers import Answers
from linkwise.webhook.patch import Rules

Object = dict[str, Any]


def review(
    made: Object, *, operation: str = "CREATE", old: Object | None = None, **changes: Any
) -> Object:
    group, _, version = made["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": made["kind"]}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": {"group": group, "version": version, "resource": made["kind"].lower() + "s"},
        "requestKind": kind,
        "name": made["metadata"].get("name", ""),
        "namespace": "ml",
        "operation": operation,
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": None if operation == "DELETE" else made,
        "oldObject": made if operation == "DELETE" else old,
        "options": {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
        "dryRun": False,
    }
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {**request, **changes},
    }


def post(path: str, body: bytes, rules: Rules | None = None) -> tuple[int, str]:
    return post_to(Answers(rules or Rules()), path, body)


def post_to(answers: Answers, path: str, body: bytes) -> tuple[int, str]:
    answer = answers.routes()["POST", path]
    status, _, text = answer(body)
    return status, text.decode()


def ask(path: str, asked: Object, rules: Rules | None = None) -> Object:
    return ask_of(Answers(rules or Rules()), path, asked)


def ask_of(answers: Answers, path: str, asked: Object) -> Object:
    """The response within the answer."""
    status, text = post_to(answers, path, json.dumps(asked).encode())
    assert status == 200, text
    answer: Object = json.loads(text)
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response: Object = answer["response"]
    assert response["uid"] == asked["request"]["uid"]
    return response


def patched(made: Object, rules: Rules | None = None) -> Object:
    """*made* as the API server would store it."""
    return patched_by(Answers(rules or Rules()), made)


def patched_by(answers: Answers, made: Object) -> Object:
    result: Object = json_patch(made, steps_of(answers, made))
    return result


def steps_of(answers: Answers, made: Object) -> list[Object]:
    response = ask_of(answers, "/mutate", review(made))
    assert response["allowed"] is True
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    steps: list[Object] = json.loads(b64decode(response["patch"]))
    return steps


def refusal(made: Object, old: Object | None = None, rules: Rules | None = None) -> str:
    """Why it is refused; empty where it is let in."""
    operation = "UPDATE" if old is not None else "CREATE"
    response = ask("/validate", review(made, operation=operation, old=old), rules)
    if response["allowed"]:
        assert "status" not in response
        return ""
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    return str(response["status"]["message"])


def warnings(made: Object, old: Object | None = None) -> list[str]:
    operation = "UPDATE" if old is not None else "CREATE"
    response = ask("/validate", review(made, operation=operation, old=old))
    assert response["allowed"]
    return list(response.get("warnings", []))
