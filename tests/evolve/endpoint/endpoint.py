"""A model's endpoint on this machine, which answers by a script: what tests of proposals share."""

import contextlib
import http.server
import json
import os
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
NAIVE = ROOT / "examples" / "cpu_attention" / "naive.cpp"
TINY = ["--shape", "1x1x64x32"]
PATIENCE = 120


def environment(**more):
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("ATTUNE_LLM_KEY", "OPENAI_API_KEY") and not k.lower().endswith("_proxy")
    }
    return clean | more


def attune(*args, cwd, env=None, timeout=200):
    return subprocess.run(
        [ATTUNE, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env=env or environment(),
    )


def edit(search, replace):
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


COMMENT = "  // 1. Scores of the keys that the row may see, and the largest of them."


def remark(text):
    """A harmless answer; each is another text."""
    return edit(COMMENT, f"{COMMENT}\n  // {text}")


class Endpoint(http.server.ThreadingHTTPServer):
    """Answers each request by the next function of a script, and then none until it is closed."""

    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.times = list(script), [], []
        self.done, self.closing = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def close(self):
        self.closing.set()
        self.shutdown()
        self.thread.join()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # the client went away, as it should


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.lock:
            server.requests.append((self.path, dict(self.headers), json.loads(body)))
            server.times.append(time.monotonic())
            step = server.script.pop(0) if server.script else None
        if step is None:
            server.done.set()
            server.closing.wait(PATIENCE)
            return
        step(self)

    def reply(self, status, body=b"", kind="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def event(data):
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(text):
    return event({"choices": [{"delta": {"content": text}}]})


def stream(text, end=True):
    def step(handler):
        body = b": hello\n\n" + b"".join(delta(text[i : i + 17]) for i in range(0, len(text), 17))
        if end:
            body += event(
                {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 200}}
            )
            body += b"data: [DONE]\n\n"
        handler.reply(200, body, "text/event-stream")

    return step


def plain(text):
    body = json.dumps(
        {
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 20},
        }
    ).encode()
    return lambda handler: handler.reply(200, body)


def status(code, body=b"", kind="application/json", **headers):
    return lambda handler: handler.reply(code, body, kind, **headers)


def silent(handler):
    handler.send_response(200)
    handler.end_headers()
    handler.server.closing.wait(3)


def dripping(handler):
    """A byte now and then, for ever: never silent, and never done."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.closing.wait(0.1):
        handler.wfile.write(b": still there\n\n")


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:  # until the client has had enough
        handler.wfile.write(delta("x" * 60000))


@contextlib.contextmanager
def serving(script):
    server = Endpoint(script)
    try:
        yield server
    finally:
        server.close()
