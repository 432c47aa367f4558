// Quantise-and-write: BF16 latent and positional values become cache rows at given slots. One warp a row, lane b owns
// block b. Bit-exact with writer.py: each step is one IEEE float32 operation in the same order.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "row.cuh"

namespace {

constexpr int kRowsPerCta = 4;  // warps; more only adds tail

__device__ inline uint8_t to_e4m3(float value) {
  return uint8_t(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

__device__ inline float from_e4m3(uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(half);
}

// Round to nearest even: an even code takes both of its midpoints.
__device__ inline uint32_t to_e2m1(float value) {
  const float magnitude = fabsf(value);
  uint32_t code = 0;
  code += magnitude > 0.25f;
  code += magnitude >= 0.75f;
  code += magnitude > 1.25f;
  code += magnitude >= 1.75f;
  code += magnitude > 2.5f;
  code += magnitude >= 3.5f;
  code += magnitude > 5.0f;
  code |= (__float_as_uint(value) >> 31) << 3;
  return isnan(value) ? 7u : code;
}

__device__ inline void load_block(const __nv_bfloat16* source, float (&values)[16]) {
  const uint4* words = reinterpret_cast<const uint4*>(source);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const uint4 loaded = words[part];
    const uint32_t lanes[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[8 * part + 2 * i] = __uint_as_float(lanes[i] << 16);
      values[8 * part + 2 * i + 1] = __uint_as_float(lanes[i] & 0xFFFF0000u);
    }
  }
}

__global__ void __launch_bounds__(32 * kRowsPerCta) write_kernel(const PrimeWrite args) {
  const int row = blockIdx.x * kRowsPerCta + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= args.count) return;
  const int64_t slot = args.slots[row];
  if (slot < 0 || slot >= args.cache.rows) return;
  uint8_t* out = row_address(args.cache, slot);

  float values[16];
  load_block(static_cast<const __nv_bfloat16*>(args.latent) + row * args.latent_stride + 16 * lane, values);
  const __nv_bfloat162 rope = *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(args.rope) +
                                                                      row * args.rope_stride + 2 * lane);
  const uint16_t rope_codes = uint16_t(to_e4m3(__low2float(rope)) | (to_e4m3(__high2float(rope)) << 8));

  if (args.cache.row_bytes == kFp8RowBytes) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i / 4] |= uint32_t(to_e4m3(values[i])) << (8 * (i % 4));
    *reinterpret_cast<uint4*>(out + 16 * lane) = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint16_t*>(out + kLatentDim + 2 * lane) = rope_codes;
    return;
  }
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(values[i]));  // fmaxf passes over a NaN
  const uint8_t scale = to_e4m3(fmaxf(__fdiv_rn(amax, 6.0f), 0x1p-9f));
  const float reciprocal = __fdiv_rn(1.0f, from_e4m3(scale));
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 8] |= to_e2m1(__fmul_rn(values[i], reciprocal)) << (4 * (i % 8));
  *reinterpret_cast<uint2*>(out + 8 * lane) = make_uint2(words[0], words[1]);
  *reinterpret_cast<uint16_t*>(out + kRopeOffset + 2 * lane) = rope_codes;
  out[kScaleOffset + 8 * (lane % 4) + lane / 4] = scale;
}

}  // namespace

extern "C" int prime_write_rows(const PrimeWrite* args, void* stream) {
  if (args->count == 0) return 0;
  const int ctas = (args->count + kRowsPerCta - 1) / kRowsPerCta;
  write_kernel<<<ctas, 32 * kRowsPerCta, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
