"""A denoiser as latent diffusion has it (Rombach et al., 2022), written down here: no package brings one."""

# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
# (where torch is not installed, torch.nn.Module is Any)

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 32


class Residual(nn.Module):
    """Two convolutions after group norms and SiLU, the time between them."""

    def __init__(self, taken: int, width: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(GROUPS, taken), nn.GroupNorm(GROUPS, width)
        self.conv, self.last = nn.Conv2d(taken, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.skip = nn.Conv2d(taken, width, 1) if taken != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv(functional.silu(self.first(x)))
        h = h + self.time(functional.silu(time))[:, :, None, None]
        made: Tensor = self.skip(x) + self.last(functional.silu(self.second(h)))
        return made


class Attention(nn.Module):
    """Attention of tokens to themselves, or to those of a text."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = nn.Linear(text, width, bias=False), nn.Linear(text, width, bias=False)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k, v = (
            t.view(t.shape[0], -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2)
            for t in (self.q(x), self.k(text), self.v(text))
        )
        made: Tensor = self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return made


class Spatial(nn.Module):
    """A transformer over the places of an image: attention to itself, to the text, and an MLP with GEGLU."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(GROUPS, width),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, width, 1),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, heads, width), Attention(width, heads, text)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        y = self.enter(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, high * wide, width)
        h = self.norms[0](y)
        y = y + self.own(h, h)
        y = y + self.cross(self.norms[1](y), text)
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * functional.gelu(gate))
        made: Tensor = x + self.leave(y.reshape(batch, high, wide, width).permute(0, 3, 1, 2))
        return made


class Denoiser(nn.Module):
    """A U-Net over latents of 4 channels: at each width a residual block and a transformer, two on the way up."""

    def __init__(self, widths: tuple[int, ...] = (32, 64), heads: int = 2, text: int = 48) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.rates: Any
        self.register_buffer("rates", torch.exp(-math.log(10_000) * torch.arange(first // 2).float() / (first // 2)))
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(4, first, 3, padding=1), nn.Conv2d(first, 4, 3, padding=1)
        self.norm = nn.GroupNorm(GROUPS, first)

        def block(taken: int, width: int) -> nn.ModuleList:
            return nn.ModuleList([Residual(taken, width, time), Spatial(width, heads, text)])

        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        skips, at = [first], first
        for width in widths:
            self.down.append(block(at, width))
            skips.append(width)
            if width != widths[-1]:
                self.smaller.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
            at = width
        self.middle = nn.ModuleList([Residual(at, at, time), Spatial(at, heads, text), Residual(at, at, time)])
        for width in reversed(widths):
            self.up.append(nn.ModuleList(block((at if n == 0 else width) + skips.pop(), width) for n in range(2)))
            if width != first:
                self.larger.append(nn.Conv2d(width, width, 3, padding=1))
            at = width

    def forward(self, latent: Tensor, step: Tensor, text: Tensor) -> Tensor:
        angle = step[:, None].float() * self.rates.float()
        time = self.time(torch.cat([angle.cos(), angle.sin()], -1).to(latent.dtype))
        x = self.enter(latent)
        skips = [x]
        for n, (residual, spatial) in enumerate(_pairs(self.down)):
            x = spatial(residual(x, time), text)
            skips.append(x)
            if n < len(self.smaller):
                x = self.smaller[n](x)
                skips.append(x)
        before, spatial, after = self.middle
        x = after(spatial(before(x, time), text), time)
        for n, level in enumerate(_pairs(self.up)):
            for residual, spatial in level:
                x = spatial(residual(torch.cat([x, skips.pop()], 1), time), text)
            if n < len(self.larger):
                x = self.larger[n](functional.interpolate(x, scale_factor=2.0))
        made: Tensor = self.leave(functional.silu(self.norm(x)))
        return made


def _pairs(modules: Any) -> Any:
    """Return a list of modules as what it is: torch calls it a module."""
    return modules
