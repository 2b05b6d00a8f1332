#!/usr/bin/env python3
"""Writes tests/data/text/: what the Python package `tokenizers` makes of 10,000 mixed strings, for three families.

SmolLM2's vocabulary comes from its GGUF and is stored as merges of ids. Qwen2 and Llama-3 stand in by small BPE tokenizers
trained here under those families' exact normaliser, regular expression and ignore_merges. The strings are not stored: the
test draws the same ones from fragments.json with the same random numbers (splitmix64) and compares a hash of the ids.

  python tools/make_tokenizer_vectors.py models/SmolLM2-135M-Instruct.Q4_1.gguf
needs: tokenizers, gguf
"""

import argparse
import inspect
import json
import pathlib
import struct
import sys
import textwrap

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "text"
COUNT = 10_000
MASK = (1 << 64) - 1

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# First and last code points that random characters are drawn from; surrogates inside are skipped.
RANGES = [(0x00, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x900, 0xDFF), (0x1100, 0x11FF), (0x1800, 0x1810),
          (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFF),
          (0x10000, 0x10FFF), (0x1D100, 0x1D7FF), (0x1E030, 0x1E06D), (0x1F300, 0x1FAFF), (0x20000, 0x323AF),
          (0x10FFF0, 0x10FFFF)]


class Random:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def draw(random, fragments):
    parts = []
    for _ in range(1 + random.below(12)):
        if random.below(6) == 0:
            first, last = RANGES[random.below(len(RANGES))]
            parts.append(chr(first + random.below(last - first + 1)))
        else:
            parts.append(fragments[random.below(len(fragments))])
    return "".join(parts)


def hash_ids(ids):  # FNV-1a over 32-bit words
    h = 0x811C9DC5
    for i in ids:
        h = ((h ^ i) * 0x01000193) & 0xFFFFFFFF
    return h


def byte_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{chr(b): b for b in own}, **{chr(256 + i): b for i, b in enumerate(others)}}


