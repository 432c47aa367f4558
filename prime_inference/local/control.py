"""How another process of the same user tells a running `up` to change: a socket in the state folder, one JSON line each
way. The folder is its owner's alone, and so is the socket.

    -> {"op": "scale", "prefill": 2, "decode": null}     null: as it is
    -> {"op": "restart", "target": "gateway"}
    <- {"done": "1 prefill, 3 decode"}    or    {"error": "too little memory: ..."}
"""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prime_inference.engine.presets import Role as WorkerRole
from prime_inference.local.changes import Changes
from prime_inference.local.errors import UpError
from prime_inference.local.pools import Target

MAX_WORKERS = 64
"""As for `up`."""

LONGEST_PATH = 107
"""Bytes of a Unix socket's name."""

Size = Annotated[int, Field(ge=1, le=MAX_WORKERS)]


class Scale(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    op: Literal["scale"] = "scale"
    prefill: Size | None = None
    decode: Size | None = None


class Restart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    op: Literal["restart"] = "restart"
    target: Target


Order = Scale | Restart
ORDER: TypeAdapter[Order] = TypeAdapter(Annotated[Order, Field(discriminator="op")])


def check_path(path: Path) -> None:
    """Raises UpError where the state folder's name is too long for a socket in it."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise UpError(f"{path} is too long a name for a socket: choose a shorter --state-dir.")


async def listen(path: Path, changes: Changes) -> asyncio.Server:
    """`path` is not there yet."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = await _carried_out(await reader.readline(), changes)
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            return  # who asked has left; the change was made all the same
        finally:
            writer.close()

    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(answer, path)
    finally:
        os.umask(before)


async def _carried_out(line: bytes, changes: Changes) -> dict[str, str]:
    try:
        order = ORDER.validate_json(line)
        if isinstance(order, Restart):
            return {"done": await changes.restart(order.target)}
        sizes = {WorkerRole.PREFILL: order.prefill, WorkerRole.DECODE: order.decode}
        return {"done": await changes.scale({role: size for role, size in sizes.items() if size is not None})}
    except (UpError, ValidationError) as error:
        return {"error": str(error)}


def ask(path: Path, order: Order) -> str:
    """What was done. Raises UpError with what was not."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(path))
            connection.sendall(order.model_dump_json().encode() + b"\n")
            answer = connection.makefile().readline()
    except OSError as error:
        raise UpError(f"no running `prime-inference up` on {path.parent} ({error.strerror}).") from error
    said = json.loads(answer or '{"error": "the stack ended meanwhile"}')
    if "error" in said:
        raise UpError(said["error"])
    return str(said["done"])
