"""Tests against LMCache's real classes need two system libraries (requirements/system.txt)."""

from ctypes.util import find_library

import pytest

from tests.conftest import needs_on_ci


@pytest.fixture(autouse=True)
def system_libraries() -> None:
    for library, package in (("ibverbs", "libibverbs1"), ("numa", "libnuma1")):
        needs_on_ci(find_library(library) is not None, f"the Debian package {package}")
