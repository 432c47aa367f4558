"""Finding the model in a process of its own: fetching and converting take minutes, and Ctrl-C must end them at once.

`python -m prime_inference.local.fetch MODEL` prints one JSON object a line: `{"say": text}` while it works, then the model
or `{"error": text}`.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from prime_inference.local.errors import UpError
from prime_inference.local.model import LocalModel, find_model
from prime_inference.toolcalls.serving import ToolFormat


async def fetch_model(wanted: str, say: Callable[[str], None]) -> LocalModel:
    """The model, found by a child process that ends when this is cancelled. Raises UpError."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "prime_inference.local.tether", str(os.getpid()), "0", "--"),
        *(sys.executable, "-m", "prime_inference.local.fetch", wanted),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    noise = asyncio.create_task(child.stderr.read())
    try:
        async for line in child.stdout:
            told = json.loads(line)
            if "say" in told:
                say(told["say"])
            elif "error" in told:
                raise UpError(told["error"])
            else:
                return LocalModel(
                    **{**told, "path": Path(told["path"]), "tool_format": ToolFormat(told["tool_format"])}
                )
        reason = (await noise).decode(errors="replace").strip().splitlines()[-1:] or ["it wrote nothing"]
        raise UpError(f"cannot find the model {wanted}: {reason[0]}")
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.gather(child.wait(), noise, return_exceptions=True)


def main(wanted: str) -> None:
    def tell(what: dict[str, object]) -> None:
        print(json.dumps(what), flush=True)

    try:
        model = find_model(wanted, lambda text: tell({"say": text}))
    except UpError as error:
        tell({"error": str(error)})
        return
    tell({**asdict(model), "path": str(model.path)})


if __name__ == "__main__":
    main(sys.argv[1])