def smollm2(gguf_path):
    from gguf import GGUFReader

    fields = GGUFReader(gguf_path).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "merges", "token_type"))
    ids = {t: i for i, t in enumerate(tokens)}
    special = [t for t, kind in zip(tokens, types) if kind == 3]
    first_merged = len(tokens) - len(merges)
    alphabet = tokens[len(special):first_merged]
    # The file leans on this order: special tokens, single bytes, then one token a merge.
    assert tokens[:len(special)] == special
    assert all(tokens[first_merged + i] == m.replace(" ", "") for i, m in enumerate(merges))
    to_byte = byte_alphabet()
    header = {"special": special, "bytes": [to_byte[c] for c in alphabet], "merges": len(merges), "bos": 1, "eos": 2,
              "pad": 2}
    with open(OUT / "smollm2.bpe", "wb") as f:
        f.write(json.dumps(header).encode() + b"\n")
        for m in merges:
            f.write(struct.pack("<HH", *(ids[part] for part in m.split(" "))))
    tok = Tokenizer(models.BPE(vocab=ids, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tok


def corpus(fragments):
    lines = list(fragments) * 3
    for module in (argparse, textwrap, inspect):
        lines += inspect.getsource(module).splitlines(keepends=True)
    return lines


def train(pattern, nfc, vocab_size, fragments):
    tok = Tokenizer(models.BPE())
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=[], show_progress=False)
    tok.train_from_iterator(corpus(fragments), trainer)
    return tok


def write_folder(name, tok, config, edit=None):
    folder = OUT / name
    folder.mkdir(exist_ok=True)
    doc = json.loads(tok.to_str())
    if edit:
        edit(doc)
    text = json.dumps(doc, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return Tokenizer.from_str(text)


def qwen(fragments):
    tok = train(QWEN2, True, 1400, fragments)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False)
                            for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tok.add_tokens([AddedToken(t, special=False, normalized=False)
                    for t in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")])
    template = (OUT / "qwen3.jinja").read_text()
    return write_folder("qwen-tiny", tok, {
        "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "chat_template": template, "tokenizer_class": "Qwen2Tokenizer"})


def llama(fragments):
    tok = train(LLAMA3, False, 1400, fragments)
    # Tokens that no merge gives: only ignore_merges finds them.
    unreachable = ["Ġzebra", "xylophone", "123", "Ġ".join("Zq"), "ĠðŁĺĬ"]

    def edit(doc):
        vocab = doc["model"]["vocab"]
        for t in unreachable:
            if t not in vocab:
                vocab[t] = len(vocab)
        doc["model"]["ignore_merges"] = True
        doc["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in doc["model"]["merges"]]
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                   "<|eot_id|>", "<|python_tag|>"]
        first = len(vocab)
        doc["added_tokens"] = [{"id": first + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                                "normalized": False, "special": True} for i, t in enumerate(special)]
        bos = {"id": special[0], "ids": [first], "tokens": [special[0]]}
        sequence = lambda name, i: {"Sequence": {"id": name, "type_id": i}}
        begin = lambda i: {"SpecialToken": {"id": special[0], "type_id": i}}
        doc["post_processor"] = {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing", "single": [begin(0), sequence("A", 0)],
             "pair": [begin(0), sequence("A", 0), begin(1), sequence("B", 1)], "special_tokens": {special[0]: bos}}]}

    result = write_folder("llama3-tiny", tok, {
        "bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>", "special": True},
        "tokenizer_class": "PreTrainedTokenizerFast"}, edit)
    (OUT / "llama3-tiny" / "chat_template.jinja").write_text((OUT / "llama3_style.jinja").read_text())
    return result


LONG = {  # 64 KB to 400 KB of what breaks tokenizers
    "A": "A" * 131072, "spaces": " " * 131072, "newlines": "\n" * 131072, "cjk": "日本語中文漢字" * 3800,
    "spaces and text": ("a" + " " * 1000) * 130, "mixed newlines": "\n \n\r\n\t" * 20000, "digits": "1234567890" * 13000,
    "punctuation": "!?-_=*" * 20000, "marks": "a" + "\u0316\u0301" * 30000,
}


def main():
    gguf_path = sys.argv[1]
    fragments = json.loads((OUT / "fragments.json").read_text())
    reports = {}
    for name, tok in (("smollm2", smollm2(gguf_path)), ("qwen-tiny", qwen(fragments)), ("llama3-tiny", llama(fragments))):
        random = Random(2026)
        hashes = []
        for i in range(COUNT):
            text = draw(random, fragments)
            tok.encode_special_tokens = i % 2 == 1  # every other string: control tokens are ordinary text
            hashes.append(hash_ids(tok.encode(text, add_special_tokens=False).ids))
        (OUT / f"{name}.hashes").write_bytes(struct.pack(f"<{COUNT}I", *hashes))
        tok.encode_special_tokens = False
        reports[name] = {
            "long": {k: [len(ids := tok.encode(v, add_special_tokens=False).ids), hash_ids(ids)] for k, v in LONG.items()},
            "cases": [{"text": t, "ids": (ids := tok.encode(t, add_special_tokens=False).ids),
                       "decoded": tok.decode(ids, skip_special_tokens=False),
                       "skipped": tok.decode(ids, skip_special_tokens=True)}
                      for t in ("Hello, world!", "naïve café – 日本語 👩‍👩‍👧 e\u0301", "<|im_end|>a<|eot_id|> zebra xylophone 123456 1²½",
                                "I'LL we'Re 'ſ \u180e x\u0085y\u3000z", "x\u1c8a's \ua7cb's \U0001e4d0's \U00016130's \U00011f51's \U00011de0's \U00016ff4's",
                                "  two\n\n three\r\n\tfour   ", "")]}
    (OUT / "tokenizer_cases.json").write_text(json.dumps(reports, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
