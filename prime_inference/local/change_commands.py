"""`prime-inference scale` and `prime-inference restart`: changing a running `up` while it serves."""

from pathlib import Path
from typing import Annotated

import typer

from prime_inference.local.pools import Target
from prime_inference.local.state_dir import StateDir, default_state_dir

StateDirOption = Annotated[Path | None, typer.Option(help="The running stack's folder.", file_okay=False)]
Size = Annotated[int | None, typer.Option(min=1, max=64, help="How many there are to be.")]


def scale(*, prefill: Size = None, decode: Size = None, state_dir: StateDirOption = None) -> None:
    """Add or remove workers of the running stack; whatever leaves is drained first."""
    from prime_inference.local.control import Scale  # noqa: PLC0415 - `--help` answers at once

    if prefill is None and decode is None:
        raise typer.BadParameter("say --prefill N, --decode N, or both")
    _tell(Scale(prefill=prefill, decode=decode), state_dir)


def restart(
    target: Annotated[Target, typer.Argument(help="Which processes are replaced by new ones, one after another.")],
    *,
    state_dir: StateDirOption = None,
) -> None:
    """Replace processes of the running stack without failing a request."""
    from prime_inference.local.control import Restart  # noqa: PLC0415

    _tell(Restart(target=target), state_dir)


def _tell(order: object, state_dir: Path | None) -> None:
    from prime_inference.local.control import Restart, Scale, ask  # noqa: PLC0415
    from prime_inference.local.errors import UpError  # noqa: PLC0415

    assert isinstance(order, Scale | Restart)
    state = StateDir((state_dir or default_state_dir()).expanduser().resolve())
    try:
        typer.echo(ask(state.control_socket, order))
    except UpError as error:
        typer.echo(f"prime-inference {order.op}: {error}", err=True)
        raise typer.Exit(1) from error
