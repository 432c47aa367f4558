"""`prime-inference gateway`: one gateway process, configured by PRIME_GATEWAY_* variables."""

import typer


def gateway() -> None:
    """Serve the OpenAI-compatible API in front of a fleet (settings: PRIME_GATEWAY_* environment variables)."""
    import uvloop  # noqa: PLC0415 - `prime-inference --help` must not load a web server

    from gateway.accounts.keys import KeysFileError  # noqa: PLC0415
    from gateway.fleet.registry import FleetFileError  # noqa: PLC0415
    from gateway.fleet.snapshot import SnapshotError  # noqa: PLC0415
    from gateway.server import PortInUse, serve  # noqa: PLC0415
    from gateway.settings import SettingsError, load_settings  # noqa: PLC0415

    try:
        uvloop.run(serve(load_settings()))
    except (SettingsError, FleetFileError, KeysFileError, SnapshotError, PortInUse) as error:
        typer.echo(f"prime-inference gateway: {error}", err=True)
        raise typer.Exit(2) from error
