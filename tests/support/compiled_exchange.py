"""The L2 client's C part, from where it is installed or built here for the tests."""

import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from prime_inference.kv.l2 import exchange

SOURCE = Path(exchange.__file__).with_name("_exchange.c")
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


@cache
def compiled() -> ModuleType | None:
    """None where there is neither the module nor a compiler with Python's headers."""
    if exchange.COMPILED is not None:
        return exchange.COMPILED
    compiler, headers = shutil.which("cc"), Path(sysconfig.get_paths()["include"])
    if compiler is None or not (headers / "Python.h").exists():
        return None
    target = Path(tempfile.mkdtemp(prefix="prime-exchange-")) / f"_exchange{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, *FLAGS, f"-I{headers}", str(SOURCE), "-o", str(target)], check=True)
    spec = importlib.util.spec_from_file_location("_exchange", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
