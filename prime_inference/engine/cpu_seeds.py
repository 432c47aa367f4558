"""Seeded requests whose prompt is computed in pieces, kept from killing a CPU engine.

vLLM 0.31 samples a token after every piece of a prompt and throws all but the last away; for a request with a `seed` it
then moves the request's random generator back by `set_offset`. Only CUDA generators have an offset: on a CPU the call
raises, the engine process dies, and with it every request it held. Any client could do that with a long prompt. The cure
puts the generator's whole state back instead, so that an answer is also the same however its prompt was cut.
"""

from typing import Any


def rewind_seeded_generators(runner: Any = None) -> None:
    """Patch vLLM's model runner class once."""
    if runner is None:
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: PLC0415 - costs seconds outside vLLM

        runner = CPUModelRunner
    sample, bookkeeping = runner._sample, runner._bookkeeping_sync
    if getattr(sample, "_prime_rewinds", False):
        return

    def sample_and_rewind(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _discarded(self).values()]
        output = sample(self, *args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def bookkeeping_without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        rewound = _discarded(self)
        for row in rewound:
            del generators[row]
        try:
            return bookkeeping(self, *args, **kwargs)
        finally:
            generators.update(rewound)

    sample_and_rewind._prime_rewinds = True  # type: ignore[attr-defined]
    runner._sample = sample_and_rewind
    runner._bookkeeping_sync = bookkeeping_without_offsets


def _discarded(runner: Any) -> dict[int, Any]:
    """Generators, by row of the batch, of the requests whose sampled token this step throws away."""
    mask = runner.discard_request_mask.np
    return {row: generator for row, generator in runner.input_batch.generators.items() if mask[row]}
