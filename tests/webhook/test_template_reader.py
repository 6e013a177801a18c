"""The one read of the webhook, with a client that has one template."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import pytest

from linkwise.kube.errors import ApiError
from linkwise.webhook.claims import ClaimTemplate
from linkwise.webhook.template_reader import TemplateReader

PATH = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates/whole"
BODY = b'{"spec":{"spec":{"devices":{"requests":[{"name":"gpus","exactly":{"count":4}}]}}}}'

T = TypeVar("T")


class Client:
    def __init__(self, body: bytes | ApiError = BODY) -> None:
        self.body, self.asked, self.limit = body, list[tuple[str, float]](), 0.0

    def get(self, path: str, kind: type[T]) -> T:
        self.asked.append((path, self.limit))
        if isinstance(self.body, ApiError):
            raise self.body
        return msgspec.json.decode(self.body, type=kind)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        self.limit = seconds
        yield
        self.limit = 0.0


def test_a_template_is_read_once_and_for_half_a_second_at_most() -> None:
    client = Client()
    found = TemplateReader(client).read("ml", "whole")
    assert found == msgspec.json.decode(BODY, type=ClaimTemplate)
    assert client.asked == [(PATH, 0.5)]


@pytest.mark.parametrize(
    "body",
    [ApiError(404, "NotFound", PATH), b'{"spec":{"spec":{"devices":{"requests":7}}}}', b"?"],
)
def test_one_that_cannot_be_read_is_none_and_the_log_says_why(
    body: bytes | ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    assert TemplateReader(Client(body)).read("ml", "whole") is None
    assert "ResourceClaimTemplate ml/whole cannot be read, so its pod is left alone" in caplog.text


def test_a_namespace_that_is_no_name_is_not_asked_for() -> None:
    client = Client()
    assert TemplateReader(client).read("../../x", "whole") is None
    assert client.asked == []
