import re
from pathlib import Path

from prime_inference.health.sources import nvml
from prime_inference.health.sources.fixture import load, to_json
from tests.conftest import needs_on_ci
from tests.deploy.rendered import has_module


def test_every_name_we_take_of_nvml_is_in_the_pinned_bindings() -> None:
    """No GPU is needed to see a misspelt constant."""
    needs_on_ci(has_module("pynvml"), "nvidia-ml-py")
    import pynvml

    source = Path(nvml.__file__).read_text()
    names = set(re.findall(r"\bnvml\.(\w+)", source)) | set(re.findall(r'"(NVML_\w+)"', source))
    assert len(names) > 20
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    assert "healthSummary" in {field[0] for field in pynvml.c_nvmlGpuFabricInfo_v3_t._fields_}


def test_a_fixture_is_read_as_it_was_written(tmp_path: Path) -> None:
    from prime_inference.health.readings import KernelLine, Snapshot
    from tests.unit.health.node import fabric, gpu, port

    snapshot = Snapshot(1.0, "boot", (gpu(0, fabric=fabric()), gpu(1)), (port(),), (KernelLine(1, "x"),), "READY")
    path = tmp_path / "node.json"
    path.write_text(to_json(snapshot, {"captured": False}))
    assert load(path) == (snapshot, {"captured": False})
