"""Export a small PyTorch model to build/classifier.onnx, its weights beside it: the first step of the pipeline."""

import sys
from pathlib import Path

import torch
from torch import nn


class Block(nn.Module):
    """A residual block as in every transformer: norm, two products with a GELU between, and the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def export(folder: Path, width: int = 32, blocks: int = 3) -> Path:
    """Write the model into `folder` and return its path; seeded, so that the same torch gives the same file."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Linear(width, 10)).eval()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "classifier.onnx"
    torch.onnx.export(
        model,
        (torch.randn(2, width),),
        str(path),
        dynamo=True,
        input_names=["x"],
        output_names=["scores"],
        dynamic_shapes=({0: "batch"},),
    )
    return path


if __name__ == "__main__":
    print(export(Path(sys.argv[1] if len(sys.argv) > 1 else "build")))
