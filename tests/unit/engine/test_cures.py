"""The cures of the engine processes, on stand-ins of what they patch; the real parts are met in tests/e2e."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from prime_inference.engine.busy_wait import BUSY_LOOK_MS, BUSY_S, IDLE_LOOK_MS, wait_to_be_told
from prime_inference.engine.cpu_dispatch import ANY_WEIGHT_BYTES, use_kernels
from prime_inference.engine.cpu_norm import PROVIDER, register_norms
from prime_inference.engine.cpu_seeds import rewind_seeded_generators
from prime_inference.engine.nixl_spin import patch_bindings


class StockConfig:
    pass


def test_nixls_progress_thread_sleeps_and_all_else_is_passed_on() -> None:
    bindings: Any = SimpleNamespace(nixlAgentConfig=StockConfig)
    patch_bindings(bindings, 1000)
    patch_bindings(bindings, 1000)
    config = bindings.nixlAgentConfig()
    config.pthrDelay = 0
    config.useProgThread = True
    assert (config.pthrDelay, config.useProgThread) == (1000, True)
    assert bindings.nixlAgentConfig.__mro__[1] is StockConfig


def test_readers_wait_to_be_told_and_look_by_themselves_often_while_messages_come() -> None:
    class Condition:
        def __init__(self) -> None:
            self.last_read, self.busy_loop_s, self.waits = time.monotonic(), 1.0, list[tuple[float, int | None]]()

        def wait(self, timeout_ms: int | None = None) -> None:
            self.waits.append((self.busy_loop_s, timeout_ms))

    broadcast = SimpleNamespace(sched_yield=None, SpinCondition=Condition)
    for _ in range(2):  # a second time changes nothing
        wait_to_be_told(broadcast)
    broadcast.sched_yield()
    reader = Condition()
    for timeout_ms in (5000, None, 2):
        reader.wait(timeout_ms)
    reader.last_read -= 2 * BUSY_S
    for timeout_ms in (5000, None, 2):
        reader.wait(timeout_ms)
    assert all(busy < 0 for busy, _ in reader.waits)
    looks = [timeout_ms for _, timeout_ms in reader.waits]
    assert looks == [BUSY_LOOK_MS, BUSY_LOOK_MS, 2, IDLE_LOOK_MS, IDLE_LOOK_MS, 2]


def test_decode_takes_the_kernel_of_few_rows_for_every_layer_and_one_kernel_for_swiglu() -> None:
    class Activation:
        op: Any = None

        def forward_cuda(self, x: float) -> float:
            return float(self.op(x))

        def forward_cpu(self, x: float) -> float:
            raise AssertionError(x)

    choice = SimpleNamespace(_CPU_SGL_GEMM_MAX_WEIGHT_BYTES=1)
    use_kernels(choice, Activation, abs)
    assert choice._CPU_SGL_GEMM_MAX_WEIGHT_BYTES == ANY_WEIGHT_BYTES
    assert Activation().forward_cpu(-2.0) == 2.0


@pytest.mark.slow
def test_what_the_cures_patch_exists_in_the_pinned_packages() -> None:
    nixl = pytest.importorskip("nixl_cu13._api")
    assert "pthrDelay" in dir(nixl.nixlBind.nixlAgentConfig)
    broadcast = pytest.importorskip("vllm.distributed.device_communicators.shm_broadcast")
    assert callable(broadcast.sched_yield)
    assert callable(broadcast.SpinCondition.wait)
    runner = pytest.importorskip("vllm.v1.worker.cpu_model_runner").CPUModelRunner
    assert callable(runner._sample)
    assert callable(runner._bookkeeping_sync)
    layers = pytest.importorskip("vllm.model_executor.layers.utils")
    assert layers._CPU_SGL_GEMM_MAX_WEIGHT_BYTES < ANY_WEIGHT_BYTES
    activation = pytest.importorskip("vllm.model_executor.layers.activation").SiluAndMul
    assert activation.forward_cpu is not activation.forward_cuda


@pytest.mark.slow
def test_our_norms_agree_with_vllms_own() -> None:
    torch = pytest.importorskip("torch")
    ir = pytest.importorskip("vllm.ir")
    register_norms()
    register_norms()
    generator = torch.Generator().manual_seed(0)
    for rows, width in ((1, 576), (33, 576), (7, 1536)):
        x, residual = (torch.randn(rows, width, generator=generator).bfloat16() for _ in range(2))
        weight = torch.rand(width, generator=generator).bfloat16()
        plain, fused = ir.ops.rms_norm.impls, ir.ops.fused_add_rms_norm.impls
        assert not plain[PROVIDER].supports_args(torch.cat([x, x]).T, weight, 1e-5)
        torch.testing.assert_close(
            plain[PROVIDER].impl_fn(x, weight, 1e-5), plain["native"].impl_fn(x, weight, 1e-5), rtol=2e-2, atol=2e-2
        )
        expected = fused["native"].impl_fn(x.clone(), residual.clone(), weight, 1e-5)
        got = fused[PROVIDER].impl_fn(x.clone(), residual.clone(), weight, 1e-5)
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_the_kernels_chosen_for_decode_agree_with_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    vllm_ops = pytest.importorskip("vllm._custom_ops")
    pytest.importorskip("vllm.platforms").current_platform.import_kernels()
    linear, generator = torch.nn.functional.linear, torch.Generator().manual_seed(0)
    for rows in (1, 4, 5, 33):
        x = torch.randn(rows, 576, generator=generator).bfloat16()
        weight = torch.randn(3072, 576, generator=generator).bfloat16()
        both = linear(x, weight)
        if torch.cpu._is_amx_tile_supported():
            packed = torch.ops._C.convert_weight_packed(weight)
            got = vllm_ops.weight_packed_linear_cpu(x, packed, 3072, None)
            torch.testing.assert_close(got, both, rtol=2e-2, atol=0.25)
        product = torch.empty(rows, 1536, dtype=torch.bfloat16)
        torch.ops._C.silu_and_mul(product, both)
        gate, up = both.float().chunk(2, dim=-1)
        torch.testing.assert_close(product.float(), torch.nn.functional.silu(gate) * up, rtol=2e-2, atol=0.1)


def test_a_draw_that_is_thrown_away_is_taken_back_and_its_generator_is_kept_from_offsets() -> None:
    seen: list[set[int]] = []

    class Generator:
        def __init__(self) -> None:
            self.draws = 0

        def get_state(self) -> int:
            return self.draws

        def set_state(self, draws: int) -> None:
            self.draws = draws

    class Runner:
        def __init__(self) -> None:
            self.input_batch = SimpleNamespace(generators={0: Generator(), 2: Generator()})
            self.discard_request_mask = SimpleNamespace(np=[True, True, False])

        def _sample(self) -> str:
            for generator in self.input_batch.generators.values():
                generator.draws += 1
            return "sampled"

        def _bookkeeping_sync(self) -> str:
            seen.append(set(self.input_batch.generators))
            return "kept"

    rewind_seeded_generators(Runner)
    rewind_seeded_generators(Runner)
    runner = Runner()
    assert (runner._sample(), runner._bookkeeping_sync()) == ("sampled", "kept")
    assert {row: each.draws for row, each in runner.input_batch.generators.items()} == {0: 0, 2: 1}
    assert seen == [{2}]
