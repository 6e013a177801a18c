"""Files that the operator names, as text."""

import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from linkwise.cli.errors import BadInputError


def read_text(option: str, path: str) -> str:
    """Read a file; `-` is standard input. Errors name *option*."""
    where = shown(option, path)
    if path == "-":
        return _decode(where, sys.stdin.buffer.read())
    try:
        return _decode(where, Path(path).read_bytes())
    except OSError as error:
        raise BadInputError(f"{where}: {error.strerror}") from None


def shown(option: str, path: str) -> str:
    """Return the file's name for messages."""
    return f"{option} {'standard input' if path == '-' else path}"


def _decode(where: str, data: bytes) -> str:
    """Decode UTF-8, or the UTF-16 that `>` writes in Windows PowerShell."""
    utf16 = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{where}: not text: {error}") from None
