"""The API server's refusals: meta/v1 Status with its codes, reasons and messages."""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON. The store never changes it in place, it only replaces it."""


class RequestRefusedError(Exception):
    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = dict(details or {})

    def as_status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def success(name: str = "", plural: str = "", uid: str = "", code: int = 200) -> Object:
    """Return the Status of a success that has no object to show."""
    details = {"name": name, "kind": plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: text for key, text in details.items() if text},
        "code": code,
    }


def _about(plural: str, name: str) -> dict[str, str]:
    return {"name": name, "kind": plural}


def not_found(plural: str, name: str) -> RequestRefusedError:
    return RequestRefusedError(
        404, "NotFound", f'{plural} "{name}" not found', _about(plural, name)
    )


def unknown_route() -> RequestRefusedError:
    return RequestRefusedError(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, name: str) -> RequestRefusedError:
    message = f'{plural} "{name}" already exists'
    return RequestRefusedError(409, "AlreadyExists", message, _about(plural, name))


def conflict(plural: str, name: str, why: str) -> RequestRefusedError:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return RequestRefusedError(409, "Conflict", message, _about(plural, name))


def modified_meanwhile(plural: str, name: str) -> RequestRefusedError:
    why = "the object has been modified; please apply your changes to the latest version"
    return conflict(plural, name, f"{why} and try again")


def invalid(kind: str, name: str, field: str, why: str) -> RequestRefusedError:
    causes = {"causes": [{"reason": "FieldValueInvalid", "message": why, "field": field}]}
    message = f'{kind} "{name}" is invalid: {field}: {why}'
    return RequestRefusedError(422, "Invalid", message, _about(kind, name) | causes)


def bad_request(message: str) -> RequestRefusedError:
    return RequestRefusedError(400, "BadRequest", message)


def internal_error(message: str) -> RequestRefusedError:
    return RequestRefusedError(500, "InternalError", message)


def expired(message: str) -> RequestRefusedError:
    return RequestRefusedError(410, "Expired", message)


def unsupported_media_type(content_type: str) -> RequestRefusedError:
    message = f"the body of the request was in an unknown format: {content_type}"
    return RequestRefusedError(415, "UnsupportedMediaType", message)


def method_not_allowed() -> RequestRefusedError:
    message = "the server does not allow this method on the requested resource"
    return RequestRefusedError(405, "MethodNotAllowed", message)
