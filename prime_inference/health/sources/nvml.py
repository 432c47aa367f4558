"""GPUs through NVIDIA's management library (`nvidia-ml-py`, the extra `agent`). Imported when first asked."""

from typing import Any

from prime_inference.health.readings import Fabric, Gpu, counter

FIELDS_OF_LINK_ERRORS = {
    "replay": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
}
"""Sums over a GPU's links."""


class Nvml:
    def __init__(self) -> None:
        self._nvml: Any = None

    def gpus(self) -> tuple[Gpu, ...]:
        """Those that answer. Raises the library's errors: not found, driver not loaded."""
        nvml = self._library()
        found = [self._gpu_if_there(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(gpu for gpu in found if gpu is not None)

    def _library(self) -> Any:
        if self._nvml is None:
            import pynvml  # noqa: PLC0415 - only where there are GPUs

            pynvml.nvmlInit()
            self._nvml = pynvml
        return self._nvml

    def _gpu_if_there(self, index: int) -> Gpu | None:
        """None for one that fell off the bus: it is missing, and the others are still to be read."""
        nvml = self._nvml
        try:
            return self._gpu(index)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_GpuNotFound):
            return None

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        remap = self._try(nvml.nvmlDeviceGetRemappedRows, handle)
        uncorrected = self._try(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        return Gpu(
            index=index,
            uuid=str(nvml.nvmlDeviceGetUUID(handle)),
            links_active=self._links(handle),
            link_errors={
                kind: counter(self._field(handle, getattr(nvml, name))) for kind, name in FIELDS_OF_LINK_ERRORS.items()
            },
            ecc_uncorrected=counter(uncorrected),
            remap_pending=None if remap is None else bool(remap[2]),
            remap_failed=None if remap is None else bool(remap[3]),
            recovery_action=self._field(handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
            fabric=self._fabric(handle),
        )

    def _links(self, handle: Any) -> tuple[bool | None, ...]:
        nvml = self._nvml
        count = self._field(handle, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
        if count is None:
            return ()
        states = [self._try(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(count)]
        return tuple(None if state is None else state == nvml.NVML_FEATURE_ENABLED for state in states)

    def _fabric(self, handle: Any) -> Fabric | None:
        nvml = self._nvml
        # The newest layout says how healthy; an older driver knows only the one before.
        for layout in (nvml.c_nvmlGpuFabricInfo_v3_t, nvml.c_nvmlGpuFabricInfo_v2_t):
            info = layout()
            if self._try(nvml.nvmlDeviceGetGpuFabricInfoV, handle, nvml.byref(info)) is not None:
                break
        else:
            return None
        return Fabric(
            cluster_uuid=bytes(info.clusterUuid).hex(),
            clique=int(info.cliqueId),
            state=int(info.state),
            status=int(info.status),
            summary=int(info.healthSummary) if hasattr(info, "healthSummary") else None,
        )

    def _field(self, handle: Any, field: int) -> int | None:
        """A field value; None where this GPU has none."""
        values = self._try(self._nvml.nvmlDeviceGetFieldValues, handle, [field])
        if not values or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        value = values[0].value
        kinds = {
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            self._nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        name = kinds.get(values[0].valueType)
        return None if name is None else int(getattr(value, name))

    def _try(self, function: Any, *arguments: Any) -> Any:
        """A call whose "not supported" is an answer; a lost GPU is not."""
        nvml = self._nvml
        try:
            return function(*arguments)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_InvalidArgument,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_ArgumentVersionMismatch,
        ):
            return None
