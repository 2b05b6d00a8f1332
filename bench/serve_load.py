#!/usr/bin/env python3
"""Load for a running `oasis serve` (or any server of the OpenAI API), with the standard library alone.

    serve_load.py load --url http://127.0.0.1:8000 --streams 8 --seconds 60 --leave 0.2
        So many streams at once; a share of the clients leaves in the middle. Prints errors, tokens/s, percentiles of the
        time to the first token, and memory and gauges of the server before and after.
    serve_load.py throughput --streams 8
        Output tokens/s of so many streams together, and of one alone.
    serve_load.py ttft --prompt-tokens 2000
        Time to the first token of a prompt that is new, 90% cached, and cached whole.
    serve_load.py gap --prompt-tokens 2000
        The pauses between the tokens of a stream, alone and while a prompt of that length is read beside it.

Prints JSON. Exit status 1 if a request failed that should not have.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.parse
import urllib.request

WORDS = ("time river stone light garden winter letter music ocean window paper market forest silver engine story "
         "morning shadow bridge island captain teacher village signal").split()


class Failed(Exception):
    pass


async def stream(address, body, leave_after=None):
    """One streamed completion: (seconds to the first token, seconds, output tokens, left early). Raises Failed."""
    begin = time.monotonic()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address)
        data = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **body}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        await writer.drain()
        status = (await reader.readline()).decode("latin-1").split(" ")
        if len(status) < 2 or status[1] != "200":
            rest = (await reader.read(4000)).decode(errors="replace").partition("\r\n\r\n")[2]
            raise Failed(f"{status[1] if len(status) > 1 else status}: {rest[:150]}")
        first, tokens, pieces = None, None, 0
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue  # headers, sizes of chunks, blank lines
            payload = line[6:].strip()
            if payload == b"[DONE]":
                break
            chunk = json.loads(payload)
            if "error" in chunk:
                raise Failed(chunk["error"]["message"])
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            if any(c.get("text") for c in chunk["choices"]):
                pieces += 1
                first = first or time.monotonic() - begin
            if leave_after is not None and pieces >= leave_after:
                return first, time.monotonic() - begin, pieces, True
        if tokens is None:
            raise Failed("the stream broke off")
        return first, time.monotonic() - begin, tokens, False
    except (OSError, asyncio.IncompleteReadError, ValueError) as e:
        raise Failed(f"{type(e).__name__}: {e}") from e
    finally:
        if writer:
            writer.close()


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return answer.read().decode()


def gauges(url):
    """What must be the same before and after."""
    out = {}
    for line in get(url, "/metrics").splitlines():
        name, _, value = line.rpartition(" ")
        bare = name.split("{")[0]
        if bare in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                    "oasis_capacity_blocks_reserved") or 'state="referenced"' in name:
            out[bare] = out.get(bare, 0) + float(value)
        if bare == "process_resident_memory_bytes":
            out["rss_MiB"] = round(float(value) / 2**20, 1)
    return out


def idle_gauges(url):
    """The same, when all that runs has ended (at most a minute)."""
    for _ in range(600):
        values = gauges(url)
        if not values.get("vllm:num_requests_running") and not values.get("vllm:num_requests_waiting"):
            break
        time.sleep(0.1)
    return gauges(url)


def percentiles(values):
    values = sorted(values)
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))], 4) if values else None
    return {"p50": at(.5), "p90": at(.9), "p99": at(.99), "samples": len(values)}


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def load(options, address):
    rng = random.Random(options.seed)
    shared = text(rng, options.prompt_words)
    before = gauges(options.url)
    begin = time.monotonic()
    end = begin + options.seconds
    done, left, errors, tokens = [], 0, {}, 0

    async def client():
        nonlocal left, tokens
        while time.monotonic() < end:
            prompt = (shared if rng.random() < options.shared else "") + text(rng, rng.randint(4, options.prompt_words))
            length = rng.randint(8, options.max_tokens)
            leave = rng.randint(1, 8) if rng.random() < options.leave else None
            body = {"prompt": prompt, "max_tokens": length, "temperature": 0.8, "ignore_eos": True}
            try:
                first, _, count, early = await stream(address, body, leave)
                tokens += count
                left += early
                if first is not None:
                    done.append(first)
            except Failed as e:
                errors[str(e)[:200]] = errors.get(str(e)[:200], 0) + 1
                await asyncio.sleep(0.2)

    await asyncio.gather(*[client() for _ in range(options.streams)])
    seconds = time.monotonic() - begin
    after = idle_gauges(options.url)
    held = {k: v for k, v in after.items() if k != "rss_MiB" and v != before.get(k)}
    print(json.dumps({"streams": options.streams, "seconds": round(seconds, 1), "requests": len(done), "left_early": left,
                      "errors": errors, "tokens_per_second": round(tokens / seconds, 1), "ttft_seconds": percentiles(done),
                      "before": before, "after": after, "not_back": held}, indent=2))
    return 1 if errors or held else 0


async def throughput(options, address):
    rng = random.Random(options.seed)

    async def run(streams):
        bodies = [{"prompt": text(rng, options.prompt_words), "max_tokens": options.max_tokens, "temperature": 0,
                   "ignore_eos": True} for _ in range(streams)]
        begin = time.monotonic()
        results = await asyncio.gather(*[stream(address, body) for body in bodies])
        return sum(r[2] for r in results) / (time.monotonic() - begin)

    await run(1)  # warm
    one, many = await run(1), await run(options.streams)
    print(json.dumps({"one": round(one, 1), f"{options.streams}": round(many, 1), "ratio": round(many / one, 2)}, indent=2))
    return 0


async def ttft(options, address):
    rng = random.Random(options.seed + int(time.time()))
    results = {"new": [], "90% cached": [], "all cached": []}
    for _ in range(options.repeat):
        prompt = [rng.randrange(1000, 20000) for _ in range(options.prompt_tokens)]
        tail = options.prompt_tokens // 10
        other = prompt[:-tail] + [rng.randrange(1000, 20000) for _ in range(tail)]
        for name, ids in (("new", prompt), ("90% cached", other), ("all cached", other)):
            first, _, _, _ = await stream(address, {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
            results[name].append(first)
    print(json.dumps({name: percentiles([v for v in values if v]) for name, values in results.items()}, indent=2))
    return 0


async def gap(options, address):
    rng = random.Random(options.seed + int(time.time()))
    times = []

    async def listen():
        # Long enough to be there all the time; it is left at the end.
        reader, writer = await asyncio.open_connection(*address)
        data = json.dumps({"prompt": "Once upon a time", "max_tokens": 100000, "ignore_eos": True, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                     % (len(data), data))
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
        finally:
            writer.close()

    listener = asyncio.create_task(listen())
    while len(times) < 60 and not listener.done():
        await asyncio.sleep(0.05)
    begin = time.monotonic()
    prompt = [rng.randrange(1000, 20000) for _ in range(options.prompt_tokens)]
    first, _, _, _ = await stream(address, {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
    end = time.monotonic()
    if listener.done():
        raise Failed("the stream ended before the prompt was read: start the server with a larger --context")
    listener.cancel()
    pauses = lambda low, high: [b - a for a, b in zip(times, times[1:]) if low <= b <= high]
    alone, beside = pauses(0, begin), pauses(begin, end)
    print(json.dumps({"prompt_seconds": round(first or end - begin, 2), "alone": {**percentiles(alone), "max": round(max(alone), 4)},
                      "beside": {**percentiles(beside), "max": round(max(beside), 4)}}, indent=2))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["load", "throughput", "ttft", "gap"])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30, help="load: for how long")
    parser.add_argument("--leave", type=float, default=0.2, help="load: share of the clients that leave in the middle")
    parser.add_argument("--shared", type=float, default=0.5, help="load: share of the prompts that begin alike")
    parser.add_argument("--prompt-words", type=int, default=60)
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="ttft, gap: length of the prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3, help="ttft: prompts of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.url = options.url.rstrip("/")
    parts = urllib.parse.urlsplit(options.url)
    try:
        code = asyncio.run({"load": load, "throughput": throughput, "ttft": ttft, "gap": gap}[options.mode](
            options, (parts.hostname, parts.port or 80)))
    except (Failed, OSError) as e:
        print(f"serve_load: {e}", file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
