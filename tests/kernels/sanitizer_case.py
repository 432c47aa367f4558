"""Run under compute-sanitizer: every kernel once, over a cache whose neighbours are not ours to touch."""

import torch
from prime_kernels.nvfp4_sparse_mla import decode_into, unpack_rows, write_rows
from prime_kernels.testing.generators import GLM_SOFTMAX_SCALE, random_inputs, random_rows


def main() -> None:
    for row_bytes in (352, 576):
        for cluster_size in (1, 3, 8):
            inputs = random_inputs(3, 20, 290, rows=512, row_bytes=row_bytes, device="cuda")
            inputs.indices[:, ::7] = -1
            inputs.indices[0, :64] = 511
            out = torch.empty(3, 20, 512, dtype=torch.bfloat16, device="cuda")
            lse = torch.empty(3, 20, device="cuda")
            call = (out, lse, inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
            decode_into(*call, cluster_size)
            assert not out.isnan().any()
        latent, rope = random_rows(37, torch.Generator().manual_seed(0), torch.device("cpu"))
        slots = torch.randperm(512)[:37]
        slots[::5] = -1
        write_rows(latent.cuda(), rope.cuda(), inputs.cache, slots.cuda())
    inputs = random_inputs(3, 16, 290, rows=512, device="cuda")
    inputs.indices[:, ::7] = -1
    rows = torch.zeros(1, 870, 576, dtype=torch.uint8, device="cuda")
    positions = torch.empty(3, 290, dtype=torch.int32, device="cuda")
    unpack_rows(inputs.cache, inputs.indices, rows, positions)
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
