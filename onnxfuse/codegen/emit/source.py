"""Assemble a kernel's source: the template files, with the generated functor and constants inserted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from onnxfuse.symbolic.traced_numbers import is_bool

DEVICE = "include/device.cuh"
CLUSTER = "include/cluster.cuh"
AMPERE = "include/sm80.cuh"
HOPPER = "include/sm90.cuh"
"""Sections that only NVRTC can compile; the tests substitute a CPU twin."""
MMA_SYNC = (
    AMPERE, "include/split.cuh", "include/mma_sync.cuh", "include/tile.cuh", "include/pipeline_async.cuh",
)  # fmt: skip
"""Shared machinery of kernels on mma.sync and cp.async, after memory.cuh: each file needs those before it."""
WARP_SPECIALIZED = ("include/pipeline.cuh", "include/warp_roles.cuh", "include/swizzle.cuh")
"""Sections that a kernel of producer and consumer warpgroups has in addition to `HOPPER`."""

NAME_LENGTH = 200
"""Maximum length of a kernel's name: the end of its op's name, which contains the hash."""

# Flags for every kernel: none relaxes floating point.
FLAGS = ("-std=c++17", "-default-device")


@dataclass(frozen=True)
class Section:
    """A section of a kernel's source text."""

    file: str
    """The file, or `<op> (generated)`: the location that compile errors name."""
    text: str


@dataclass(frozen=True)
class KernelSource:
    """Source of a kernel. Equal sources are one kernel."""

    entry: str
    """Name of the kernel function."""
    sections: tuple[Section, ...]
    flags: tuple[str, ...] = FLAGS

    @property
    def text(self) -> str:
        """The whole translation unit; with `#line`, compile errors name the section's file and line."""
        return "".join(f'#line 1 "{s.file}"\n{s.text}\n' for s in self.sections)


@cache
def template(file: str) -> Section:
    """Return a file of a template's folder, or one of the shared `include/`, as a section."""
    room = "" if file.startswith("include/") else "templates"
    return Section(file, resources.files("onnxfuse.cuda").joinpath(room, file).read_text(encoding="utf-8"))


def generated(entry: str, text: str) -> Section:
    """Return generated text as a section."""
    return Section(f"{entry} (generated)", text)


def constants(facts: Mapping[str, bool | int], number: str = "int") -> str:
    """Return a template's constants as C++: flags, and numbers of this type."""
    return "".join(
        f"constexpr bool {name} = {str(bool(value)).lower()};\n" if is_bool(value)
        else f"constexpr {number} {name} = {value};\n"
        for name, value in facts.items()
    )  # fmt: skip


def identifier(name: str) -> str:
    """Return `name` as a C identifier that is neither a keyword nor a name in the templates."""
    text = re.sub("[^0-9A-Za-z]", "_", name[-NAME_LENGTH:])
    text = text if text and not text[0].isdigit() else f"k{text}"
    return text if re.search(r"_[0-9a-f]{10}$", text) else f"{text}_kernel"
