#!/usr/bin/env python3
"""A reasoning workload on a GPU, from measured step times: many short prompts, very long outputs.

  bench/gpu_reasoning.py [--oasis build/cuda/bin/oasis] [--sequences 64 128 256] [--outputs 16384] [--memory-gib 72]

16K steps of many sequences take minutes, so they are not run. Steps are measured at a few batches and contexts
(`oasis bench --synthetic`: the shapes of Qwen3-8B and an EAGLE-3 head, random weights, R = 1.5 K, so many misses a head and
step as --misses says), a linear model of a step's time is fitted to each mode, its largest error printed, and the workload
is played through it: sequences of one prompt length start together, dense until their blocks outgrow R, sparse after that. A
sequence that finds no room waits or is preempted, the latest first; a dense one is then read again from its start, as
engines without a second tier do, a tiered one comes back as it was. The dense rows are the same with every sequence dense to
its end: with this engine's dense steps, and with dense vLLM's measured ones.
"""

import argparse
import json
import math
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, K, RATIO, BLOCK = 256, 128, 1.5, 16
TOKEN_BYTES = 2 * 36 * 8 * 128 * 2        # K and V of a token
SUMMARY_BYTES = 2 * 36 * 8 * 128 * 2      # of a block
SET_BYTES = (int(K * RATIO) + 3) * BLOCK * TOKEN_BYTES
TURNS_SPARSE = int(K * RATIO) * BLOCK     # tokens
# vLLM 0.26, the same shapes, one H200: (batch, tokens of each, ms a step); prefill of 16K prompts, tokens a second.
VLLM = [(1, 4096, 5.39), (8, 4096, 6.59), (16, 4096, 7.50), (1, 16384, 5.68), (8, 16384, 9.72), (16, 16384, 14.2),
        (24, 16384, 19.4), (32, 16384, 22.9), (48, 16384, 31.2)]
PREFILL_RATE = 31000
DENSE_POINTS = [(8, 2048), (64, 2048), (16, 8192), (16, 16384)]
SPARSE_POINTS = [(16, 4096), (64, 4096), (64, 8192), (64, 16384), (94, 16384)]


def measure(args, batch, context, dense):
    """ms a step, GiB in use."""
    command = [args.oasis, "bench", "--config", str(ROOT / "bench/configs/qwen3-8b.json"), "--weights", "random:1", "--device",
               "cuda", "--synthetic", "--prompt-tokens", str(context), "--batch", str(batch), "-n", str(args.steps), "--warm-up",
               "8", "--json"]
    command += ["--attention", "dense", "--draft", "none"] if dense else [
        "--attention", "sparse", "--draft", "eagle3:random:2", "--resident-ratio", str(RATIO), "--misses", str(args.misses)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)["decode"]["step_ms_median"]


def fit(points):
    """Least squares of ms = a + b batch + c tokens over (batch, context, ms): (a, b, c), largest relative error."""
    rows = [(1.0, float(n), float(n * c)) for n, c, _ in points]
    weights = [1 / ms for _, _, ms in points]  # relative errors count
    m = [[sum(w * w * r[i] * r[j] for r, w in zip(rows, weights)) for j in range(3)] +
         [sum(w * w * r[i] * p[2] for r, w, p in zip(rows, weights, points))] for i in range(3)]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda k: abs(m[k][i]))
        m[i], m[pivot] = m[pivot], m[i]
        for k in range(3):
            if k != i:
                f = m[k][i] / m[i][i]
                m[k] = [x - f * y for x, y in zip(m[k], m[i])]
    model = [m[i][3] / m[i][i] for i in range(3)]
    worst = max(abs(sum(x * y for x, y in zip(model, r)) / p[2] - 1) for r, p in zip(rows, points))
    return model, worst


def play(sequences, outputs, room, dense_step, sparse_step):
    """Seconds, preemptions, most running at once. sparse_step None: dense to the end. Sequences advance 64 tokens at a time."""
    def bytes_of(tokens):
        if sparse_step is None or tokens <= TURNS_SPARSE:
            return tokens * TOKEN_BYTES
        return SET_BYTES + math.ceil(tokens / BLOCK) * SUMMARY_BYTES

    quantum, seconds, preemptions, most = 64, 0.0, 0, 0
    waiting = [PROMPT] * sequences  # tokens of each
    running = []
    while waiting or running:
        while waiting and sum(map(bytes_of, running)) + bytes_of(waiting[-1] + quantum) <= room:
            tokens = waiting.pop()
            if tokens == PROMPT or sparse_step is None:
                seconds += tokens / PREFILL_RATE
            running.append(tokens)
        while sum(bytes_of(t + quantum) for t in running) > room:
            waiting.append(running.pop())
            preemptions += 1
        most = max(most, len(running))
        for model, some in ((dense_step, [t for t in running if sparse_step is None or t <= TURNS_SPARSE]),
                            (sparse_step, [t for t in running if sparse_step is not None and t > TURNS_SPARSE])):
            if some:  # sequences of both kinds share a step, whose fixed part is then counted once
                fixed = model[0] if len(some) == len(running) or model is sparse_step else 0
                seconds += quantum * (fixed + model[1] * len(some) + model[2] * sum(some)) / 1e3
        running = [t + quantum for t in running if t + quantum < PROMPT + outputs]
    return seconds, preemptions, most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oasis", default=str(ROOT / "build/cuda/bin/oasis"))
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--outputs", type=int, default=16384, help="tokens that each sequence generates")
    parser.add_argument("--memory-gib", type=float, default=72, help="of the GPU, weights included")
    parser.add_argument("--misses", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    models = {"vLLM, dense": fit(VLLM)}
    for name, points, dense in (("dense", DENSE_POINTS, True), ("tiered", SPARSE_POINTS, False)):
        models[name] = fit([(n, c, measure(args, n, c, dense)) for n, c in points])
    for name, (model, worst) in models.items():
        print(f"step of {name}: {model[0]:.2f} + {model[1]:.4f} batch + {model[2] * 1e6:.2f}e-6 tokens ms, at most {worst:.0%} off")
    # Weights and head, the largest step's activations; the rest is for K/V, as dense vLLM leaves it.
    room = (args.memory_gib - 15.3 - .9 - .8) * 2**30
    print(f"\n{PROMPT}-token prompts, {args.outputs} tokens of output each, {args.memory_gib:g} GiB, {args.misses} misses a head and step")
    print("| sequences | engine | seconds | tok/s | x vLLM | preemptions | at once |")
    print("|---|---|---|---|---|---|---|")
    for n in args.sequences:
        total, peer = n * args.outputs, None
        for name, dense, sparse in (("vLLM, dense", "vLLM, dense", None), ("dense", "dense", None), ("tiered", "dense", "tiered")):
            seconds, preemptions, most = play(n, args.outputs, room, models[dense][0], sparse and models[sparse][0])
            peer = peer or seconds
            print(f"| {n} | {name} | {seconds:.0f} | {total / seconds:.0f} | {peer / seconds:.2f} | {preemptions} | {most} |")


if __name__ == "__main__":
    main()
