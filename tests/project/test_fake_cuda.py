"""The stand-in CUDA libraries are built wherever g++ and some headers of CUDA 13 are."""

import re
from pathlib import Path

import pytest

from tests.support.fake_cuda.build import cuda_headers


def headers(folder: Path, version: int, crt: bool = True) -> Path:
    (folder / "crt").mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    if crt:
        (folder / "crt" / "host_defines.h").touch()
    return folder


def test_the_first_folder_with_whole_headers_of_cuda_13_is_taken(tmp_path: Path) -> None:
    """A package of libraries has none, one of CUDA 12 lays out structures differently, one may lack another's wheel."""
    whole = headers(tmp_path / "toolkit", 13010)
    old, part = headers(tmp_path / "cuda12", 12090), headers(tmp_path / "no-crt", 13000, crt=False)
    assert cuda_headers([tmp_path / "libraries", old, part, whole, headers(tmp_path / "later", 13000)]) == whole


def test_without_headers_the_error_names_the_folders_and_what_helps(tmp_path: Path) -> None:
    """A compiler's text about a missing file is not enough."""
    old = headers(tmp_path, 12090)
    with pytest.raises(SystemExit, match=rf"CUDA 13 .* in {re.escape(str(old))}: pip install .* CUDA_HOME"):
        cuda_headers([old])
