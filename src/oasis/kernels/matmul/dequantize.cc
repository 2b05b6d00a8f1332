// Unpacking of ggml's quantised blocks (layouts: src/oasis/model/README.md), plain code.
#include <cstring>

#include "oasis/base/numeric.h"
#include "oasis/base/status.h"
#include "oasis/kernels/matmul/matmul.h"

namespace oasis::kernels {
namespace {

float half_at(const uint8_t* p) {
  fp16 h;
  std::memcpy(&h.bits, p, 2);
  return to_float(h);
}

void q4_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((block[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((block[2 + j] >> 4) - 8) * d;
  }
}

void q4_1(const uint8_t* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(block[4 + j] & 15) * d + m;
    out[j + 16] = static_cast<float>(block[4 + j] >> 4) * d + m;
  }
}

void q8_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
}

// The 6-bit scale and minimum of sub-block j (32 elements) of Q4_K and Q5_K.
struct ScaleMin {
  float scale, min;
};
ScaleMin scale_min(const uint8_t* s, int j) {
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
  const int min = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  return {static_cast<float>(scale), static_cast<float>(min)};
}

void q4_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const uint8_t* q = block + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(block + 4, j);
    const float scale = d * s.scale, min = dmin * s.min;
    for (int l = 0; l < 32; ++l) {
      const uint8_t byte = q[j / 2 * 32 + l];
      out[j * 32 + l] = scale * static_cast<float>(j % 2 ? byte >> 4 : byte & 15) - min;
    }
  }
}

void q5_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const uint8_t *high = block + 16, *q = block + 48;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(block + 4, j);
    const float scale = d * s.scale, min = dmin * s.min;
    for (int l = 0; l < 32; ++l) {
      const uint8_t byte = q[j / 2 * 32 + l];
      const int value = (j % 2 ? byte >> 4 : byte & 15) | (high[l] >> j & 1) << 4;
      out[j * 32 + l] = scale * static_cast<float>(value) - min;
    }
  }
}

void q6_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = block + half * 64, *high = block + 128 + half * 32, *scales = block + 192 + half * 8;
    for (int group = 0; group < 4; ++group) {
      for (int l = 0; l < 32; ++l) {
        const uint8_t byte = low[group % 2 * 32 + l];
        const int value = ((group / 2 ? byte >> 4 : byte & 15) | (high[l] >> 2 * group & 3) << 4) - 32;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[group * 2 + l / 16]));
        out[half * 128 + group * 32 + l] = scale * static_cast<float>(value);
      }
    }
  }
}

template <void (*unpack)(const uint8_t*, float*)>
void blocks(DType type, const void* data, int64_t elements, float* out) {
  const auto* p = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < elements; i += info(type).block_elements, p += info(type).block_bytes) unpack(p, out + i);
}

}  // namespace

void dequantize(DType type, const void* data, int64_t elements, float* out) {
  OASIS_CHECK(elements % info(type).block_elements == 0, "{} elements are no whole number of {} blocks", elements,
              info(type).name);
  const auto* p = static_cast<const uint8_t*>(data);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, data, static_cast<size_t>(elements) * 4);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < elements; ++i) out[i] = half_at(p + 2 * i);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < elements; ++i) {
        bf16 b;
        std::memcpy(&b.bits, p + 2 * i, 2);
        out[i] = to_float(b);
      }
      return;
    case DType::kQ4_0:
      return blocks<q4_0>(type, data, elements, out);
    case DType::kQ4_1:
      return blocks<q4_1>(type, data, elements, out);
    case DType::kQ8_0:
      return blocks<q8_0>(type, data, elements, out);
    case DType::kQ4_K:
      return blocks<q4_k>(type, data, elements, out);
    case DType::kQ5_K:
      return blocks<q5_k>(type, data, elements, out);
    case DType::kQ6_K:
      return blocks<q6_k>(type, data, elements, out);
    case DType::kI64:
    case DType::kBool:
      break;
  }
  OASIS_CHECK(false, "weights of type {} cannot be unpacked", info(type).name);
}

}  // namespace oasis::kernels
