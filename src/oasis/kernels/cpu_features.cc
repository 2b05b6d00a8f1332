#include "oasis/kernels/cpu_features.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

namespace oasis::kernels {
namespace {

CpuLevel best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512bf16")) {
    return CpuLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    return CpuLevel::kAvx2;
#endif
  return CpuLevel::kPortable;
}

std::atomic<CpuLevel>& level() {
  static std::atomic<CpuLevel> value = [] {
    const char* name = std::getenv("OASIS_CPU");
    const std::string_view text = name ? name : "";
    CpuLevel wanted = CpuLevel::kAvx512;
    if (text == "portable") wanted = CpuLevel::kPortable;
    if (text == "avx2") wanted = CpuLevel::kAvx2;
    return std::min(wanted, best_level());
  }();
  return value;
}

}  // namespace

CpuLevel cpu_level() { return level().load(std::memory_order_relaxed); }

void set_cpu_level(CpuLevel wanted) { level().store(std::min(wanted, best_level()), std::memory_order_relaxed); }

}  // namespace oasis::kernels
