// The staged path's first step: selected NVFP4 rows -> a dense FP8 buffer for the FP8 attention kernel. One warp a row,
// 16 values a lane. The second rounding (to unscaled E4M3) is the staged path's own loss of accuracy.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "row.cuh"

namespace {

constexpr int kRowsPerCta = 8;

__device__ inline uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The eight magnitudes as half-precision high bytes: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t high = __byte_perm(0x3E3C3800u, 0x46444240u, code & 7u) & 0xFFu;
  const __half_raw half = {uint16_t((high << 8) | ((code & 8u) << 12))};
  return __half2float(half);
}

__global__ void __launch_bounds__(32 * kRowsPerCta) unpack_kernel(const PrimeUnpack args) {
  const int64_t item = int64_t(blockIdx.x) * kRowsPerCta + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (item >= int64_t(args.tokens) * args.topk) return;
  const int token = int(item / args.topk);
  const int position = int(item - int64_t(token) * args.topk);
  const int row = args.indices[token * args.indices_stride + position];
  const bool selected = row >= 0 && row < args.cache.rows;
  if (lane == 0) args.positions[item] = selected ? int(item) : -1;
  if (!selected) return;

  const uint8_t* source = row_address(args.cache, row);
  uint8_t* out = args.rows + item * kFp8RowBytes;
  const uint2 packed = *reinterpret_cast<const uint2*>(source + 8 * lane);
  const __half_raw scale_half = __nv_cvt_fp8_to_halfraw(source[kScaleOffset + 8 * (lane % 4) + lane / 4], __NV_E4M3);
  const float scale = __half2float(scale_half);
  const uint16_t rope = *reinterpret_cast<const uint16_t*>(source + kRopeOffset + 2 * lane);
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const uint32_t codes = (word < 2 ? packed.x : packed.y) >> (16 * (word % 2));
    words[word] = e4m3_pair(e2m1_value(codes) * scale, e2m1_value(codes >> 4) * scale) |
                  e4m3_pair(e2m1_value(codes >> 8) * scale, e2m1_value(codes >> 12) * scale) << 16;
  }
  *reinterpret_cast<uint4*>(out + 16 * lane) = make_uint4(words[0], words[1], words[2], words[3]);
  *reinterpret_cast<uint16_t*>(out + kLatentDim + 2 * lane) = rope;
}

}  // namespace

extern "C" int prime_unpack_rows(const PrimeUnpack* args, void* stream) {
  const int64_t items = int64_t(args->tokens) * args->topk;
  if (items == 0) return 0;
  const int64_t ctas = (items + kRowsPerCta - 1) / kRowsPerCta;
  unpack_kernel<<<unsigned(ctas), 32 * kRowsPerCta, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
