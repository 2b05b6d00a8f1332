#!/usr/bin/env python3
"""Throws damaged requests at the server: mutated bodies and broken HTTP.

Usage: fuzz_http.py PATH_OF_OASIS [--count N] [--seed S]. Whatever comes in, the server lives, every answer that is no
success is an error in JSON, and at the end it still answers and holds nothing. Skipped (exit 0) without the small model.
"""

import argparse
import json
import random
import sys

from client import MODEL, Server

COMPLETION = {"prompt": "Once upon", "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2,
              "stop": ["a", "\n"], "stop_token_ids": [5], "logit_bias": {"5": 1.5}, "logprobs": 2, "echo": True,
              "seed": 3, "stream": False, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
              "ignore_eos": False, "oasis": {"stats": True, "follow": [1, 2]}, "return_progress": True}
CHAT = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": None, "tool_calls": [
                         {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                     {"role": "tool", "tool_call_id": "1", "content": "ok"}],
        "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 2, "stream": True,
        "stream_options": {"include_usage": True}, "tool_choice": "auto", "chat_template_kwargs": {"x": 1},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "text"}}
TOKENIZE, DETOKENIZE = {"prompt": "a b", "return_token_strs": True}, {"tokens": [1, 2, 3]}
PATHS = [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/tokenize", TOKENIZE), ("/detokenize", DETOKENIZE)]
VALUES = [None, True, 0, -1, 1, 1.5, 1e308, -0.0, 2**31, 2**63, 2**64, 10**30, "", "x", "\0", "\ud83d\ude00", "é" * 50,
          "<|im_end|>", [], [[]], {}, {"a": {}}, [None], [2**40], "9" * 400, ["x"] * 200, [0] * 2000]


def mutate_value(value, rng):
    """The same with one part of it replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        out = dict(value)
        kind = rng.random()
        if kind < 0.15:
            del out[key]
        elif kind < 0.25:
            out[rng.choice(["", "x", "prompt", "n", "\0"])] = rng.choice(VALUES)
        else:
            out[key] = mutate_value(value[key], rng)
        return out
    if isinstance(value, list) and value and rng.random() < 0.7:
        out = list(value)
        i = rng.randrange(len(out))
        if rng.random() < 0.2:
            out.insert(i, rng.choice(VALUES))
        else:
            out[i] = mutate_value(out[i], rng)
        return out
    return rng.choice(VALUES)


def mutate_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:at + rng.randint(1, 20)]
        elif kind == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        elif kind == 3:
            data[at:at] = data[at:at + rng.randint(1, 30)]
        else:
            data[at:at] = rng.choice([b"\r\n", b"\n", b"\0", b"{", b"[[[[", b"\"", b"Content-Length: 7\r\n", b"\\u", b"1e9999",
                                      b"Transfer-Encoding: chunked\r\n", b"\xff\xfe", b"Expect: 100-continue\r\n"])
    return bytes(data)


def fields(value, rng):
    for _ in range(rng.randint(1, 3)):
        value = mutate_value(value, rng)
    return value


def body_of(rng):
    """(path, bytes of a body that may be good)."""
    path, body = rng.choice(PATHS)
    if rng.random() < 0.7:
        return path, json.dumps(fields(body, rng)).encode()
    return path, mutate_bytes(json.dumps(body).encode(), rng)


def check_answers(data, received):
    """Complete answers with a status; errors are JSON of the right shape."""
    if not received:
        return  # the server has nothing to say to what is no request, or to one that is not complete
    head, _, body = received.partition(b"\r\n\r\n")
    status_line = head.split(b"\r\n")[0]
    parts = status_line.split(b" ")
    if parts[0] != b"HTTP/1.1" or not parts[1].isdigit():
        raise AssertionError(f"no status in {status_line!r} for {data[:300]!r}")
    status = int(parts[1])
    if status == 500:
        raise AssertionError(f"{received[:500]!r} for {data[:2000]!r}")
    if status >= 400 and not data.startswith(b"HEAD"):
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        error = json.loads(body[:length])["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            raise AssertionError(f"{error} for {data[:300]!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("oasis")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not MODEL.exists():
        print("skipped: no small model")
        return
    server = Server(options.oasis, "--context", 256, "--max-sequences", 4, "--read-seconds", 1, "--body-limit", "64KiB")
    statuses = {}
    try:
        for i in range(options.count):
            rng = random.Random(options.seed * 1_000_003 + i)
            path, body = body_of(rng)
            if rng.random() < 0.75:
                data = (f"POST {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body
            else:
                method = rng.choice(["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
                target = rng.choice([path, "/health", "/metrics", "/state", "/", "/v1/models/%00%ff", "*", "/" + "a" * 300])
                data = mutate_bytes(f"{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                                    f"Content-Length: {len(body)}\r\n\r\n".encode() + body, rng)
            received = server.raw(data, wait_s=60, shutdown=rng.random() < 0.1)
            if server.process.poll() is not None:
                raise AssertionError(f"the server died of number {i}: {data!r}\n{''.join(server.log[-5:])}")
            check_answers(data, received)
            status = received[9:12].decode("latin-1") or "none"
            statuses[status] = statuses.get(status, 0) + 1
        server.complete(prompt="Still there?", max_tokens=2)
        idle = server.wait_until(lambda m: m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == 0 and
                                 m["vllm:kv_cache_usage_perc"] == 0)
        if idle["vllm:num_requests_running"] or idle["vllm:kv_cache_usage_perc"]:
            raise AssertionError("something is still held at the end")
    finally:
        code = server.stop()
    if code != 0:
        raise AssertionError(f"the server ended with {code}: {''.join(server.log[-5:])}")
    print(f"{options.count} requests, answers by status: {dict(sorted(statuses.items()))}")


if __name__ == "__main__":
    sys.exit(main())
