"""`linkwise what-if --replay` as the tests call it, and gangs of the past."""

import json
from typing import Any

from click.testing import CliRunner, Result

from linkwise.cli.__main__ import main
from tests.cli.what_if.past_listing import a_job, past_pod
from tests.pods.podgrouper.pods import Object

AT = "2026-03-01T08:00:00Z"
WAS, STOCK, LINKWISE = "as_it_was", "kube_scheduler", "linkwise"


def invoke(given: object, *options: str) -> Result:
    text = given if isinstance(given, str) else json.dumps(given)
    arguments = ["what-if", "--replay", *options]
    if "--at" not in options:
        arguments += ["--at", AT]
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def replayed(given: object, *options: str) -> dict[str, Any]:
    result = invoke(given, *options, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(given: object, *options: str) -> str:
    result = invoke(given, *options)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def only(found: dict[str, Any]) -> dict[str, Any]:
    (job,) = found["there"]
    return dict(job)


def gang(
    name: str, pods: int, created: float, bound: float, ended: float, **more: Any
) -> tuple[Object, list[Object]]:
    it = a_job(name, pods)
    made = [
        past_pod(f"{name}-{n}-at-{created}", 1, created, bound, ended, by=it, index=n, **more)
        for n in range(pods)
    ]
    return it, made
