"""The `prime-inference` command line.

Each subcommand is an entry point in the group `prime_inference.commands`, so that this module imports neither the
gateway nor the benchmarks, and `prime-inference --help` costs no import of a package that is not asked for.
"""

import sys
from importlib.metadata import EntryPoint, entry_points

import typer

COMMANDS_GROUP = "prime_inference.commands"


def build(points: list[EntryPoint], wanted: str | None) -> typer.Typer:
    """The command line with every subcommand named, and only `wanted` (or, without one, all) imported."""
    app = typer.Typer(name="prime-inference", no_args_is_help=True, add_completion=False, help=__doc__.split("\n")[0])

    @app.callback()
    def _root() -> None:
        pass

    for point in sorted(points, key=lambda point: point.name):
        if wanted is not None and point.name != wanted:
            continue
        loaded = point.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=point.name)
        else:
            app.command(name=point.name)(loaded)
    return app


def main() -> None:
    points = list(entry_points(group=COMMANDS_GROUP))
    first = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    build(points, first if first in {point.name for point in points} else None)()
