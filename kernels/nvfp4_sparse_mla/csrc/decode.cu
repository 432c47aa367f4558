// Host side of the decode kernel: one-time preparation (outside graph capture) and the launch.
#include <cuda_runtime.h>

#include "decode.cuh"

namespace {

using Kernel = void (*)(const PrimeDecode);

struct Choice {
  Kernel kernel;
  int shared_bytes;
};

Choice choose(int row_bytes) {
  if (row_bytes == kFp8RowBytes) return {decode_kernel<Fp8Rows>, Shared<Fp8Rows>::kBytes};
  return {decode_kernel<Nvfp4Rows>, Shared<Nvfp4Rows>::kBytes};
}

cudaLaunchConfig_t configure(const Choice& choice, int cluster, dim3 clusters, cudaLaunchAttribute* attribute, void* stream) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = cluster;
  attribute->val.clusterDim.y = 1;
  attribute->val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster, clusters.y, clusters.z);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = choice.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}

}  // namespace

// Readies the current device for both row formats. capacity[c]: clusters of c CTAs that run at once, 0 where none.
extern "C" int prime_decode_prepare(int32_t capacity[kMaxCluster + 1]) {
  for (int c = 0; c <= kMaxCluster; ++c) capacity[c] = 1 << 30;
  for (const int row_bytes : {kNvfp4RowBytes, kFp8RowBytes}) {
    const Choice choice = choose(row_bytes);
    cudaError_t error = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes);
    if (error != cudaSuccess) return error;
    for (int c = 1; c <= kMaxCluster; ++c) {
      cudaLaunchAttribute attribute;
      const cudaLaunchConfig_t config = configure(choice, c, dim3(1), &attribute, nullptr);
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
  const Choice choice = choose(args->cache.row_bytes);
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = configure(choice, args->cluster_size, clusters, &attribute, stream);
  PrimeDecode copy = *args;
  const int stages = (args->topk + kStageKeys - 1) / kStageKeys;
  copy.stages_each = stages / args->cluster_size;
  copy.stages_over = stages % args->cluster_size;
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(choice.kernel), arguments);
}

// The compiler that made this library, 1000 * major + minor: 13000 for CUDA 13.0.
extern "C" int prime_compiler_version() { return 1000 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__; }

extern "C" const char* prime_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
