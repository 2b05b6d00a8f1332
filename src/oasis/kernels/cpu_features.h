// Which instruction set the kernels use.
#pragma once

namespace oasis::kernels {

enum class CpuLevel { kPortable, kAvx2, kAvx512 };  // kAvx512: F, BW, VL, DQ, VNNI and BF16

// The best level of this processor, or the lower one named by the environment variable OASIS_CPU (portable, avx2,
// avx512), with which tests and bug reports pin it. Read once.
CpuLevel cpu_level();

// For tests: overrides the level until called again. Levels above the processor's are ignored.
void set_cpu_level(CpuLevel level);

}  // namespace oasis::kernels
