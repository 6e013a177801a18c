"""What commands print. Names and messages that others wrote may hold anything; a terminal would
obey it: colours, titles, text from right to left, or rows that are none."""

import shutil
import sys

import click
import msgspec

from linkwise.drawing.words import printable

output_option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")


def terminal_width() -> int | None:
    """The letters of a line on a terminal; None in a pipe, where lines are whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def say(text: str | bytes, *, err: bool = False, nl: bool = False) -> None:
    """Print lines."""
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text
    click.echo(printable(whole, kept="\n"), err=err, nl=nl)
