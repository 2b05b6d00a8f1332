// Sequences without a prompt, for benches.
#include <numeric>

#include "oasis/lookahead/kv_core.h"

namespace oasis::lookahead {

void KvCore::fill_with_noise() {
  const auto fill = [&](std::byte* at, int64_t bytes) {
    kernels_.fill_random(stream_,
                         {.out = reinterpret_cast<bf16*>(at), .count = bytes / 2, .seed = 1, .half_width = 1.7f});
  };
  fill(summaries_.view(0).base, summaries_.bytes());
  const auto& shape = config_.shape;
  const kernels::PoolView pool = pages_.view(0);
  if (shape.type == kv::KvType::kBf16) return fill(pool.base, pages_.bytes());
  // Noise is quantised into the first part, of which all others are copies. Until then it lies in the next two: a pool
  // has at least one sequence's pages.
  const int64_t part = shape.part_bytes(), row = int64_t{shape.head_dim} * 2;
  const kernels::PoolView noise{.base = pool.base + part,
                                .head_stride = 2 * shape.block_size * row,
                                .token_stride = row,
                                .v_offset = shape.block_size * row};
  fill(noise.base, shape.kv_heads * noise.head_stride);
  const std::vector<int32_t> pages(static_cast<size_t>(shape.kv_heads));
  std::vector<std::byte*> to;
  for (int32_t h = 0; h < shape.kv_heads; ++h) to.push_back(pool.k(0, h, 0));
  kernels_.seal(stream_, {.pool = noise,
                          .block_size = shape.block_size,
                          .head_dim = shape.head_dim,
                          .kv_heads = shape.kv_heads,
                          .entries = 1,
                          .pages = pages.data(),
                          .homes = to.data(),
                          .home_type = shape.type});
  for (int64_t done = part; done < pages_.bytes(); done *= 2) {
    stream_.copy(pool.base + done, pool.base, static_cast<size_t>(std::min(done, pages_.bytes() - done)));
  }
}

Status KvCore::synthesize(int32_t sequence, int32_t tokens, bool sparse, std::span<const kv::HomeId> homes) {
  Sequence& s = seq(sequence);
  const int32_t sealed = block_of(tokens);
  OASIS_RETURN_IF_ERROR(start_prompt(s, tokens, sparse, sealed));
  for (int32_t b = 0; b < sealed; ++b) {
    s.summary_pages.push_back(summaries_.allocator().allocate());
    if (b < static_cast<int32_t>(homes.size())) {
      s.homes.push_back(homes[static_cast<size_t>(b)]);
      continue;
    }
    s.homes.push_back(homes_.allocate_reserved());
    --s.reserved_homes;
    for (int32_t layer = 0; layer < config_.shape.layers; ++layer) {
      OASIS_RETURN_IF_ERROR(homes_.tier().begin_write({s.homes.back(), layer}).status());
      homes_.tier().end_write({s.homes.back(), layer});
    }
  }
  if (sparse) {
    std::vector<int32_t> blocks(static_cast<size_t>(sealed));
    uint64_t state = static_cast<uint64_t>(sequence) + 1;
    const auto resident = static_cast<size_t>(std::min(sealed, config_.resident_blocks));
    for (int32_t layer = 0; layer < config_.shape.layers; ++layer) {
      for (int32_t head = 0; head < config_.shape.kv_heads; ++head) {
        std::iota(blocks.begin(), blocks.end(), 0);
        for (size_t i = 0; i < resident; ++i) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          std::swap(blocks[i], blocks[i + (state >> 33) % (blocks.size() - i)]);
        }
        start_map(layer, sequence, head, std::span(blocks).first(resident), -1);
      }
    }
  } else {
    extend_dense_lists(sequence, 0);
  }
  s.predicted_candidates = sparse ? sealed : 0;
  s.ready = true;
  return {};
}

}  // namespace oasis::lookahead
