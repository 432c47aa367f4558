// The two row formats as the decode kernel sees them: one lane's share of a key, ready for the tensor cores.
//
// In a fragment, lane (g, c) = (lane / 4, lane % 4) holds key g and, of each chunk of 64 dims, the 16 dims of scale
// block 4 * chunk + c. Which dims of a key meet in one k-step is free as long as the query is arranged alike, so each
// format takes the order its conversion yields: `kInterleaved` is (0 2)(4 6) | (1 3)(5 7) within eight dims, otherwise
// (0 1)(2 3) | (4 5)(6 7).
#pragma once
#include <cuda_fp16.h>

#include "ptx.cuh"
#include "row.cuh"

#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define PRIME_E2M1_CONVERT 1  // cvt.rn.f16x2.e2m1x2 exists: true values in natural order
#else
#define PRIME_E2M1_CONVERT 0
#endif

struct Nvfp4Rows {
  static constexpr int kBytes = kNvfp4RowBytes;
  static constexpr int kRope = kRopeOffset;
  static constexpr int kSlots = 7;
#if PRIME_E2M1_CONVERT
  static constexpr bool kInterleaved = false;
  static constexpr float kValueScale = 1.0f;
#else
  static constexpr bool kInterleaved = true;
  // An E2M1 code moved into an E4M3 byte reads as value / 2^6. The rest stays exact: products are multiples of 2^-16.
  static constexpr float kValueScale = 64.0f;
#endif

  using Packed = uint2;     // one key's 16 values of one chunk, as stored
  using Scales = uint32_t;  // one key's scales of four chunks, a byte each

  __device__ static Packed fetch(uint32_t row, int chunk, int c) { return load_shared_v2(row + 32 * chunk + 8 * c); }
  __device__ static Scales fetch_scales(uint32_t row, int dim_half, int c) {
    return load_shared_u32(row + kScaleOffset + 8 * c + 4 * dim_half);
  }

  // Scaled halves; `chunk` counts within the scales' half.
  __device__ static void unpack(Packed packed, Scales scales, int chunk, uint32_t (&v)[8]) {
    const uint32_t both = chunk < 2 ? e4m3_to_half2(uint16_t(scales)) : e4m3_high_to_half2(scales);
    const __half2 two = *reinterpret_cast<const __half2*>(&both);
    const __half2 scale = chunk % 2 == 0 ? __low2half2(two) : __high2half2(two);  // free: products take either half
    unpack_word(packed.x, v[0], v[1], v[2], v[3]);
    unpack_word(packed.y, v[4], v[5], v[6], v[7]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&v[i]), scale);
      v[i] = *reinterpret_cast<const uint32_t*>(&scaled);
    }
  }

  __device__ static void unpack_word(uint32_t x, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
#if PRIME_E2M1_CONVERT
    asm("{\n\t.reg .b8 p, q, r, s;\n\tmov.b32 {p, q, r, s}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, p;\n\tcvt.rn.f16x2.e2m1x2 %1, q;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, r;\n\tcvt.rn.f16x2.e2m1x2 %3, s;\n}"
        : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
        : "r"(x));
#else
    // Nibble s e e m -> byte s 0 0 e e m 0 0; low nibbles are the even dims.
    const uint32_t even = ((x << 4) & 0x80808080u) | ((x << 2) & 0x1C1C1C1Cu);
    const uint32_t odd = (x & 0x80808080u) | ((x >> 2) & 0x1C1C1C1Cu);
    e4m3_to_half2(even, a, b);
    e4m3_to_half2(odd, c, d);
#endif
  }
};

struct Fp8Rows {
  static constexpr int kBytes = kFp8RowBytes;
  static constexpr int kRope = kLatentDim;
  static constexpr int kSlots = 4;
  static constexpr bool kInterleaved = false;
  static constexpr float kValueScale = 1.0f;

  using Packed = uint4;
  struct Scales {};

  __device__ static Packed fetch(uint32_t row, int chunk, int c) { return load_shared_v4(row + 64 * chunk + 16 * c); }
  __device__ static Scales fetch_scales(uint32_t, int, int) { return {}; }

  __device__ static void unpack(Packed packed, Scales, int, uint32_t (&v)[8]) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) e4m3_to_half2(words[i], v[2 * i], v[2 * i + 1]);
  }
};
