#include <algorithm>

#include "oasis/kernels/random/random.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;

float unit(uint64_t z) {  // in [-1, 1)
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int32_t>((z ^ (z >> 31)) >> 32)) * 0x1p-31f;
}

}  // namespace

void fill_random_cpu(Stream& stream, const FillRandomParams& p) {
  stream.pool().run((p.count + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    const int64_t end = std::min(p.count, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) {
      const uint64_t number = p.first + static_cast<uint64_t>(i) + 1;
      p.out[i] = to_bf16(p.half_width * unit(p.seed + number * 0x9e3779b97f4a7c15u));
    }
  });
}

}  // namespace oasis::kernels
