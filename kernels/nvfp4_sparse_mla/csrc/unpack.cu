// The staged path's first step: selected NVFP4 rows -> a dense FP8 buffer for the FP8 attention kernel. 16 values a
// lane, one row a warp at a time. The second rounding (to unscaled E4M3) is the staged path's own loss of accuracy.
#include "formats.cuh"

namespace {

constexpr int kWarps = 8;
constexpr uint32_t kTrueScale = Nvfp4Rows::kInterleaved ? 0x54005400u : 0x3C003C00u;  // two halves: 64, or 1
constexpr int kRowsPerWarp = 4;  // their reads are in flight together

// Two halves as two E4M3 bytes, saturating.
__device__ inline uint32_t to_e4m3_pair(uint32_t halves) {
  uint16_t bytes;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(bytes) : "r"(halves));
  return bytes;
}

// Eight E2M1 values times their scale (both exact in fp16) as eight E4M3 bytes.
__device__ inline uint2 to_e4m3_bytes(uint32_t packed, uint32_t scale) {
  uint32_t h[4];
  Nvfp4Rows::unpack_word(packed, h[0], h[1], h[2], h[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) h[i] = multiply_half2(h[i], scale);
  const uint32_t first = to_e4m3_pair(h[0]) | to_e4m3_pair(h[1]) << 16;
  const uint32_t second = to_e4m3_pair(h[2]) | to_e4m3_pair(h[3]) << 16;
  if constexpr (!Nvfp4Rows::kInterleaved) return make_uint2(first, second);
  return make_uint2(__byte_perm(first, second, 0x5140), __byte_perm(first, second, 0x7362));
}

// Grid: (positions of one token, token), so that nothing is divided by topk.
__global__ void __launch_bounds__(32 * kWarps) unpack_kernel(const PrimeUnpack args) {
  const int lane = threadIdx.x % 32;
  const int token = blockIdx.y;
  const int first = (blockIdx.x * kWarps + threadIdx.x / 32) * kRowsPerWarp;
  int rows[kRowsPerWarp];
  uint2 packed[kRowsPerWarp];
  uint8_t scales[kRowsPerWarp];
  uint16_t rope[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    rows[i] = first + i < args.topk ? args.indices[token * args.indices_stride + first + i] : -1;
    if (rows[i] >= args.cache.rows) rows[i] = -1;
  }
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
    const int64_t item = int64_t(token) * args.topk + first + i;
    if (lane == 0 && first + i < args.topk) args.positions[item] = rows[i] < 0 ? -1 : int(item);
    if (rows[i] < 0) continue;
    const uint32_t scale = multiply_half2(e4m3_to_half2(uint16_t(scales[i] * 0x0101u)), kTrueScale);
    const uint2 low = to_e4m3_bytes(packed[i].x, scale), high = to_e4m3_bytes(packed[i].y, scale);
    uint8_t* out = args.rows + item * kFp8RowBytes;
    *reinterpret_cast<uint4*>(out + 16 * lane) = make_uint4(low.x, low.y, high.x, high.y);
    *reinterpret_cast<uint16_t*>(out + kLatentDim + 2 * lane) = rope[i];
  }
}

}  // namespace

extern "C" int prime_unpack_rows(const PrimeUnpack* args, void* stream) {
  if (args->tokens == 0) return 0;
  constexpr int kRowsPerCta = kWarps * kRowsPerWarp;
  const dim3 ctas((args->topk + kRowsPerCta - 1) / kRowsPerCta, args->tokens);
  unpack_kernel<<<ctas, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
