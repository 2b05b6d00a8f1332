#!/usr/bin/env python3
"""Decode on a GPU at the shapes of Qwen3-8B with an EAGLE-3 head of that size, both of random weights: one table.

  bench/gpu_decode.py [--oasis build/cuda/bin/oasis] [--steps 40] [POINT ...]

A point is CONTEXT:BATCH:R/K:MISSES:SUMMARIES, for example 16384:94:1.5:2:bf16. MISSES predicted blocks a head and step are
absent and cross the link; prompts are not read, their KV is noise, and sequences share one prompt's blocks in the
capacity tier (never summaries, maps or slots). 'dense' in place of R/K reads everything, without drafts.
x dense: against dense vLLM 0.26 on the same kind of GPU with 72 GiB (docs/results.md).
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
POINTS = """
4096:1:1.5:2:bf16 16384:1:1.5:2:bf16 32768:1:1.5:2:bf16
16384:16:dense:0:bf16
16384:64:1:0:bf16 16384:64:1:7:bf16 32768:64:1:7:bf16
16384:94:1.5:2:bf16 32768:75:1.5:2:bf16 131072:30:1:2:bf16
16384:107:1.5:2:fp8 32768:90:1.5:2:fp8 131072:48:1.5:2:fp8
""".split()
DENSE_VLLM = {16384: 1235, 32768: 624, 131072: 180}  # tokens a second; the last is derived, not measured


def measure(oasis, steps, point):
    context, batch, ratio, misses, summaries = point.split(":")
    command = [oasis, "bench", "--config", str(ROOT / "bench/configs/qwen3-8b.json"), "--weights", "random:1",
               "--device", "cuda", "--synthetic", "--prompt-tokens", context, "--batch", batch, "-n", str(steps),
               "--warm-up", "8", "--summaries", summaries, "--json"]
    if ratio == "dense":
        command += ["--attention", "dense", "--draft", "none"]
    else:
        command += ["--attention", "sparse", "--draft", "eagle3:random:2", "--resident-ratio", ratio, "--misses", misses]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return f"| {point} | {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode} |"
    r = json.loads(done.stdout)
    d, n = r["decode"], max(1, r["decode"]["all_steps"])
    rate = d["tokens_per_second_median"]
    dense = DENSE_VLLM.get(int(context))
    times = f"{rate / dense:.2f}" if dense and int(batch) > 1 else ""
    busy = r["stages"]["transfer"]
    link = f"{r['fetch']['bytes'] / busy / 1e9:.1f}" if busy > 0 else ""
    return (f"| {int(context) // 1024}K | {batch} | {ratio} | {misses} | {summaries} | {d['step_ms_median']:.2f} | {rate:.0f} | "
            f"{times} | {d['fetched_bytes_per_step'] / 1e6:.0f} | {link} | {r['stages']['wait'] / n * 1e3:.2f} | "
            f"{r['memory']['device_bytes_in_use'] / 2**30:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oasis", default=str(ROOT / "build/cuda/bin/oasis"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("points", nargs="*", default=POINTS)
    args = parser.parse_args()
    print("| context | batch | R/K | misses | summaries | ms a step | tok/s | x dense | MB a step | link GB/s | wait ms | GiB in use |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for point in args.points:
        print(measure(args.oasis, args.steps, point), flush=True)


if __name__ == "__main__":
    main()
