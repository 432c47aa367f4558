// The staged path's first step: selected NVFP4 rows -> a dense FP8 buffer for the FP8 attention kernel. 16 values a
// lane, one row a warp at a time. The second rounding (to unscaled E4M3) is the staged path's own loss of accuracy.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "row.cuh"

namespace {

constexpr int kWarps = 8;
constexpr int kRowsPerWarp = 4;  // their reads are in flight together

__device__ inline uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The eight magnitudes as half-precision high bytes: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t high = __byte_perm(0x3E3C3800u, 0x46444240u, code & 7u) & 0xFFu;
  const __half_raw half = {uint16_t((high << 8) | ((code & 8u) << 12))};
  return __half2float(half);
}

// The row of `item`, or -1.
__device__ inline int selected_row(const PrimeUnpack& args, int64_t item, int64_t items) {
  if (item >= items) return -1;
  const int token = int(item / args.topk);
  const int row = args.indices[token * args.indices_stride + (item - int64_t(token) * args.topk)];
  return row < args.cache.rows ? row : -1;
}

__global__ void __launch_bounds__(32 * kWarps) unpack_kernel(const PrimeUnpack args) {
  const int lane = threadIdx.x % 32;
  const int64_t items = int64_t(args.tokens) * args.topk;
  const int64_t first = (int64_t(blockIdx.x) * kWarps + threadIdx.x / 32) * kRowsPerWarp;
  int rows[kRowsPerWarp];
  uint2 packed[kRowsPerWarp];
  uint8_t scales[kRowsPerWarp];
  uint16_t rope[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) rows[i] = selected_row(args, first + i, items);
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    if (rows[i] < 0) continue;
    const uint8_t* source = row_address(args.cache, rows[i]);
    packed[i] = *reinterpret_cast<const uint2*>(source + 8 * lane);
    rope[i] = *reinterpret_cast<const uint16_t*>(source + kRopeOffset + 2 * lane);
    scales[i] = source[kScaleOffset + 8 * (lane % 4) + lane / 4];
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int64_t item = first + i;
    if (lane == 0 && item < items) args.positions[item] = rows[i] < 0 ? -1 : int(item);
    if (rows[i] < 0) continue;
    const __half_raw scale_half = __nv_cvt_fp8_to_halfraw(scales[i], __NV_E4M3);
    const float scale = __half2float(scale_half);
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t codes = (word < 2 ? packed[i].x : packed[i].y) >> (16 * (word % 2));
      words[word] = e4m3_pair(e2m1_value(codes) * scale, e2m1_value(codes >> 4) * scale) |
                    e4m3_pair(e2m1_value(codes >> 8) * scale, e2m1_value(codes >> 12) * scale) << 16;
    }
    uint8_t* out = args.rows + item * kFp8RowBytes;
    *reinterpret_cast<uint4*>(out + 16 * lane) = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint16_t*>(out + kLatentDim + 2 * lane) = rope[i];
  }
}

}  // namespace

extern "C" int prime_unpack_rows(const PrimeUnpack* args, void* stream) {
  const int64_t items = int64_t(args->tokens) * args->topk;
  if (items == 0) return 0;
  constexpr int kRowsPerCta = kWarps * kRowsPerWarp;
  const int64_t ctas = (items + kRowsPerCta - 1) / kRowsPerCta;
  unpack_kernel<<<unsigned(ctas), 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
