"""The example hooks against a real Alertmanager and a real web server."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.adapters.notify import run_site_command
from fleetctl.store.init import init
from fleetctl.store.policy_file import read_policy

MARK = "r-20261201-a7"


@dataclass(frozen=True)
class Site:
    """An inventory as `fleetctl init` lays it down, with the hooks that it names turned on, and those beside it."""

    directory: Path
    home: Path

    def run(self, hook: str, node: str = "gpu001.a", reason: str = "driver 570 -> 580") -> str:
        command = getattr(read_policy(self.directory).policy.hooks, hook)
        told = {"FLEETCTL_NODE": node, "FLEETCTL_ROLLOUT": MARK, "FLEETCTL_REASON": reason, "HOME": str(self.home)}
        return asyncio.run(run_site_command(command, told, 30))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    directory = tmp_path / "inventory" / "train"
    shutil.copytree(Path(__file__).parents[2] / "hooks", tmp_path / "hooks")
    init(directory)
    file = directory / "fleet.yml"
    lines = file.read_text().splitlines()
    begin = lines.index("# hooks:")
    lines[begin : begin + 4] = [line.removeprefix("# ") for line in lines[begin : begin + 4]]
    file.write_text("\n".join(lines))
    (tmp_path / "home").mkdir()
    return Site(directory, tmp_path / "home")


@pytest.fixture
def alertmanager(site: Site, tmp_path: Path) -> Iterator[str]:
    port, cluster = free_port(), free_port()
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    url = f"http://127.0.0.1:{port}"
    name_alertmanager(site, url)
    argv = ["prometheus-alertmanager", f"--config.file={config}", f"--storage.path={tmp_path / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", f"--cluster.listen-address=127.0.0.1:{cluster}"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(url)
            yield url
        finally:
            server.kill()


def test_the_alerts_of_a_node_are_silenced_for_its_change_and_those_of_others_are_not(
    site: Site, alertmanager: str
) -> None:
    post(f"{alertmanager}/api/v2/alerts", [{"labels": {"alertname": "Down", "instance": name}} for name in (
        "gpu001.a:9100", "gpu001.a", "gpu0012a:9100", "gpu001xa",
    )])  # fmt: skip
    post(f"{alertmanager}/api/v2/silences", silence_of_somebody(r"gpu001\.a(:[0-9]+)?"))

    assert site.run("before_drain") == ""
    silences = [one for one in active_silences(alertmanager) if one["createdBy"] == "fleetctl"]
    assert [one["comment"] for one in silences] == [f"{MARK} driver 570 -> 580"]
    quiet = {alert["labels"]["instance"] for alert in suppressed_by(alertmanager, silences[0]["id"])}
    assert quiet == {"gpu001.a", "gpu001.a:9100"}

    assert site.run("after_undrain") == ""
    assert [one["createdBy"] for one in active_silences(alertmanager)] == ["somebody"]
    assert site.run("after_undrain") == "", "nothing left to end"


def test_an_alertmanager_that_does_not_answer_is_told(site: Site) -> None:
    name_alertmanager(site, f"http://127.0.0.1:{free_port()}")
    assert "connection refused" in site.run("before_drain")
    assert "connection refused" in site.run("after_undrain")


def test_a_quarantine_is_posted_to_the_chat(site: Site) -> None:
    reason = 'verify: "GPU 3" has 2 rows to remap\nand $(id) \\'
    with listening() as (url, heard):
        name_chat(site, url)
        assert site.run("on_quarantine", reason=reason) == ""
    assert heard == [{"text": f"gpu001.a is quarantined by rollout {MARK}: {reason}"}]


def test_a_chat_that_does_not_answer_is_told_without_its_address(site: Site) -> None:
    name_chat(site, f"http://127.0.0.1:{free_port()}/T0/secret")
    said = site.run("on_quarantine")
    assert "refused" in said
    assert "secret" not in said
    name_chat(site, "no address, secret")
    assert "secret" not in site.run("on_quarantine")
    (site.home / ".config" / "fleetctl" / "chat").unlink()
    assert "No such file" in site.run("on_quarantine")


def name_alertmanager(site: Site, url: str) -> None:
    for where in ("amtool/config.yml", "prometheus/amtool.yml"):
        file = site.home / ".config" / where
        file.parent.mkdir(parents=True)
        file.write_text(f"alertmanager.url: {url}\n")


def name_chat(site: Site, url: str) -> None:
    file = site.home / ".config" / "fleetctl" / "chat"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{url}\n")


@contextmanager
def listening() -> Iterator[tuple[str, list[Any]]]:
    """A web server for the time of the block: its address, and what is posted there."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", heard
        server.shutdown()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, f"no Alertmanager at {url}"
            time.sleep(0.1)


def post(url: str, content: Any) -> None:
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode(), headers), timeout=10).close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def silence_of_somebody(instance: str) -> dict[str, Any]:
    matcher = {"name": "instance", "value": instance, "isRegex": True, "isEqual": True}
    return {
        "matchers": [matcher], "startsAt": "2026-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z",
        "createdBy": "somebody", "comment": "mine",
    }  # fmt: skip


def active_silences(url: str) -> list[dict[str, Any]]:
    return [one for one in get(f"{url}/api/v2/silences") if one["status"]["state"] == "active"]


def suppressed_by(url: str, silence: str) -> list[dict[str, Any]]:
    return [alert for alert in get(f"{url}/api/v2/alerts") if silence in alert["status"]["silencedBy"]]
