import subprocess
import sys
from importlib.metadata import EntryPoint

from prime_inference.cli import build


def test_only_the_wanted_subcommand_is_imported() -> None:
    points = [EntryPoint("good", "prime_inference.local.command:up", "g"), EntryPoint("bad", "no.such:thing", "g")]
    build(points, "good")


def test_help_lists_the_subcommands_and_starts_without_the_web_framework() -> None:
    script = (
        "import sys; from prime_inference.cli import main; sys.argv=['prime-inference','--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'fastapi','uvicorn','torch','vllm','aiohttp'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"up", "gateway"} <= set(done.stdout.split())
