// Address of a cache row, in 64 bits: a cache of more than 2^31 bytes is ordinary.
#pragma once
#include "params.h"

constexpr int kLatentDim = 512;
constexpr int kRopeDim = 64;
constexpr int kNvfp4RowBytes = 352;
constexpr int kFp8RowBytes = 576;
constexpr int kRopeOffset = 256;   // of an NVFP4 row
constexpr int kScaleOffset = 320;  // of an NVFP4 row

__device__ inline uint8_t* row_address(const PrimeCache& cache, int64_t row) {
  // Division would be on the way of every gather; block sizes are powers of two but for odd tests.
  const int shift = __ffs(cache.block_size) - 1;
  const int64_t block = cache.block_size == 1 << shift ? row >> shift : row / cache.block_size;
  const int64_t within = row - block * cache.block_size;
  return cache.base + block * cache.block_stride + within * cache.row_stride;
}
