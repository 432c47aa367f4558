"""Sources on files of the shapes the kernel writes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prime_inference.health.readings import counter
from prime_inference.health.settings import HealthSettingsError, load_health_settings
from prime_inference.health.sources.imex import ImexCtl
from prime_inference.health.sources.klog import Klog
from prime_inference.health.sources.kmsg import Kmsg, record_of
from prime_inference.health.sources.nvml import Nvml
from prime_inference.health.sources.sysfs import Sysfs
from prime_inference.health.xids import event_in
from tests.conftest import needs_on_ci
from tests.deploy.rendered import has_module


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def card(root: Path, device: str = "mlx5_0", state: str = "4: ACTIVE") -> Path:
    port = root / "class/infiniband" / device / "ports/1"
    write(port / "state", state + "\n")
    write(port / "phys_state", "5: LinkUp\n")
    write(port / "link_layer", "InfiniBand\n")
    write(port / "counters/link_downed", "3\n")
    write(port / "hw_counters/rnr_nak_retry_err", "0\n")
    write(port / "hw_counters/lifespan", "not a number\n")
    return port


def test_sysfs_is_read_from_any_root(tmp_path: Path) -> None:
    card(tmp_path)
    (port,) = Sysfs(tmp_path).ports()
    assert (port.name, port.state, port.phys_state, port.link_layer) == ("mlx5_0/1", "ACTIVE", "LinkUp", "InfiniBand")
    assert port.counters == {"link_downed": 3, "rnr_nak_retry_err": 0, "lifespan": None}
    assert Sysfs(tmp_path / "nothing").ports() == ()


def test_an_efa_card_is_judged_by_its_network_interface(tmp_path: Path) -> None:
    card(tmp_path, "efa_0")
    device = tmp_path / "class/infiniband/efa_0/device"
    (tmp_path / "drivers/efa").mkdir(parents=True)
    device.mkdir()
    (device / "driver").symlink_to(tmp_path / "drivers/efa")
    assert Sysfs(tmp_path).ports()[0].state is None
    write(device / "net/eth1/operstate", "down\n")
    assert Sysfs(tmp_path).ports()[0].state == "DOWN"


def test_kernel_records_are_read_once(tmp_path: Path) -> None:
    device = tmp_path / "kmsg"
    device.write_text("6,1,100,-;first\n SUBSYSTEM=pci\n4,2,200,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=0\n")
    kernel = Kmsg(device)
    assert [line.sequence for line in kernel.lines()] == [1, 2]
    with device.open("a") as more:
        more.write("4,3,300,-;third\n")
    assert [line.text for line in kernel.lines()] == ["third"]


def test_the_whole_buffer_is_told_once_by_its_times() -> None:
    kernel = Klog()
    first = "<6>[    1.000001] a\n<6>[    1.000001] b\nno time\n<4>[    2.500000] NVRM: Xid (PCI:0000:1b:00): 79, x\n"
    assert [line.text for line in kernel.new_in(first)] == ["a", "b", "NVRM: Xid (PCI:0000:1b:00): 79, x"]
    assert kernel.new_in(first) == ()
    more = first + "<4>[    2.500000] same instant\n<6>[   10.000000] later\n"
    assert [line.text for line in kernel.new_in(more)] == ["same instant", "later"]


def test_the_kernels_own_buffer_is_read_where_it_may_be() -> None:
    kernel = Klog()
    try:
        first = kernel.lines()
    except PermissionError:
        pytest.skip("this user has no CAP_SYSLOG")
    assert all(line.sequence >= 0 for line in first)
    assert len(kernel.lines()) < max(len(first), 50), "what was told is not told again"


def test_what_is_no_kernel_record_is_left_out() -> None:
    assert [record_of(text) for text in ("", "x", "6,a,1;x", " DEVICE=+pci")] == [None] * 4


@pytest.mark.parametrize(
    ("line", "kind", "severity"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", "xid", "fatal"),
        ("NVRM: Xid (PCI:0000:1b:00): 13, pid=1, Graphics SM Warp Exception", "xid", "warn"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up", "sxid", "fatal"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 28", "sxid", "warn"),
        ("mlx5_core 0000:5d:00.0: print_health_info: device's health compromised - reached miss count", "nic", "fatal"),
    ],
)
def test_fault_lines_are_known(line: str, kind: str, severity: str) -> None:
    event = event_in(line)
    assert event is not None
    assert (event.kind, event.severity.value) == (kind, severity)
    assert event_in("usb 1-1: new high-speed USB device") is None


def test_sentinels_are_not_numbers() -> None:
    assert counter(9223372036854775794) is None
    assert counter(-1) is None
    assert counter(0) == 0


def test_imex_is_asked_by_its_command(tmp_path: Path) -> None:
    assert ImexCtl(str(tmp_path / "none")).state() is None
    command = tmp_path / "ctl"
    command.write_text("#!/bin/sh\necho READY\n")
    command.chmod(0o755)
    assert ImexCtl(str(command)).state() == "READY"


def test_a_gpu_that_fell_off_the_bus_is_left_out_and_the_others_are_read() -> None:
    needs_on_ci(has_module("pynvml"), "nvidia-ml-py")
    import pynvml

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    answers = {name: (lambda *_: None) for name in dir(pynvml) if name.startswith("nvmlDevice")}
    answers |= {
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUUID": lambda each: f"gpu-{each}",
        "nvmlDeviceGetRemappedRows": lambda each: (0, 0, 0, 0),
    }
    source = Nvml()
    source._nvml = SimpleNamespace(**{**vars(pynvml), **answers})
    assert [(gpu.index, gpu.uuid) for gpu in source.gpus()] == [(0, "gpu-0"), (2, "gpu-2")]


def test_an_unknown_setting_stops_the_start() -> None:
    with pytest.raises(HealthSettingsError, match="PRIME_HEALTH_INTERVALL"):
        load_health_settings({"PRIME_HEALTH_NODE": "n", "PRIME_HEALTH_INTERVALL": "5"})
    with pytest.raises(HealthSettingsError, match="PRIME_HEALTH_NODE"):
        load_health_settings({})
    urls = load_health_settings({"PRIME_HEALTH_NODE": "n", "PRIME_HEALTH_PORT": "0"})
    assert urls.port == 0


def test_the_command_line_has_the_agent() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from prime_inference.health.command import health; health(['agent'])"],
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert run.returncode == 2
    assert "PRIME_HEALTH_NODE" in run.stderr
