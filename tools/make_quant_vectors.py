#!/usr/bin/env python3
"""Writes tests/data/quant/: raw blocks of every weight type of a GGUF file and the floats that the `gguf` package makes of them.

Needs numpy and gguf. Random blocks, so every bit pattern of the packed fields occurs; only the fp16 scales are kept sane.
"""
import json
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/quant"
ROWS = 4

# type -> columns, byte offsets of the fp16 scales inside a block
TYPES = {
    "F32": (64, None),
    "F16": (64, None),
    "BF16": (64, None),
    "Q4_0": (96, [0]),
    "Q4_1": (96, [0, 2]),
    "Q8_0": (96, [0]),
    "Q4_K": (768, [0, 2]),
    "Q5_K": (768, [0, 2]),
    "Q6_K": (768, [208]),
}


def blocks_of(name: str, cols: int, scales, rng) -> np.ndarray:
    qtype = gguf.GGMLQuantizationType[name]
    if scales is None:
        values = rng.standard_normal((ROWS, cols)).astype(np.float32)
        values[0, :4] = [0.0, -0.0, 2.0**-14, 65504.0]
        return gguf.quants.quantize(values, qtype).view(np.uint8).reshape(ROWS, -1)
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (ROWS * cols // elements, size), dtype=np.uint8)
    for offset in scales:
        scale = (rng.standard_normal(len(blocks)) * 0.02).astype(np.float16)
        scale[0] = np.float16(2.0**-20)  # a subnormal
        blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, -1)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240817)
    index = {}
    for name, (cols, scales) in TYPES.items():
        raw = blocks_of(name, cols, scales, rng)
        values = gguf.quants.dequantize(raw.view(np.float32) if name == "F32" else raw, gguf.GGMLQuantizationType[name])
        values = np.ascontiguousarray(values.reshape(ROWS, cols), dtype="<f4")
        assert np.isfinite(values).all()
        (OUT / f"{name}.raw").write_bytes(raw.tobytes())
        (OUT / f"{name}.f32").write_bytes(values.tobytes())
        index[name] = {"rows": ROWS, "cols": cols, "raw_bytes": raw.size}
    (OUT / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
