// Parts of the decode kernel by themselves, for the benchmark; in a library built with PRIME_PARTS only.
#ifdef PRIME_PARTS
#include "launch.cuh"

namespace {

using Kernel = void (*)(const PrimeDecode);

template <class Rows>
Kernel part_of(int part) {
  switch (static_cast<Part>(part)) {
    case Part::kLaunch: return decode_kernel<Rows, false, Part::kLaunch>;
    case Part::kGather: return decode_kernel<Rows, false, Part::kGather>;
    case Part::kScores: return decode_kernel<Rows, false, Part::kScores>;
    default: return nullptr;
  }
}

}  // namespace

// As prime_decode, of a bf16 query, but ends after `part` (enum Part) and leaves no result. Call once before capture.
extern "C" int prime_decode_part(const PrimeDecode* args, int32_t part, void* stream) {
  const bool fp8 = args->cache.row_bytes == kFp8RowBytes;
  const Kernel kernel = fp8 ? part_of<Fp8Rows>(part) : part_of<Nvfp4Rows>(part);
  if (kernel == nullptr || args->query_is_half) return cudaErrorInvalidValue;
  const int shared_bytes = fp8 ? Shared<Fp8Rows>::kBytes : Shared<Nvfp4Rows>::kBytes;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 clusters(1, unsigned((args->heads + kHeads - 1) / kHeads), unsigned(args->tokens));
  cudaLaunchAttribute attribute[2];
  const cudaLaunchConfig_t config = configure(shared_bytes, args->cluster_size, clusters, attribute, false, stream);
  PrimeDecode copy = with_stages(*args);
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}
#endif
