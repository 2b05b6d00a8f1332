// Sorting within a thread block.
#pragma once

namespace oasis::kernels {

// Sorts `keys` [size] in shared memory by all threads of the block: a bitonic network. size is a power of two and at
// least 64; blockDim.x is a multiple of 32. Begins after a barrier of the caller's and ends with one.
template <typename Key>
__device__ void sort_ascending(Key* keys, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const Key a = keys[low], b = keys[high];
        if ((a > b) == ((low & run) == 0)) keys[low] = b, keys[high] = a;
      }
      // With steps of up to 32 a warp stays within its own 64 keys, whatever the other warps do.
      const int next = step > 1 ? step / 2 : run;
      if (step > 32 || next > 32) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

}  // namespace oasis::kernels
