#!/usr/bin/env python3
"""OasisKV against llama.cpp on one GGUF file, one machine and one run.

For every prompt length: prefill, tokens a second. For every depth: decode of one sequence behind that many tokens of
context. The two programs take turns, each figure is the best of --repeat runs, so that both see the same noise.

    bench/versus_llama_cpp.py models/SmolLM2-135M-Instruct.Q4_1.gguf
    bench/versus_llama_cpp.py MODEL --variant "dense=--attention dense" --variant "sparse=--attention sparse"

llama-bench comes from bench/build_llama_cpp.sh, `oasis` from a release build.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def llama(args, prompt, steps, depth):
    """Tokens a second of one llama-bench run: a prefill of `prompt` tokens, or `steps` tokens behind `depth`."""
    rows = run([args.llama_bench, "-m", args.model, "-t", str(args.threads), "-p", str(prompt), "-n", str(steps),
                "-d", str(depth), "-ctk", "f16", "-ctv", "f16", "-r", "1", "-o", "json"])
    return {"tokens_per_second": rows[0]["avg_ts"]}


def oasis(args, flags, prompt, steps):
    """The figures of one `oasis bench` run."""
    return run([args.oasis, "bench", "-m", args.model, "--threads", str(args.threads), "--prompt-tokens", str(prompt),
                "-n", str(steps), *flags, "--json"])


def best(old, new):
    return new if old is None or new["tokens_per_second"] > old["tokens_per_second"] else old


def measure(args, variants):
    """[(what, {program: figures})]; the repeats go round the programs."""
    table = []
    for prompt in args.prompts:
        figures = {}
        for _ in range(args.repeat):
            figures["llama.cpp"] = best(figures.get("llama.cpp"), llama(args, prompt, 0, 0))
            for name, flags in variants.items():
                figures[name] = best(figures.get(name), oasis(args, flags, prompt, 1)["prefill"])
        table.append((f"prefill {prompt}", figures))
        print(row(*table[-1], variants), flush=True)
    for depth in args.depths:
        figures = {}
        for _ in range(args.repeat):
            figures["llama.cpp"] = best(figures.get("llama.cpp"), llama(args, 0, args.steps, depth))
            for name, flags in variants.items():
                result = oasis(args, flags, depth, args.steps)
                decode = result["decode"] | {"fetched_bytes": result.get("fetch", {}).get("bytes")}
                figures[name] = best(figures.get(name), decode)
        table.append((f"decode {args.steps} at {depth}", figures))
        print(row(*table[-1], variants), flush=True)
    return table


def row(what, figures, variants):
    peer = figures["llama.cpp"]["tokens_per_second"]
    cells = [f"{what:<22}", f"{peer:>10.1f}"]
    for name in variants:
        rate = figures[name]["tokens_per_second"]
        cells += [f"{rate:>{max(10, len(name))}.1f}", f"{rate / peer:>6.2f}x"]
    return "  ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 4096], help="lengths to prefill")
    parser.add_argument("--depths", type=int, nargs="*", default=[512, 7500], help="tokens of context before decoding")
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=FLAGS",
                        help="a way to run `oasis bench`; may be given more than once")
    parser.add_argument("--oasis", default=str(ROOT / "build/release/bin/oasis"))
    parser.add_argument("--llama-bench", default=str(ROOT / "build/llama.cpp/build/bin/llama-bench"))
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    for program, how in ((args.oasis, "build the release preset"), (args.llama_bench, "run bench/build_llama_cpp.sh")):
        if not pathlib.Path(program).exists():
            sys.exit(f"{program} is not there: {how}")
    variants = {}
    for variant in args.variant or ["oasis="]:
        name, _, flags = variant.partition("=")
        variants[name] = shlex.split(flags)
    header = [f"{'tokens a second':<22}", f"{'llama.cpp':>10}"]
    for name in variants:
        header += [f"{name:>10}", f"{'ratio':>7}"]
    print("  ".join(header))
    table = measure(args, variants)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"arguments": vars(args), "figures": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
