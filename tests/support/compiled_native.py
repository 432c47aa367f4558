"""The L2 client's C part, from where it is installed or built here for the tests."""

import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from prime_inference.kv.l2 import native

SOURCES = Path(native.__file__).with_name("native")
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


@cache
def compiled() -> ModuleType | None:
    """Built from the sources as they are, not what an older installation left; None without a compiler or Python's headers."""
    compiler, headers = shutil.which("cc"), Path(sysconfig.get_paths()["include"])
    if compiler is None or not (headers / "Python.h").exists():
        return native.COMPILED
    target = Path(tempfile.mkdtemp(prefix="prime-native-")) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = map(str, sorted(SOURCES.glob("*.c")))
    subprocess.run(
        [compiler, *FLAGS, "-shared", "-fPIC", f"-I{headers}", *sources, "-lm", "-o", str(target)], check=True
    )
    spec = importlib.util.spec_from_file_location("_native", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
