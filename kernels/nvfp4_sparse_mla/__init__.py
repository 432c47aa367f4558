"""Sparse-MLA decode that reads NVFP4 cache rows as they are stored. README.md has the byte table."""

from .op import decode, decode_into, unpack_rows, write_rows

__all__ = ["decode", "decode_into", "unpack_rows", "write_rows"]
