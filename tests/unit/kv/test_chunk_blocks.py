"""A chunk's KV out of the engine's blocks and back, bit for bit."""

import pytest
import torch

from prime_inference.kv.sharding.blocks import ChunkBlocks, OneBuffer

BLOCKS = 12


def layers_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn((BLOCKS, 4, 9), generator=generator).to(torch.bfloat16)
    indexer = torch.randint(0, 255, (BLOCKS, 4, 5), generator=generator, dtype=torch.uint8)
    return [latent, latent.flip(0).clone(), indexer]


def test_what_is_gathered_on_one_rank_is_scattered_on_another_and_nothing_else_is_touched() -> None:
    sender, receiver, before = layers_of(1), layers_of(2), layers_of(2)
    from_blocks, to_blocks = [7, 2, 9], [3, 11, 0]
    row = torch.empty(ChunkBlocks(sender, BLOCKS).bytes_of(3), dtype=torch.uint8)
    ChunkBlocks(sender, BLOCKS).gather(from_blocks, row)
    ChunkBlocks(receiver, BLOCKS).scatter(to_blocks, row, skip=1)
    for ours, theirs, was in zip(receiver, sender, before, strict=True):
        for block in range(BLOCKS):
            at = to_blocks.index(block) if block in to_blocks else 0
            assert torch.equal(ours[block], theirs[from_blocks[at]] if at else was[block])


def test_a_layer_that_does_not_begin_with_its_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with its 12 blocks"):
        ChunkBlocks([torch.zeros((2, BLOCKS, 4))], BLOCKS)


def test_one_buffer_is_filled_when_its_turn_comes() -> None:
    row, filled = torch.zeros(4, dtype=torch.uint8), list[int]()
    buffers = OneBuffer(row, 3, filled.append)
    assert len(buffers) == 3
    assert buffers[2] is row
    assert filled == [2]
