"""A stand-in for the Hugging Face hub: the part of its API that fetches models.

Its shapes are those that ``huggingface_hub`` asks for and reads: ``/api/models/OWNER/REPO``, its
tree, and ``/OWNER/REPO/resolve/COMMIT/FILE``, which for large files leads to another host.
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants
from huggingface_hub.utils import _detect_agent

COMMIT = "1" * 40
LARGE = (".gguf", ".safetensors")


class Hub:
    """What the stand-in holds and does wrong, and what was asked of it.

    ``breaks`` are numbers of bytes after which the next answers with content end; ``continues`` is
    whether a part of a file comes where one is asked for; ``status`` is what it answers with, by
    path; ``wrong`` replaces content that was promised otherwise.
    """

    def __init__(self):
        self.repositories, self.asked = {}, []
        self.breaks, self.status, self.wrong, self.headers = [], {}, {}, {}
        self.pause, self.tokens, self.continues = None, {}, True

    def add(self, repo, files, commit=COMMIT):
        self.repositories[repo] = (commit, dict(files))

    def paths(self, method="GET"):
        return [path for verb, path, _ in self.asked if verb == method]

    def content(self, sha256):
        for _, files in self.repositories.values():
            for name, data in files.items():
                if hashlib.sha256(data).hexdigest() == sha256:
                    return self.wrong.get(name, data)
        return None


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def describe(name, data):
    told = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
    if name.endswith(LARGE):
        sha256 = hashlib.sha256(data).hexdigest()
        told["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
    return told


def describe_in_tree(name, data):
    told = {"type": "file", "path": name, "size": len(data), "oid": git_id(data)}
    if name.endswith(LARGE):
        sha256 = hashlib.sha256(data).hexdigest()
        told["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return told


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        hub.tokens[path] = self.headers.get("Authorization")
        words = path.strip("/").split("/")
        if path in hub.status:
            message = {"X-Error-Message": "as the test asked"}
            return self.send(hub.status[path], b"{}", message | hub.headers)
        if words[0] == "content":
            return self.send_content(hub.content(words[1]))
        if words[:2] == ["api", "models"]:
            return self.send_api("/".join(words[2:4]), words[4:])
        if words[2:3] == ["resolve"]:
            return self.send_file("/".join(words[:2]), words[3], "/".join(words[4:]))
        return self.send(404, b"{}")

    def send_api(self, repo, rest):
        if repo not in self.server.hub.repositories:
            return self.send(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        commit, files = self.server.hub.repositories[repo]
        if rest[:1] == ["tree"]:
            told = [describe_in_tree(name, data) for name, data in sorted(files.items())]
        else:
            blobs = "blobs" in parse_qs(urlsplit(self.path).query)
            siblings = [describe(name, data) for name, data in sorted(files.items())]
            if not blobs:
                siblings = [{"rfilename": one["rfilename"]} for one in siblings]
            told = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
        return self.send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def send_file(self, repo, revision, name):
        commit, files = self.server.hub.repositories.get(repo, (None, {}))
        if commit is None:
            return self.send(401, b"{}")
        if revision not in ("main", commit) or name not in files:
            code = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            return self.send(404, b"{}", code)
        data = files[name]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not name.endswith(LARGE):
            return self.send(200, data, headers | {"ETag": f'"{git_id(data)}"'})
        sha256 = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
        headers |= {
            "ETag": f'"{git_id(data)}"',
            "Location": f"{self.server.hub.store}/content/{sha256}",
        }
        return self.send(302, b"", headers)

    def send_content(self, data):
        begin = 0
        if (given := self.headers.get("Range")) and self.server.hub.continues:
            begin = int(given.removeprefix("bytes=").partition("-")[0])
        if begin >= len(data):
            return self.send(416, b"")
        end = self.server.hub.breaks.pop(0) if self.server.hub.breaks else len(data)
        part = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
        self.send_response(206 if begin else 200)
        for name, value in {**part, "Content-Length": str(len(data) - begin)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.server.hub.pause is not None:
            self.server.hub.pause.wait(10)
        self.wfile.write(data[begin : begin + end])
        if begin + end < len(data):
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    def send(self, status, body, headers=()):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Say nothing: clients go away as they like."""


@contextmanager
def serving():
    """Run a stand-in on a free port of this machine; give what it holds, with its ``address``."""
    hub = Hub()
    server = Server(("127.0.0.1", 0), Answers)
    server.hub = hub
    port = server.server_address[1]
    hub.address, hub.store = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def taken_for_the_hub(folder, monkeypatch):
    """Run a stand-in that this process takes for the hub, with a cache and a home of its own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(folder / "agents.json"))
    monkeypatch.setattr(_detect_agent, "_registry", None)
    with serving() as hub:
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub
