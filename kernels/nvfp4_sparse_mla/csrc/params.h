// Arguments of the C library, one plain struct a kernel. library.py mirrors them field by field.
#pragma once
#include <stdint.h>

// A paged cache of rows: row i lies at base + (i / block_size) * block_stride + (i % block_size) * row_stride.
struct PrimeCache {
  uint8_t* base;
  int64_t rows;          // an index or slot outside [0, rows) is skipped
  int64_t block_stride;  // bytes; a multiple of 16
  int64_t row_stride;    // bytes; a multiple of 16
  int32_t block_size;    // rows
  int32_t row_bytes;     // 352 (NVFP4) or 576 (FP8)
};

struct PrimeDecode {
  struct PrimeCache cache;
  const void* q_latent;        // [tokens, heads, 512]
  const void* q_rope;          // [tokens, heads, 64]
  const int32_t* indices;      // [tokens, topk], flat rows
  void* out;                   // [tokens, heads, 512] bf16, contiguous
  float* lse;                  // [tokens, heads], natural logarithm, contiguous
  int64_t q_latent_strides[2]; // elements, of token and head; multiples of 8
  int64_t q_rope_strides[2];
  int64_t indices_stride;      // elements, of token
  int32_t tokens;
  int32_t heads;
  int32_t topk;
  int32_t query_is_half;       // 1: fp16, 0: bf16
  float softmax_scale;
  int32_t cluster_size;        // thread blocks that share one token
  int32_t early_launch;        // 1: may start before the kernel ahead has ended (programmatic dependent launch)
  int32_t stages_each;         // stages of selected rows that each of them takes; set by prime_decode
  int32_t stages_over;         // the first this many take one more; set by prime_decode
};

struct PrimeWrite {
  struct PrimeCache cache;
  const void* latent;      // [count, 512] bf16
  const void* rope;        // [count, 64] bf16
  const int64_t* slots;    // [count]; below 0: skip
  int64_t latent_stride;   // elements, of row; a multiple of 8
  int64_t rope_stride;     // elements, of row; a multiple of 2
  int32_t count;
};

// The staged path's first step: selected NVFP4 rows become FP8 rows, one after the other.
struct PrimeUnpack {
  struct PrimeCache cache;
  const int32_t* indices;  // [tokens, topk]
  int64_t indices_stride;
  uint8_t* rows;           // [tokens * topk, 576], contiguous
  int32_t* positions;      // [tokens, topk]: where each row went, -1 where none was selected
  int32_t tokens;
  int32_t topk;
};
