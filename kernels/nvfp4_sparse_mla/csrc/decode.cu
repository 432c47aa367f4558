// Host side of the decode kernel: one-time preparation (outside graph capture) and the launch.
#include <cuda_runtime.h>

#include "launch.cuh"

namespace {

using Kernel = void (*)(const PrimeDecode);

struct Choice {
  Kernel kernel;
  int shared_bytes;
};

template <class Rows>
Choice choose(bool half) {
  return {half ? decode_kernel<Rows, true> : decode_kernel<Rows, false>, Shared<Rows>::kBytes};
}

Choice choose(int row_bytes, bool half) {
  return row_bytes == kFp8RowBytes ? choose<Fp8Rows>(half) : choose<Nvfp4Rows>(half);
}

}  // namespace

// Readies the current device for both row formats. capacity[c]: clusters of c CTAs that run at once, 0 where none.
extern "C" int prime_decode_prepare(int32_t capacity[kMaxCluster + 1]) {
  for (int c = 0; c <= kMaxCluster; ++c) capacity[c] = 1 << 30;
  for (const int each : {0, 1, 2, 3}) {
    const Choice choice = choose(each / 2 ? kFp8RowBytes : kNvfp4RowBytes, each % 2);
    cudaError_t error = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes);
    if (error != cudaSuccess) return error;
    for (int c = 1; c <= kMaxCluster; ++c) {
      cudaLaunchAttribute attribute[2];
      const cudaLaunchConfig_t config = configure(choice.shared_bytes, c, dim3(1), attribute, false, nullptr);
      int clusters = 0;
      error = cudaOccupancyMaxActiveClusters(&clusters, choice.kernel, &config);
      if (error != cudaSuccess) return error;
      if (clusters < capacity[c]) capacity[c] = clusters;
    }
  }
  capacity[0] = 0;
  return cudaSuccess;
}

extern "C" int prime_decode(const PrimeDecode* args, void* stream) {
  if (args->tokens == 0) return cudaSuccess;
  const dim3 clusters(1, unsigned((args->heads + kHeads - 1) / kHeads), unsigned(args->tokens));
  const Choice choice = choose(args->cache.row_bytes, args->query_is_half);
  cudaLaunchAttribute attribute[2];
  const cudaLaunchConfig_t config =
      configure(choice.shared_bytes, args->cluster_size, clusters, attribute, args->early_launch, stream);
  PrimeDecode copy = with_stages(*args);
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(choice.kernel), arguments);
}

// The compiler that made this library, 1000 * major + minor: 13000 for CUDA 13.0.
extern "C" int prime_compiler_version() { return 1000 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__; }

extern "C" const char* prime_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
