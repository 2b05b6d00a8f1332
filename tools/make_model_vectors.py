#!/usr/bin/env python3
"""Writes tests/data/models/: tiny random checkpoints and what transformers computes with them in fp32.

Needs torch, transformers 5, safetensors, tokenizers and gguf (CPU is enough). The format is described in
tests/data/models/README.md. A quantised GGUF file's reference comes from its dequantised weights.
"""
import json
import math
import pathlib
import shutil

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/models"
VOCAB = 320
TOKENS = 48
POSITIONS = [0, 1, 15, 16, 17, 31, 32, 40, 47]
CONTEXT = 64

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def spec(arch, hidden, heads, kv_heads, head_dim, intermediate, tied, theta, scaling=None, layers=2):
    return dict(arch=arch, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=intermediate,
                tied=tied, theta=theta, scaling=scaling, layers=layers)


FOLDERS = {
    "llama-gqa3": spec("llama", 96, 3, 1, 64, 96, True, 1e4),
    "llama-hd96": spec("llama", 64, 2, 2, 96, 96, False, 1e4),
    "llama3-rope": spec("llama", 64, 4, 2, 64, 96, False, 1e4, LLAMA3),
    "llama-yarn-hd80": spec("llama", 64, 4, 2, 80, 96, True, 1e4, YARN | {"attention_factor": 1.25, "beta_fast": 4.0}),
    "qwen3": spec("qwen3", 64, 2, 1, 128, 96, True, 1e6),
    "qwen3-yarn": spec("qwen3", 64, 2, 1, 128, 96, False, 1e4, YARN),
}
# The newer files state everything about RoPE in rope_parameters, the older ones in rope_theta and rope_scaling.
NEW_STYLE = {"llama3-rope", "llama-yarn-hd80"}
WITH_TOKENIZER = {"llama-gqa3", "qwen3"}

GGUFS = {
    "llama-q4-gguf": (spec("llama", 96, 3, 1, 64, 96, True, 1e4), {
        "token_embd": T.Q8_0, "attn_q": T.Q4_0, "attn_k": T.Q4_1, "attn_v": T.Q8_0, "attn_output": T.Q4_1,
        "ffn_gate": T.F16, "ffn_up": T.Q4_0, "ffn_down": T.Q4_1}),
    "llama3-rope-gguf": (spec("llama", 64, 4, 2, 64, 96, False, 1e4, LLAMA3), {
        "token_embd": T.F16, "output": T.BF16, "attn_q": T.F32, "attn_k": T.F16}),
    "qwen3-yarn-gguf": (spec("qwen3", 64, 2, 1, 128, 96, True, 1e4, YARN), {"attn_k": T.F16, "token_embd": T.BF16}),
    "qwen3-kquants-gguf": (spec("qwen3", 256, 2, 1, 128, 256, False, 1e6), {
        "token_embd": T.Q4_K, "output": T.Q6_K, "attn_q": T.Q4_K, "attn_k": T.Q5_K, "attn_v": T.Q6_K,
        "attn_output": T.Q4_K, "ffn_gate": T.Q5_K, "ffn_up": T.Q4_K, "ffn_down": T.Q6_K}),
}


def rope_parameters(s):
    return {"rope_type": "default"} | (s["scaling"] or {}) | {"rope_theta": s["theta"]}


