// The prefix cache from one run to the next: FILE.index, beside the tier's file.
//
// A head, then a record a home, parents before children, all of one size, each with a checksum of its own:
//   Head | RecordHead, tokens [block_size], checksums of the parts [layers], the home's meta, XXH3 of the record
// In the machine's byte order: the index is for the machine that wrote it.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "oasis/kv/home_store.h"

namespace oasis::kv {
namespace {

struct Head {
  char magic[16];
  PrefixKey identity;
  int64_t record_bytes = 0, records = 0;
  uint64_t checksum = 0;  // of what stands before it
};
struct RecordHead {
  PrefixKey key;
  int64_t last_used = 0;
  HomeId home = kNoHome, parent = kNoHome;
  int32_t provenance = 0, reserved = 0;
};
constexpr char kMagic[] = "OasisKV index 1";
static_assert(sizeof(kMagic) == sizeof(Head::magic));

uint64_t checksum_of(const Head& head) { return XXH3_64bits(&head, offsetof(Head, checksum)); }

// One record's bytes and where its fields lie.
class Record {
 public:
  Record(int32_t block_size, int64_t layers, int64_t meta_bytes)
      : tokens_(sizeof(RecordHead)),
        checksums_((tokens_ + static_cast<size_t>(block_size) * 4 + 7) / 8 * 8),
        meta_(checksums_ + static_cast<size_t>(layers) * 8),
        sum_((meta_ + static_cast<size_t>(meta_bytes) + 7) / 8 * 8),
        block_size_(static_cast<size_t>(block_size)),
        layers_(static_cast<size_t>(layers)),
        bytes_(sum_ + 8) {}
  RecordHead& head() { return *reinterpret_cast<RecordHead*>(bytes_.data()); }
  std::span<int32_t> tokens() { return {reinterpret_cast<int32_t*>(bytes_.data() + tokens_), block_size_}; }
  std::span<uint64_t> checksums() { return {reinterpret_cast<uint64_t*>(bytes_.data() + checksums_), layers_}; }
  char* meta() { return bytes_.data() + meta_; }
  uint64_t& stored_sum() { return *reinterpret_cast<uint64_t*>(bytes_.data() + sum_); }
  uint64_t sum() const { return XXH3_64bits(bytes_.data(), sum_); }
  char* data() { return bytes_.data(); }
  std::streamsize size() const { return static_cast<std::streamsize>(bytes_.size()); }

 private:
  size_t tokens_, checksums_, meta_, sum_, block_size_, layers_;
  std::vector<char> bytes_;
};

Status failed(const std::string& path) {
  return io_error("the prefix cache is not kept: {}: {}", path, std::strerror(errno));
}

// `temporary` is on the disk, and then under its name.
Status replace(const std::string& temporary, const std::string& path) {
  const int fd = open(temporary.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  if (fd >= 0) close(fd);
  if (!synced || std::rename(temporary.c_str(), path.c_str()) != 0) return failed(temporary);
  return {};
}

}  // namespace

Status HomeStore::save(const PrefixKey& identity) {
  const auto lasting = tier_->lasting();
  if (!lasting) return {};
  tier_->flush();
  const std::string path = lasting->file + ".index", temporary = path + ".new";
  // What users wrote stands in it: for the owner alone, like the tier's file.
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed(temporary);
  close(fd);
  std::ofstream out(temporary, std::ios::binary);
  Record record(block_size_, lasting->layers, tier_->meta_bytes());
  Head head{.identity = identity, .record_bytes = record.size()};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  out.write(reinterpret_cast<const char*>(&head), sizeof(head));
  std::vector<HomeId> open_nodes;
  for (HomeId home = 0; home < capacity(); ++home) {
    if (at(home).published && at(home).parent == kNoHome) open_nodes.push_back(home);
  }
  while (!open_nodes.empty()) {
    const HomeId home = open_nodes.back();
    open_nodes.pop_back();
    const Home& h = at(home);
    if (!tier_->checksums(home, record.checksums())) continue;  // nor what builds on it
    record.head() = {.key = h.key,
                     .last_used = h.last_used,
                     .home = home,
                     .parent = h.parent,
                     .provenance = static_cast<int32_t>(h.provenance)};
    std::copy(h.tokens.begin(), h.tokens.end(), record.tokens().begin());
    std::memcpy(record.meta(), tier_->meta(home), static_cast<size_t>(tier_->meta_bytes()));
    record.stored_sum() = record.sum();
    out.write(record.data(), record.size());
    ++head.records;
    for (HomeId child = h.first_child; child != kNoHome; child = at(child).next_sibling) open_nodes.push_back(child);
  }
  head.checksum = checksum_of(head);
  out.seekp(0);
  out.write(reinterpret_cast<const char*>(&head), sizeof(head));
  out.close();
  if (!out || head.records == 0) {
    const Status status = out ? Status() : failed(temporary);
    unlink(temporary.c_str());
    return status;
  }
  OASIS_RETURN_IF_ERROR(replace(temporary, path));
  tier_->keep_file();
  return {};
}

int32_t HomeStore::restore(const PrefixKey& identity, const PrefixKey& root) {
  const auto lasting = tier_->lasting();
  if (!lasting) return 0;
  OASIS_CHECK(count(State::kFree) == capacity(), "a prefix cache is restored into a store that is in use");
  std::ifstream in(lasting->file + ".index", std::ios::binary);
  Record record(block_size_, lasting->layers, tier_->meta_bytes());
  Head head{};
  in.read(reinterpret_cast<char*>(&head), sizeof(head));
  if (!in || std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.checksum != checksum_of(head) ||
      head.identity != identity || head.record_bytes != record.size()) {
    unlink((lasting->file + ".index").c_str());  // what it tells of is about to be overwritten
    return 0;
  }
  for (int64_t i = 0; i < head.records && in.read(record.data(), record.size()); ++i) {
    const RecordHead& r = record.head();
    const auto inside = [&](HomeId home) { return home >= 0 && home < capacity(); };  // the file may be smaller now
    if (record.stored_sum() != record.sum() || !inside(r.home) || at(r.home).state != State::kFree) continue;
    if (r.parent != kNoHome && (!inside(r.parent) || !at(r.parent).published)) continue;
    const auto provenance = r.provenance == 0 ? Provenance::kDense : Provenance::kSparse;
    const PrefixKey& before = r.parent == kNoHome ? root : at(r.parent).key;
    if (r.key != prefix_child(before, record.tokens(), provenance) || by_key_.contains(r.key)) continue;
    tier_->adopt(r.home, record.checksums());
    std::memcpy(tier_->meta(r.home), record.meta(), static_cast<size_t>(tier_->meta_bytes()));
    at(r.home).last_used = r.last_used;
    clock_ = std::max(clock_, r.last_used);
    link(r.home, r.parent, r.key, provenance, record.tokens());
    set_state(r.home, State::kCached);
  }
  std::erase_if(free_, [&](HomeId home) { return at(home).state != State::kFree; });
  if (count(State::kCached) > 0) tier_->keep_file();
  return count(State::kCached);
}

}  // namespace oasis::kv
