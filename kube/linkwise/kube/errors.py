"""What can go wrong between a program and the API server.

ApiError      the API server refused a request or did not answer; `status` says which
LoadError     no API server is configured: an unreadable kubeconfig, or not inside a pod
"""

import msgspec

UNREACHED = 0
NOT_FOUND = 404
GONE = 410


class LoadError(Exception):
    """The text names the file, or what is missing."""


class ApiError(Exception):
    """One refused or failed request.

    `status` is the HTTP status: 404 NotFound, 409 Conflict or AlreadyExists, 410 Gone or Expired,
    422 Invalid, 403 Forbidden, 429 TooManyRequests …; 0 if no answer came. `reason` is Kubernetes'
    word for it. `maybe_done` says that the request may have been carried out although it failed:
    the connection broke after it was sent, or the server failed (5xx).
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        maybe_done: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.maybe_done = maybe_done
        self.retry_after_seconds = retry_after_seconds


class _Details(msgspec.Struct):
    retry_after_seconds: int | None = msgspec.field(name="retryAfterSeconds", default=None)


class _Status(msgspec.Struct):
    """The API server's refusal, meta/v1 Status."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def error_of(status: int, body: bytes, *, what: str) -> ApiError:
    """Return the error in an answer. *what* is the request, for answers without a Status. *status*
    0: take it from the body."""
    try:
        told = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page, or an empty body
        told = _Status(message=body[:200].decode(errors="replace"))
    return ApiError(
        status or told.code or 500,
        told.reason or "Unknown",
        told.message or what,
        maybe_done=status >= 500,
        retry_after_seconds=told.details.retry_after_seconds if told.details else None,
    )
