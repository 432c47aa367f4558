"""LMCache's multiprocess server as we start it: `python -m prime_inference.kv.server L2_PARAMETERS ARGUMENTS...`

L2_PARAMETERS is the JSON object of the L2 client's settings (l2/settings.py); ARGUMENTS go to `lmcache server` as they are.
Before LMCache is started, what would make it fail late or in silence is looked at, and the process ends with one sentence
that names the cure:

- the libraries without which LMCache does not import beside Mooncake (libibverbs, libnuma)
- settings of the L2 client
- every shard: does a Valkey answer there, and to us
"""

import json
import sys
from collections.abc import Sequence

from prime_inference.kv.l2.check import ShardCheck, ShardState, check_shards
from prime_inference.kv.l2.settings import L2SettingsError, parse_settings

LIBRARIES = {"libibverbs": "libibverbs1", "libnuma": "libnuma1"}
"""Part of a loader's message -> the Debian package with the library."""

WRONG = (ShardState.NOT_VALKEY, ShardState.REFUSED)
"""A shard that is away may come back; one that is wrongly named or protected stays so until a person acts."""


class StartRefused(Exception):
    """The server must not start; the text names the cure."""


def cure_of_import(error: ImportError) -> str:
    for part, package in LIBRARIES.items():
        if part in str(error):
            return (
                f"LMCache does not import ({error}): install the system package {package} (apt-get install {package})"
            )
    return f"LMCache does not import: {error}. Install requirements/local.txt or requirements/gpu.txt"


def refusal(checks: Sequence[ShardCheck]) -> str | None:
    """Why the server must not start with these shards, or None. Some shards away make a smaller tier, not none."""
    wrong = [check.cure for check in checks if check.state in WRONG]
    if wrong:
        return "; ".join(wrong)
    if not any(check.state is ShardState.READY for check in checks):
        return "; ".join(check.cure for check in checks)
    return None


def adapter_of(parameters: dict[str, object]) -> str:
    """The value of `--l2-adapter`."""
    return json.dumps(
        {
            "type": "native_plugin",
            "module_path": "prime_inference.kv.l2.exported",
            "class_name": "ExportedL2Client",
            "adapter_params": parameters,
        }
    )


def check(parameters: dict[str, object]) -> None:
    """Print a line a shard. Raises StartRefused."""
    try:
        settings = parse_settings(**parameters)  # type: ignore[arg-type]  # parse_settings checks what it is given
    except (L2SettingsError, TypeError) as error:
        raise StartRefused(f"L2 parameters: {error}") from error
    checks = check_shards(settings)
    for each in checks:
        told = each.cure or f"{each.round_trip_s * 1e3:.2f} ms, {each.bytes_per_s / 1e9:.2f} GB/s for one load"
        print(f"shard {each.address}: {each.state}: {told}", flush=True)
    because = refusal(checks)
    if because is not None:
        raise StartRefused(because)


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit(__doc__)
    parameters = json.loads(arguments[0])
    try:
        check(parameters)
        try:
            import lmcache.v1.multiprocess.server  # noqa: F401, PLC0415 - seconds, and only after the cheap checks
            from lmcache.cli.main import main as lmcache_main  # noqa: PLC0415
        except ImportError as error:
            raise StartRefused(cure_of_import(error)) from error
    except StartRefused as because:
        sys.exit(f"prime-inference tiers: {because}")
    sys.argv = ["lmcache", "server", *arguments[1:], "--l2-adapter", adapter_of(parameters)]
    sys.exit(lmcache_main())


if __name__ == "__main__":
    main(sys.argv[1:])
