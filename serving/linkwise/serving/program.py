"""What all programs do alike: their logs, and their end by a signal."""

import json
import logging
import signal
from datetime import UTC, datetime
from types import FrameType
from typing import NoReturn

import click

log = logging.getLogger(__name__)

LOG_LEVEL = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    help="Least severe messages to log.",
)
LOG_FORMAT = click.option(
    "--log-format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    help="Form of the log on standard error: lines of text, or one JSON object a line.",
)
_ABOUT = ("pod", "gang", "node", "gpus", "reason", "for", "priority", "for_priority", "steps")
_AS_THEY_ARE = (int, dict)  # all others are text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger and message.

    The fields of a decision, such as `pod` (namespace/name) and `node`, are there if the record's
    `extra` has them, `exception` if one is logged.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        said: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = {key: getattr(record, key) for key in _ABOUT if hasattr(record, key)}
        said |= {k: v if isinstance(v, _AS_THEY_ARE) else str(v) for k, v in about.items()}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def begin_log(level: str, form: str) -> None:
    """Begin to log on standard error, as `--log-level` and `--log-format` say."""
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # No form of the log has these, and to find them out takes longer than to format a message.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # the client logs what matters


def exit_on_signals() -> None:
    """Have SIGTERM and SIGINT raise SystemExit in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    log.info("%s: ending", signal.Signals(number).name)
    raise SystemExit(0)
