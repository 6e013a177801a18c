"""`kubectl linkwise ui`: which page kubectl is to proxy, and what the user reads."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from flask import Flask

from linkwise.cli.kubectl import main
from linkwise.extender.run.page.live_page import LivePage
from linkwise.extender.run.page.routes import page_routes
from linkwise.serving.fair_share import FairShare
from tests.cli.api_proxy import Proxy, served, write_kubeconfig
from tests.extender.show.page.example_cluster import one_node

PATH = "/api/v1/namespaces/kube-system/services/linkwise-extender:http/proxy/ui/"
SERVES = "print('Starting to serve on 127.0.0.1:4711', flush=True)"


@pytest.fixture(autouse=True)
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """An API server in front of an extender with one node."""
    cluster, app, share = one_node(), Flask(__name__, static_folder=None), FairShare(1.0)
    live = LivePage(lambda: cluster.core.snapshot(cluster.now))
    app.register_blueprint(page_routes(live, lambda: share.of("")))
    monkeypatch.setattr("webbrowser.open", lambda url: (tmp_path / "opened").write_text(url))
    with served(app) as proxy:
        path = write_kubeconfig(tmp_path / "config", proxy.url)
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setattr("linkwise.cli.proxied.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        yield proxy


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a kubectl on the PATH that writes its arguments to a file and then does what it is
    given."""

    def put(code: str) -> Path:
        program, asked = tmp_path / "kubectl", tmp_path / "asked"
        lines = (
            f"#!{sys.executable}",
            "import pathlib, sys",
            f"pathlib.Path({str(asked)!r}).write_text('\\n'.join(sys.argv[1:]))",
            code,
        )
        program.write_text("\n".join(lines))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return asked

    return put


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ui", *arguments])


def test_it_says_where_the_page_is_and_opens_it(
    kubectl: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = kubectl(SERVES)
    ended = run("--port", "4711", "--context", "here")
    url = f"http://127.0.0.1:4711{PATH}"
    assert (ended.exit_code, ended.stdout) == (0, f"{url}\nServed until you press Ctrl-C.\n")
    assert (tmp_path / "opened").read_text() == url
    assert asked.read_text().splitlines() == [
        "proxy",
        "--port=4711",
        "--accept-paths=^/api/v1/namespaces/kube\\-system/services/linkwise\\-extender:http/proxy/ui/",
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        "--context=here",
    ]


def test_no_browser_is_opened_if_the_user_does_not_want_one(
    kubectl: Callable[[str], Path], tmp_path: Path
) -> None:
    kubectl(SERVES)
    assert run("--no-browser").exit_code == 0
    assert not (tmp_path / "opened").exists()


def test_if_kubectl_cannot_listen_its_words_are_the_reason(
    kubectl: Callable[[str], Path],
) -> None:
    kubectl("sys.exit('error: listen tcp 127.0.0.1:80: bind: permission denied')")
    ended = run("--port", "80")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr == (
        "linkwise: kubectl proxy did not start: "
        "error: listen tcp 127.0.0.1:80: bind: permission denied\n"
    )


def test_who_may_not_see_the_page_reads_which_right_it_takes(
    kubectl: Callable[[str], Path], proxy: Proxy
) -> None:
    asked = kubectl(SERVES)
    proxy.refusal = ("403 Forbidden", "Forbidden", "no")
    ended = run()
    assert ended.exit_code == 1
    assert ended.stderr.startswith("linkwise: you may not ask the extender: no. A Role in ")
    assert not asked.exists()


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = run()
    assert (ended.exit_code, ended.stderr) == (2, "linkwise: kubectl is not on the PATH\n")
