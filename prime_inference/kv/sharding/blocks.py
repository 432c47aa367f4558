"""A chunk's KV as one row of bytes: out of the engine's blocks, and back (torch)."""

from collections.abc import Callable, Sequence

import torch


class ChunkBlocks:
    """The engine's layers, whose first dimension is the block."""

    def __init__(self, layers: Sequence[torch.Tensor], blocks: int) -> None:
        """Raises ValueError where a layer has another number of blocks: then block numbers mean something else."""
        for layer in layers:
            if layer.shape[0] != blocks:
                raise ValueError(f"a layer of shape {tuple(layer.shape)} does not begin with its {blocks} blocks")
        self._layers = list(layers)

    def bytes_of(self, blocks: int) -> int:
        return blocks * sum(int(layer[0].numel() * layer.element_size()) for layer in self._layers)

    def gather(self, blocks: Sequence[int], row: torch.Tensor) -> None:
        """Copy these blocks of all layers into `row` (uint8, on the host)."""
        at = 0
        for layer in self._layers:
            part = layer[list(blocks)].contiguous().view(torch.uint8).reshape(-1)
            row[at : at + part.numel()].copy_(part)
            at += part.numel()

    def scatter(self, blocks: Sequence[int], row: torch.Tensor, *, skip: int = 0) -> None:
        """Copy `row` into these blocks, but for the first `skip` of them."""
        at = 0
        for layer in self._layers:
            shape = (len(blocks), *layer.shape[1:])
            size = layer[0].numel() * layer.element_size() * len(blocks)
            part = row[at : at + size].view(layer.dtype).reshape(shape)
            layer[list(blocks[skip:])] = part[skip:].to(layer.device)
            at += size


class OneBuffer(Sequence[torch.Tensor]):
    """One row of bytes that serves for all chunks of a load: `fill` puts a chunk into it when it is this rank's to send."""

    def __init__(self, row: torch.Tensor, chunks: int, fill: Callable[[int], None]) -> None:
        self._row = row
        self._chunks = chunks
        self._fill = fill

    def __len__(self) -> int:
        return self._chunks

    def __getitem__(self, chunk):  # type: ignore[no-untyped-def]  # only by number, never by slice
        self._fill(chunk)
        return self._row
