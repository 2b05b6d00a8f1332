#!/usr/bin/env python3
"""The whole point in two minutes: a model over more context than its fast tier holds.

SmolLM2-135M-Instruct continues about 7,500 tokens of this project's own documentation and sources, four times:
(a) dense: the whole KV cache in the fast tier, (b) OasisKV with a fast tier of 40% of that, its EAGLE-3 head looking ahead,
(c) the same without a draft, (d) the same with accepted drafts. (b) to (d) follow the tokens of (a), so that all read the same
text; "as dense" counts how often their own best token is that of (a). Needs `make build model`; standard library only.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ["README.md", "docs/architecture.md", "docs/decisions.md", "CONTRIBUTING.md", "src/oasis/lookahead/kv_core.h",
         "src/oasis/kernels/select/select.h", "src/oasis/kv/tier.h", "src/oasis/engine/engine.h"]


def oasis(args, *flags):
    command = [args.oasis, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def prompt_ids(args):
    """The first --tokens tokens of the project's own files."""
    text = "".join((ROOT / f).read_text() for f in FILES)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        ids = json.loads(oasis(args, "tokenize", "-m", args.model, "-f", f.name, "--json"))
    if len(ids) < args.tokens:
        sys.exit(f"the project's files have {len(ids)} tokens, {args.tokens} are wanted")
    return ids[:args.tokens]


def generate(args, ids, *flags):
    return json.loads(oasis(args, "generate", "-m", args.model, "--token-ids", ",".join(map(str, ids)), "-n", str(args.steps),
                            "--ignore-eos", "--top-k-blocks", str(args.k), "--threads", str(args.threads), "--json", *flags))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--oasis", default=str(ROOT / "build/release/bin/oasis"))
    p.add_argument("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("--head", default=str(ROOT / "drafts/smollm2-135m-eagle3"))
    p.add_argument("--tokens", type=int, default=7500)
    p.add_argument("--steps", type=int, default=128)
    p.add_argument("--k", type=int, default=64, help="blocks that attention reads")
    p.add_argument("--threads", type=int, default=0)
    args = p.parse_args()

    ids = prompt_ids(args)
    print(f"{args.tokens} tokens of this project's own text, {args.steps} more to write, K = {args.k} blocks of 16 tokens.", flush=True)
    runs = {"(a) dense": generate(args, ids, "--attention", "dense", "--draft", "none")}
    dense = runs["(a) dense"]
    fast = ["--attention", "sparse", "--fast-memory", str(dense["memory"]["fast_bytes_peak"] * 2 // 5),
            "--follow", ",".join(map(str, dense["token_ids"]))]
    runs["(b) OasisKV, EAGLE-3 head"] = generate(args, ids, *fast, "--draft", f"eagle3:{args.head}")
    runs["(c) OasisKV, no draft"] = generate(args, ids, *fast, "--draft", "none")
    runs["(d) OasisKV, drafts accepted"] = generate(args, ids, *fast, "--draft", f"eagle3:{args.head}", "--accept-drafts",
                                                    "--draft-tokens", "3")
    head = ["tok/s", "fast tier", "fetched", "agreement", "wait", "as dense", "accepted"]
    unit = ["", "MiB", "KiB/step", "", "ms/step", "tokens", "a step"]
    print(f"\n{'':<30}" + "".join(f"{h:>11}" for h in head))
    print(f"{'':<30}" + "".join(f"{u:>11}" for u in unit))
    for name, r in runs.items():
        steps = r["decode"]["steps"]
        sparse = r["attention"]["sparse_steps"] > 0
        cells = [f"{r['decode']['tokens_per_second']:.1f}", f"{r['memory']['fast_bytes_peak'] / 2**20:.1f}",
                 f"{r['fetch']['bytes'] / steps / 2**10:.0f}", f"{r['lookahead']['agreement']:.3f}" if sparse else "-",
                 f"{r['stages']['wait'] / steps * 1e3:.2f}", f"{r.get('followed', args.steps) / args.steps:.1%}",
                 f"{r['draft']['accepted'] / steps:.2f}"]
        print(f"{name:<30}" + "".join(f"{c:>11}" for c in cells))
    b, d = runs["(b) OasisKV, EAGLE-3 head"], runs["(d) OasisKV, drafts accepted"]
    ratio = {n: r["decode"]["tokens_per_second"] / dense["decode"]["tokens_per_second"] for n, r in (("b", b), ("d", d))}
    share = b["memory"]["fast_bytes_peak"] / dense["memory"]["fast_bytes_peak"]
    print(f"\nWith {share:.0%} of the fast memory, OasisKV decodes at {ratio['b']:.2f}x the dense speed ({ratio['d']:.2f}x with accepted drafts), "
          f"because a step reads {args.k} well-chosen blocks a head instead of {args.tokens // 16}.\n"
          f"The draft token named {b['lookahead']['agreement']:.0%} of the next step's blocks one step ahead "
          f"({runs['(c) OasisKV, no draft']['lookahead']['agreement']:.0%} without a draft), so the {b['fetch']['bytes'] / b['decode']['steps'] / 2**10:.0f} KiB "
          f"fetched a step crossed in the background and decoding waited {b['stages']['wait'] / b['decode']['steps'] * 1e3:.2f} ms a step for them.")


if __name__ == "__main__":
    main()
