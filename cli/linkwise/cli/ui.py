"""Opens the live page: runs `kubectl proxy` for this one page, and shows a browser where it is.

A browser has none of kubectl's credentials. `kubectl proxy` adds them, on a port of this machine's
loopback address. Here it lets nothing through but GETs of the page.
"""

import re
import shutil
import signal
import subprocess
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import click

from linkwise.cli.errors import AskError, BadInputError
from linkwise.cli.proxied import Access, Extender

_SERVES = re.compile(r"Starting to serve on (\S+)")
_END_SECONDS = 5.0


def show_page(asked: Extender, *, port: int, browser: bool) -> None:
    """Serve the page until kubectl ends, or Ctrl-C or SIGTERM ends this program. Raises AskError,
    BadInputError."""
    asked.ask("ui", "")  # says what is missing, where a browser would show a bare status
    path = f"{asked.path}/ui/"
    with _proxy(asked.access, path, port) as (process, address):
        url = f"http://{address}{path}"
        click.echo(f"{url}\nServed until you press Ctrl-C.")
        if browser:
            webbrowser.open(url)
        process.wait()


@contextmanager
def _proxy(access: Access, path: str, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running `kubectl proxy`, and its address."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise BadInputError("kubectl is not on the PATH")
    command = [
        kubectl,
        "proxy",
        f"--port={port}",
        f"--accept-paths=^{re.escape(path)}",
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        *([f"--kubeconfig={access.kubeconfig}"] if access.kubeconfig else []),
        *([f"--context={access.context}"] if access.context else []),
    ]
    # By default SIGTERM would end this program alone, and `kubectl proxy` would keep the port.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A file takes all that kubectl says while it serves; a pipe that is not read would stop it.
    with (
        TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,
    ):
        try:
            assert process.stdout is not None, "it is a pipe"
            found = _SERVES.search(process.stdout.readline())
            if found is None:
                process.wait(_END_SECONDS)
                complaints.seek(0)
                said = " ".join(complaints.read().split())
                raise AskError(f"kubectl proxy did not start: {said}")
            yield process, found[1]
        except KeyboardInterrupt:
            pass  # as the user was told
        finally:
            process.terminate()
            signal.signal(signal.SIGTERM, before)
