"""Builds the native bridge and finds the packages. Everything else about the package stands in pyproject.toml."""

import pybind11
from setuptools import Extension, find_packages, setup

bridge = Extension(
    "onnxfuse.runtime._bridge",
    sources=["onnxfuse/runtime/bridge.cpp"],
    depends=["onnxfuse/runtime/ort_api.h", "onnxfuse/runtime/cuda_driver.h", "onnxfuse/runtime/tape.h"],
    include_dirs=[pybind11.get_include()],
    extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden", "-ffp-contract=off"],
    extra_link_args=["-ldl"],
    language="c++",
    # Without a compiler the install goes on: everything but running fused kernels works, and says so when asked.
    optional=True,
)

setup(
    packages=[*find_packages(include=["onnxfuse", "onnxfuse.*"]), "onnxfuse.rules"],
    package_dir={"onnxfuse.rules": "rules"},
    ext_modules=[bridge],
)
