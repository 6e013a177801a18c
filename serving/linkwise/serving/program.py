"""What all programs do alike: their logs, and their end by a signal."""

import logging
import signal
from types import FrameType
from typing import NoReturn

import click

log = logging.getLogger(__name__)

LOG_LEVEL = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least severe messages to log.",
)


def begin_log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # the client logs what matters


def exit_on_signals() -> None:
    """Have SIGTERM and SIGINT raise SystemExit in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    log.info("%s: ending", signal.Signals(number).name)
    raise SystemExit(0)
