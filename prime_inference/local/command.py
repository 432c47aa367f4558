"""The command line of `prime-inference up`."""

from pathlib import Path
from typing import Annotated

import typer

from prime_inference.local.options import (
    DEFAULT_L1_GIB,
    DEFAULT_MODEL,
    DEFAULT_SHARDS,
    DeviceChoice,
    EngineChoice,
    TiersChoice,
    UpOptions,
)
from prime_inference.local.state_dir import default_state_dir


def up(
    *,
    model: Annotated[str, typer.Option(help="A model folder, a Hugging Face id, or the default.")] = DEFAULT_MODEL,
    device: Annotated[DeviceChoice, typer.Option(help="Where the workers run.")] = DeviceChoice.AUTO,
    engine: Annotated[
        EngineChoice, typer.Option(help="vllm, or Dynamo's mocker: many workers on a laptop, made-up text.")
    ] = EngineChoice.VLLM,
    prefill: Annotated[int, typer.Option(min=1, max=64, help="Prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(min=1, max=64, help="Decode workers.")] = 1,
    prefill_ranks: Annotated[
        int, typer.Option(min=1, max=8, help="Tensor-parallel ranks of each prefill worker, on a CPU.")
    ] = 1,
    host: Annotated[str, typer.Option(help="Address of the gateway.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the gateway.")] = 8000,
    context_tokens: Annotated[
        int | None, typer.Option(min=64, help="Longest prompt plus answer; default: the model's, 8192 on a CPU.")
    ] = None,
    tiers: Annotated[
        TiersChoice,
        typer.Option(help="Where prefixes are kept outside the engine: nowhere, LMCache over Valkeys, or Mooncake."),
    ] = TiersChoice.NONE,
    shards: Annotated[int, typer.Option(min=1, max=64, help="Valkey shards, with --tiers lmcache.")] = DEFAULT_SHARDS,
    l1_gib: Annotated[
        float, typer.Option(min=0.05, help="Host memory that LMCache keeps KV in, in GiB, with --tiers lmcache.")
    ] = DEFAULT_L1_GIB,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where this stack keeps its logs, key and sockets.", file_okay=False)
    ] = None,
) -> None:
    """Start the whole stack on this machine and serve until Ctrl-C."""
    import asyncio  # noqa: PLC0415 - `--help` answers at once

    from rich.console import Console  # noqa: PLC0415

    from prime_inference.local.display import display_for  # noqa: PLC0415
    from prime_inference.local.errors import UpError  # noqa: PLC0415
    from prime_inference.local.up import Interrupted  # noqa: PLC0415
    from prime_inference.local.up import up as serve  # noqa: PLC0415

    options = UpOptions(
        model=model,
        device=device,
        engine=engine,
        prefill=prefill,
        decode=decode,
        prefill_ranks=prefill_ranks,
        host=host,
        port=port,
        context_tokens=context_tokens,
        tiers=tiers,
        shards=shards,
        l1_gib=l1_gib,
        state_dir=(state_dir or default_state_dir()).expanduser().resolve(),
    )
    try:
        asyncio.run(serve(options, display_for(Console(highlight=False))))
    except Interrupted:
        return
    except UpError as error:
        typer.echo(f"prime-inference up: {error}", err=True)
        raise typer.Exit(1) from error
