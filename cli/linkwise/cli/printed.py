"""What commands print. Names and messages that others wrote may hold anything; a terminal would
obey it: colours, titles, text from right to left, or rows that are none."""

import json

import click


def printable(text: str, kept: str = "") -> str:
    """Return *text* with each character that cannot be seen as an escape of JSON; those in *kept*
    stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else json.dumps(c)[1:-1] for c in text)


def say(text: str | bytes, *, err: bool = False, nl: bool = False) -> None:
    """Print lines."""
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text
    click.echo(printable(whole, kept="\n"), err=err, nl=nl)
