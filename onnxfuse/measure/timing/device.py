"""Properties of the machine, and the card's memory in use."""

import platform

import onnxruntime

from onnxfuse.runtime.kernels.variants import driver_version
from onnxfuse.support import process_pool
from onnxfuse.verification.run.sessions import CUDA


def used_memory() -> int:
    """Return the bytes in use on the current CUDA device, by all processes."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


def environment(session: onnxruntime.InferenceSession) -> dict[str, str]:
    """Return the facts needed to compare this session's figures with others."""
    software = {"onnxruntime": onnxruntime.__version__}
    if CUDA not in session.get_providers():
        return {"device": f"CPU {platform.machine()}, cores: {process_pool.cores()}", **software}
    exact = session.get_provider_options()[CUDA].get("use_tf32") == "0"
    products = "TF32 off (use_tf32 0)" if exact else "TF32 on (ONNX Runtime's default)"
    return {**_card(), **software, "float32 products": products}


def _card() -> dict[str, str]:
    import cupy

    version = cupy.cuda.runtime.driverGetVersion()
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return {"device": name, "driver": ", ".join(filter(None, (driver_version(), cuda)))}
