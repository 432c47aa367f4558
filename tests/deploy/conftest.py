"""Every shape in which the chart is rendered, one after another."""

import pytest

from tests.conftest import needs_on_ci
from tests.deploy.rendered import SHAPES, helm_binary


@pytest.fixture(params=SHAPES)
def preset(request: pytest.FixtureRequest) -> str:
    needs_on_ci(helm_binary() is not None, "helm")
    return str(request.param)
