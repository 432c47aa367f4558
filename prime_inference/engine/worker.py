"""The worker's main process: `python -m prime_inference.engine.worker <arguments of dynamo.vllm>`.

`dynamo.vllm` imports one function of transformers' Qwen2-VL image processor at start, and that module imports
torchvision; PyPI's torchvision is a CUDA build that does not import beside a CPU torch. Where torchvision is absent, this
process gets a stand-in for that one module, and then becomes `dynamo.vllm`. Text models never call it; a call says why it
cannot work. Engine processes are started fresh by vLLM and see the truth: vLLM itself works without torchvision.
"""

import importlib.util
import runpy
import sys
from types import ModuleType
from typing import NoReturn

IMAGE_PROCESSOR = "transformers.models.qwen2_vl.image_processing_qwen2_vl"


def stand_in_for_image_processor() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        return

    def smart_resize(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("image input needs torchvision, which is not installed beside this CPU torch")

    module = ModuleType(IMAGE_PROCESSOR)
    module.smart_resize = smart_resize  # type: ignore[attr-defined]
    sys.modules[IMAGE_PROCESSOR] = module


def main() -> None:
    stand_in_for_image_processor()
    runpy.run_module("dynamo.vllm", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
