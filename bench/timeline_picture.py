#!/usr/bin/env python3
"""A picture of a timeline that `oasis bench --timeline FILE` wrote: two steps on a GPU, and what crosses the link beside them.

  bench/timeline_picture.py FILE PICTURE
"""

import argparse
import collections
import json

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"QKV": "#4477aa", "append, predict": "#ccbb44", "wait": "#cc3311", "attention": "#228833", "select": "#ee7733",
           "output, MLP": "#66ccee", "embedding": "#bbbbbb", "logits": "#aa3377", "gather": "#555555"}


def draw(axis, events, title):
    for event in events:
        row = {"step": 1, "transfer": 0}[event["tid"]]
        axis.broken_barh([(event["ts"] / 1e3, event["dur"] / 1e3)], (row - .4, .8), facecolors=COLOURS[event["name"]], edgecolors="white", linewidth=.3)
    axis.set_yticks([0, 1], ["transfer", "step"])
    axis.set_ylim(-.6, 1.6)
    axis.set_title(title, fontsize=9, loc="left")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("picture")
    args = parser.parse_args()
    events = json.load(open(args.file))["traceEvents"]
    steps = sorted({e["args"]["step"] for e in events})
    sums = collections.Counter()
    for e in events:
        sums[e["name"]] += e["dur"] / 1e3 / len(steps)
    figure, (whole, few) = plt.subplots(2, 1, figsize=(11, 4.2))
    draw(whole, events, "two steps")
    border = min(e["ts"] for e in events if e["args"]["step"] == steps[-1] and e["tid"] == "step")
    # Three layers on either side of the border between the steps.
    near = [e for e in events if e["tid"] == "step" and "layer" in e["args"]]
    layer = sum(e["dur"] for e in near) / len(steps) / (1 + max(e["args"]["layer"] for e in near))
    draw(few, events, "around the border between them: the transfer's tail overlaps the next step's head")
    few.set_xlim((border - 4 * layer) / 1e3, (border + 3 * layer) / 1e3)
    for axis in (whole, few):
        axis.axvline(border / 1e3, color="black", linewidth=.8, linestyle=":")
    few.set_xlabel("milliseconds, by the device's clock")
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in COLOURS.values()]
    figure.legend(handles, [f"{name} {sums[name]:.2f} ms" for name in COLOURS], loc="lower center", ncol=5, fontsize=8, frameon=False,
                  title="a step", title_fontsize=8)
    figure.tight_layout(rect=(0, .12, 1, 1))
    figure.savefig(args.picture, dpi=130)


if __name__ == "__main__":
    main()
