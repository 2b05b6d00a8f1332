"""What the server's tests share: the program on a free port, and a client that can misbehave."""

import contextlib
import http.client
import json
import pathlib
import re
import socket
import subprocess
import threading
import time
import urllib.parse

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TIMEOUT_S = 120  # of one answer; far more than it takes, for a machine that is busy


class Server:
    """`oasis serve` with the small model. Its log lines are kept."""

    def __init__(self, oasis, *flags):
        self.process = subprocess.Popen([oasis, "serve", "-m", str(MODEL), "--port", "0", *map(str, flags)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        match = re.match(r"serving (\S+) on (http://\S+)", line)
        if not match:
            self.process.wait(TIMEOUT_S)
            raise RuntimeError(f"no server: {line!r} {''.join(self.log)}")
        self.model, self.url = match.groups()
        parts = urllib.parse.urlsplit(self.url)
        self.address = (parts.hostname, parts.port)

    def stop(self):
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def request(self, method, path, body=None, headers=None):
        """(status, headers, bytes). A body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path):
        status, _, body = self.request("GET", path)
        return status, json.loads(body)

    def post(self, path, body, headers=None):
        """(status, JSON)."""
        status, _, answer = self.request("POST", path, body, headers)
        return status, json.loads(answer)

    def complete(self, **fields):
        status, answer = self.post("/v1/completions", {"temperature": 0, **fields})
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def chat(self, content="Say hello.", **fields):
        body = {"temperature": 0, "messages": [{"role": "user", "content": content}], **fields}
        status, answer = self.post("/v1/chat/completions", body)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def open_stream(self, path, body):
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        connection.request("POST", path, json.dumps({"temperature": 0, "stream": True, **body}).encode())
        return connection, connection.getresponse()

    def stream(self, path, body):
        """All chunks of an answer, the last of them "[DONE]"."""
        connection, answer = self.open_stream(path, body)
        with contextlib.closing(connection):
            if answer.status != 200:
                raise AssertionError(f"{answer.status}: {answer.read()}")
            return list(events(answer))

    def metrics(self):
        """name{labels} -> value, and the sum over labels under the bare name."""
        _, _, body = self.request("GET", "/metrics")
        values = {}
        for line in body.decode().splitlines():
            if line.startswith("#"):
                continue
            key, value = line.rsplit(" ", 1)
            values[key] = float(value)
            name = key.split("{")[0]
            values[name] = values.get(name, 0) + float(value)
        return values

    def raw(self, data, wait_s=10, shutdown=False):
        """Sends bytes, reads until the server closes or `wait_s` have passed."""
        with socket.create_connection(self.address, timeout=wait_s) as s:
            received = b""
            with contextlib.suppress(OSError):
                s.sendall(data)
                if shutdown:
                    s.shutdown(socket.SHUT_WR)
                while piece := s.recv(65536):
                    received += piece
            return received

    def wait_until(self, condition, seconds=30):
        """Polls /metrics until the condition holds; returns them."""
        end = time.monotonic() + seconds
        while True:
            metrics = self.metrics()
            if condition(metrics) or time.monotonic() > end:
                return metrics
            time.sleep(0.02)


def events(answer):
    """The payloads of a stream of server-sent events: JSON, or "[DONE]"."""
    while line := answer.readline():
        line = line.strip()
        if not line:
            continue
        if not line.startswith(b"data: "):
            raise AssertionError(f"not an event: {line!r}")
        payload = line[len(b"data: "):]
        yield "[DONE]" if payload == b"[DONE]" else json.loads(payload)


def text_of(chunks):
    """What the choices of a stream say, by index."""
    texts = {}
    for chunk in chunks:
        for choice in chunk["choices"] if chunk != "[DONE]" else []:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts


def finish_of(chunks):
    return {c["index"]: c["finish_reason"] for chunk in chunks if chunk != "[DONE]" for c in chunk["choices"]
            if c["finish_reason"]}
