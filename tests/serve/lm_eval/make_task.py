#!/usr/bin/env python3
"""Writes a small task for lm_eval into a folder: which of two words goes on with a pattern, and what a list's next word is.

Usage: make_task.py FOLDER
    lm_eval run --tasks oasis_choice,oasis_next --include_path FOLDER --model local-completions \\
        --model_args base_url=http://127.0.0.1:8000/v1/completions,model=NAME,tokenizer_backend=remote
"""

import json
import pathlib
import random
import sys

ROWS = [("one two three four", " five", " window"), ("Monday Tuesday Wednesday", " Thursday", " river"),
        ("red green blue", " yellow", " Thursday"), ("January February March", " April", " stone"),
        ("The sun rises in the", " east", " spoon"), ("Two plus two is", " four", " garden"),
        ("A dog barks and a cat", " me", " Monday"), ("The capital of France is", " Paris", " seven")]

CHOICE = """task: oasis_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
NEXT = """task: oasis_next
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{choices[label]}}}}"
target_delimiter: ""
generation_kwargs: {{max_gen_toks: 4, until: ["\\n"], do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    with open(folder / "rows.jsonl", "w") as out:
        for text, right, wrong in ROWS * 2:
            choices = [right, wrong]
            rng.shuffle(choices)
            out.write(json.dumps({"text": text, "choices": choices, "label": choices.index(right)}) + "\n")
    for name, task in (("choice", CHOICE), ("next", NEXT)):
        (folder / f"oasis_{name}.yaml").write_text(task.format(data=folder / "rows.jsonl"))


if __name__ == "__main__":
    main()