def build(s, seed):
    """A random fp32 model of this shape whose attention is neither flat nor a spike."""
    kind, model_kind = (LlamaConfig, LlamaForCausalLM) if s["arch"] == "llama" else (Qwen3Config, Qwen3ForCausalLM)
    config = kind(vocab_size=VOCAB, hidden_size=s["hidden"], intermediate_size=s["intermediate"],
                  num_hidden_layers=s["layers"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
                  head_dim=s["head_dim"], max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
                  tie_word_embeddings=s["tied"], rope_parameters=rope_parameters(s), attn_implementation="eager",
                  bos_token_id=256, eos_token_id=257, pad_token_id=None)
    torch.manual_seed(seed)
    model = model_kind(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                gain = 1.3 if "q_norm" in name or "k_norm" in name else 1.0
                parameter.copy_(gain * (1 + 0.2 * torch.randn_like(parameter)))
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 2.5 / math.sqrt(s["hidden"]))
            else:
                gain = 1.3 if "q_proj" in name or "k_proj" in name else 1.0
                parameter.copy_(torch.randn_like(parameter) * gain / math.sqrt(parameter.shape[1]))
    return model


def weights_of(model, s):
    return {k: v for k, v in model.state_dict().items() if not (s["tied"] and k == "lm_head.weight")}


@torch.no_grad()
def run(model, tokens):
    """Logits [position, vocab] and the residual stream before each layer and after the last [layer, position, hidden]."""
    taps = []
    hooks = [layer.register_forward_pre_hook(lambda _, args, kwargs: taps.append((args or (kwargs["hidden_states"],))[0]),
                                             with_kwargs=True) for layer in model.model.layers]
    hooks.append(model.model.norm.register_forward_pre_hook(lambda _, args: taps.append(args[0])))
    logits = model(torch.tensor([tokens])).logits[0, POSITIONS]
    for hook in hooks:
        hook.remove()
    return logits.numpy(), torch.stack([t[0, POSITIONS] for t in taps]).numpy()


def write_reference(folder, model, s, seed):
    tokens = np.random.default_rng(seed).integers(0, 256, TOKENS).tolist()
    logits, hidden = run(model, tokens)
    if s["scaling"]:  # the scaling must matter, or the vectors prove nothing
        plain = build(s | {"scaling": None}, 0)
        plain.load_state_dict(model.state_dict())
        assert np.abs(run(plain, tokens)[0][-1] - logits[-1]).max() > 0.3
    (folder / "logits.f32").write_bytes(np.ascontiguousarray(logits, "<f4").tobytes())
    (folder / "hidden.f32").write_bytes(np.ascontiguousarray(hidden, "<f4").tobytes())
    frequencies = model.model.rotary_emb
    reference = {"tokens": tokens, "positions": POSITIONS, "vocab": VOCAB, "hidden": s["hidden"], "layers": s["layers"],
                 "argmax": logits.argmax(1).tolist(),
                 "rope_frequencies": [float(f) for f in frequencies.inv_freq],
                 "rope_attention_scale": float(frequencies.attention_scaling)}
    (folder / "reference.json").write_text(json.dumps(reference) + "\n")
    print(f"{folder.name}: logits std {logits.std():.2f}, hidden std {hidden.std(axis=(1, 2)).round(2).tolist()}")


def byte_alphabet():
    """The 256 symbols of byte-level BPE."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    symbols = {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(rest)}
    return [symbols[b] for b in range(256)]


SPECIALS = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "i n", "t h", "th e", "Ġ the"]


def vocabulary():
    tokens = byte_alphabet() + SPECIALS + [m.replace(" ", "") for m in MERGES]
    return tokens + [f"<|unused_{i}|>" for i in range(VOCAB - len(tokens))]


def write_tokenizer(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    vocab = {t: i for i, t in enumerate(vocabulary()[: 256 + len(SPECIALS) + len(MERGES)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": None, "eos_token": SPECIALS[1], "pad_token": SPECIALS[0]}) + "\n")


def write_folder(name, s, seed):
    folder = fresh(name)
    model = build(s, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    save_file({k: v.bfloat16().contiguous() for k, v in weights_of(model, s).items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    config = {"architectures": [type(model).__name__], "model_type": s["arch"], "hidden_act": "silu",
              "vocab_size": VOCAB, "hidden_size": s["hidden"], "intermediate_size": s["intermediate"],
              "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
              "head_dim": s["head_dim"], "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": s["tied"], "attention_bias": False, "bos_token_id": 256, "eos_token_id": 257,
              "torch_dtype": "bfloat16"}
    if name in NEW_STYLE:
        config["rope_parameters"] = rope_parameters(s)
    else:
        config["rope_theta"] = s["theta"]
        config["rope_scaling"] = s["scaling"] and {("type" if k == "rope_type" else k): v for k, v in s["scaling"].items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if name in WITH_TOKENIZER:
        write_tokenizer(folder)
        (folder / "generation_config.json").write_text(json.dumps(
            {"bos_token_id": 256, "eos_token_id": [257, 256], "do_sample": True, "temperature": 0.6, "top_k": 20,
             "top_p": 0.95}) + "\n")
    write_reference(folder, model, s, seed)


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[stem]}.weight", GGUF_NAMES[stem]
    return f"{GGUF_NAMES[stem]}.weight", GGUF_NAMES[stem]


def permute(rows, heads):
    """HF row s*(hd/2)+j of a head becomes row 2j+s."""
    out, cols = rows.shape
    return rows.reshape(heads, 2, out // heads // 2, cols).swapaxes(1, 2).reshape(out, cols)


def unpermute(rows, heads):
    out, cols = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, cols).swapaxes(1, 2).reshape(out, cols)


K_QUANTS = {T.Q4_K: (0, 7.5), T.Q5_K: (0, 15.5), T.Q6_K: (208, None)}  # offset of d; dmin / d that centres the values


def quantise(values, qtype, rng):
    """Raw rows of this type, and their floats. No Python code quantises to K-quants: their blocks are random, with scales
    that give weights of the size wanted."""
    if qtype not in K_QUANTS:
        raw = gguf.quants.quantize(values, qtype)
        return raw, gguf.quants.dequantize(raw, qtype).reshape(values.shape)
    rows, cols = values.shape
    offset, minimum = K_QUANTS[qtype]
    blocks = rng.integers(0, 256, (rows * cols // 256, gguf.GGML_QUANT_SIZES[qtype][1]), dtype=np.uint8)

    def set_scales(d):
        blocks[:, offset : offset + 2] = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
        if minimum:
            blocks[:, 2:4] = (d * minimum).astype(np.float16).view(np.uint8).reshape(-1, 2)

    set_scales(np.ones(len(blocks)))
    unit = gguf.quants.dequantize(blocks, qtype).std()
    set_scales(values.std() / unit * rng.uniform(0.7, 1.3, len(blocks)))
    raw = blocks.reshape(rows, -1)
    return raw, gguf.quants.dequantize(raw, qtype).reshape(rows, cols)


def llama3_divisors(s):
    """rope_freqs.weight as converters write it."""
    r, half = s["scaling"], s["head_dim"] // 2
    out = []
    for j in range(half):
        wavelength = 2 * math.pi * s["theta"] ** (j / half)
        turns = r["original_max_position_embeddings"] / wavelength
        if turns > r["high_freq_factor"]:
            out.append(1.0)
        elif turns < r["low_freq_factor"]:
            out.append(r["factor"])
        else:
            smooth = (turns - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            out.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write_gguf_metadata(writer, s):
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(s["hidden"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["intermediate"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_key_length(s["head_dim"])
    writer.add_value_length(s["head_dim"])
    writer.add_rope_dimension_count(s["head_dim"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(s["theta"])
    writer.add_vocab_size(VOCAB)
    if s["scaling"] and s["scaling"]["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(s["scaling"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(s["scaling"]["original_max_position_embeddings"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if s["arch"] == "llama" else "qwen2")
    writer.add_token_list(vocabulary())
    n = 256 + len(SPECIALS) + len(MERGES)
    writer.add_token_types([1] * 256 + [3] * len(SPECIALS) + [1] * len(MERGES) + [5] * (VOCAB - n))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(256)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")


def write_gguf(name, s, types, seed):
    folder = fresh(name)
    model = build(s, seed)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(folder / "model.gguf", s["arch"])
    write_gguf_metadata(writer, s)
    if s["scaling"] and s["scaling"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(s))
    state = {}
    for hf_name, tensor in weights_of(model, s).items():
        values = tensor.numpy().copy()
        target, role = gguf_name(hf_name)
        heads = {"attn_q": s["heads"], "attn_k": s["kv_heads"]}.get(role) if s["arch"] == "llama" else None
        if heads:
            values = permute(values, heads)
        qtype = T.F32 if values.ndim == 1 else types.get(role, T.BF16)
        raw, values = (values, values) if qtype == T.F32 else quantise(values, qtype, rng)
        writer.add_tensor(target, raw, raw_dtype=qtype)
        state[hf_name] = torch.tensor(unpermute(values, heads) if heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if s["tied"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    write_reference(folder, model, s, seed)


def fresh(name):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def main():
    torch.set_num_threads(1)
    for seed, (name, s) in enumerate(FOLDERS.items()):
        write_folder(name, s, 100 + seed)
    for seed, (name, (s, types)) in enumerate(GGUFS.items()):
        write_gguf(name, s, types, 200 + seed)


if __name__ == "__main__":
    main()
