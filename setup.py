"""Builds the engine, a library of its own that knows no Python. All else about the package stands in pyproject.toml."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

engine = Extension(
    "onnxfuse.runtime.libonnxfuse",
    sources=sorted(map(str, Path("engine").glob("*.cpp"))),
    depends=sorted(str(p) for p in Path("engine").iterdir() if p.suffix in (".h", ".map")),
    extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden", "-ffp-contract=off"],
    # Loaded by processes that have a C++ library of their own. Never unloaded: ONNX Runtime keeps pointers to the ops.
    extra_link_args=[
        "-s", "-static-libstdc++", "-static-libgcc", "-Wl,--version-script=engine/onnxfuse.map", "-Wl,-z,nodelete",
        "-Wl,--no-undefined", "-ldl", "-lpthread",
    ],
    language="c++",
    # Without a compiler the install goes on: everything but running fused kernels works, and says so when asked.
    optional=True,
)  # fmt: skip


class Library(build_ext):
    """A library is no module: its name says nothing of a Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library in the package."""
        return fullname.replace(".", "/") + ".so"


OLDEST_GLIBC = 28
"""2.28: what the wheels of the dependencies need."""


def with_glibc(platform: str, library: bytes) -> str:
    """Return the platform of a wheel with this library: the oldest glibc that has all functions which it asks for."""
    needed = max([OLDEST_GLIBC, *map(int, re.findall(rb"GLIBC_2\.(\d+)", library))])
    return platform.replace("linux_", f"manylinux_2_{needed}_", 1)


class Wheel(bdist_wheel):
    """One for every Python of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python, ABI and platform; without the engine the wheel is for machines like this one."""
        platform = super().get_tag()[2]
        built = list(Path(self.bdist_dir).rglob("libonnxfuse.so"))
        if built and platform.startswith("linux_"):
            platform = with_glibc(platform, built[0].read_bytes())
        return "py3", "none", platform


def urls(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of a release: of the repository whose workflow builds it; none for other builds."""
    if not environment.get("GITHUB_REPOSITORY"):
        return {}
    home = f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_REPOSITORY']}"
    files = f"{home}/blob/main"
    return {
        "Homepage": home,
        "Documentation": f"{files}/README.md#documentation",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


setup(
    project_urls=urls(os.environ),
    packages=[*find_packages(include=["onnxfuse", "onnxfuse.*"]), "onnxfuse.rules.shipped", "onnxfuse.pages"],
    package_dir={"onnxfuse.rules.shipped": "rules", "onnxfuse.pages": "docs"},
    # CUDA sessions are for Linux; elsewhere models are rewritten, verified and explained.
    ext_modules=[engine] if sys.platform == "linux" else [],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
