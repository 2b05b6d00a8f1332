// What tests are told about a step, recorded where it was decided.
#include "oasis/lookahead/kv_core.h"

namespace oasis::lookahead {
namespace {

std::vector<int32_t> blocks_of(const kernels::Fetch* fetches, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(fetches[i].block);
  return out;
}

}  // namespace

void KvCore::trace_scores(std::vector<float>& to, const float* from, int32_t count) {
  to.resize(static_cast<size_t>(count));
  stream_.copy(to.data(), from, to.size() * sizeof(float));
}

// exact: after the demand and the rows' lists, before select.
void KvCore::trace_rows(int32_t layer) {
  const auto heads = static_cast<size_t>(config_.shape.kv_heads);
  for (const StepSequence& st : steps_) {
    if (!seq(st.sequence).sparse) continue;
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const size_t i = at(0, st.sequence, h);
      HeadTrace& t = traces_[at(layer, st.sequence, h)];
      t.demanded = blocks_of(&fetches_[i * static_cast<size_t>(config_.resident_blocks)], fetch_count_[i]);
      t.rows_taken = verified_[static_cast<size_t>(st.sequence)];
      t.row_scores.clear();
      t.row_lists.clear();
    }
  }
  for (size_t g = 0; g < group_sequence_.size(); ++g) {
    const Sequence& s = seq(group_sequence_[g]);
    if (!s.sparse) continue;
    const int32_t row = group_row_begin_[g] - first_row_[static_cast<size_t>(group_sequence_[g])];
    for (size_t h = 0; h < heads; ++h) {
      const float* scores = row_scores_.as<float>() + (g * heads + h) * static_cast<size_t>(config_.max_blocks);
      const kernels::ListEntry* list = &row_list_[(g * heads + h) * static_cast<size_t>(list_stride_)];
      HeadTrace& t = traces_[at(layer, group_sequence_[g], static_cast<int32_t>(h))];
      trace_scores(t.row_scores.emplace_back(), scores, block_of(s.position + row));
      auto& blocks = t.row_lists.emplace_back();
      for (int32_t j = 0; j < row_list_count_[g * heads + h]; ++j) blocks.push_back(list[j].block);
    }
  }
}

void KvCore::trace_select(int32_t layer) {
  const auto stride = static_cast<size_t>(config_.resident_blocks);
  for (const StepSequence& st : steps_) {
    if (!seq(st.sequence).sparse) continue;
    const uint8_t* present = items_[static_cast<size_t>(st.sequence)].present;
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const size_t i = at(0, st.sequence, h);
      HeadTrace& t = traces_[at(layer, st.sequence, h)];
      t.admitted = blocks_of(&fetches_[i * stride], fetch_count_[i]);
      t.wanted = blocks_of(&wanted_[i * stride], wanted_count_[i]);
      t.absent.clear();
      for (int32_t b = 0; present && b < candidates_[static_cast<size_t>(st.sequence)]; ++b) {
        if (present[b] == 0) t.absent.push_back(b);
      }
    }
  }
}

}  // namespace oasis::lookahead
