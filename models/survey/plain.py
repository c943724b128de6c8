"""Models that no package has, written down here: what users export besides the families."""

# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
# (where torch is not installed, torch.nn.Module is Any)

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.survey import Made, Subject
from models.survey.diffusion import Denoiser
from models.survey.modules import ROWS, Flat, stirred


def subjects() -> Iterator[Subject]:
    """Yield every model of this file."""
    for name in MODELS:
        yield Subject(f"plain:{name}", f"plain {name}")


def make(name: str) -> Made:
    """Return the model and its inputs."""
    torch.manual_seed(0)
    module, inputs, axes = MODELS[name]()
    return Made(Flat(stirred(module)), inputs, axes)


def _members(module: Any) -> Any:
    """Return a list of modules as what it is: torch calls it a module."""
    return module


Parts = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]
BATCH = {0: "batch"}


class Dense(nn.Module):
    """Residual dense block of ESRGAN (Wang et al., 2018): five convolutions, each on all values before it."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        outs = [growth] * 4 + [width]
        self.convs = nn.ModuleList(nn.Conv2d(width + n * growth, o, 3, padding=1) for n, o in enumerate(outs))

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for conv in self.convs[:-1]:
            kept.append(functional.leaky_relu(conv(torch.cat(kept, 1)), 0.2))
        made: Tensor = x + 0.2 * self.convs[-1](torch.cat(kept, 1))
        return made


class Rrdb(nn.Module):
    """RRDBNet, ESRGAN's generator, with two of its 23 blocks; the image doubles."""

    def __init__(self, width: int = 64, growth: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.blocks = nn.ModuleList(nn.ModuleList(Dense(width, growth) for _ in range(3)) for _ in range(2))
        self.body, self.up = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        x = start = self.first(image)
        for block in self.blocks:
            y = x
            for dense in _members(block):
                y = dense(y)
            x = x + 0.2 * y
        x = functional.interpolate(start + self.body(x), scale_factor=2.0, mode="nearest")
        made: Tensor = self.last(functional.leaky_relu(self.up(x), 0.2))
        return made


class HifiGan(nn.Module):
    """HiFi-GAN's generator (Kong et al., 2020): transposed convolutions, each followed by a mean of dilated blocks."""

    def __init__(self, width: int = 64, mels: int = 80) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stage, (rate, kernel) in enumerate(((8, 16), (4, 8), (2, 4))):
            after = width >> (stage + 1)
            self.ups.append(nn.ConvTranspose1d(2 * after, after, kernel, rate, padding=(kernel - rate) // 2))
            for size in (3, 7):
                pads = [(size - 1) * d // 2 for d in (1, 3)]
                self.blocks.append(
                    nn.ModuleList(
                        nn.Conv1d(after, after, size, padding=p, dilation=d) for p, d in zip(pads, (1, 3), strict=True)
                    )
                )
        self.last = nn.Conv1d(width >> 3, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for stage, up in enumerate(self.ups):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(self._block(x, self.blocks[2 * stage + n]) for n in range(2)) / 2
        return torch.tanh(self.last(functional.leaky_relu(x)))

    def _block(self, x: Tensor, convs: Any) -> Tensor:
        for conv in convs:
            x = x + conv(functional.leaky_relu(x, 0.1))
        return x


class Conformer(nn.Module):
    """A Conformer block (Gulati et al., 2020): half a feed-forward, attention, gated depthwise convolution."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.gate, self.point = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth, self.batch = nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feeds[0](self.norms[0](x))
        q, k, v = (
            t.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for t in self.qkv(self.norms[1](x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        y = functional.glu(self.gate(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.point(functional.silu(self.batch(self.depth(y)))).transpose(1, 2)
        made: Tensor = self.norms[4](x + 0.5 * self.feeds[1](self.norms[3](x)))
        return made


class BiLstm(nn.Module):
    """A tagger: embedding, two bidirectional LSTM layers, a linear layer for each token."""

    def __init__(self, words: int = 99, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, 9)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.out(self.lstm(self.words(ids))[0]).log_softmax(-1)
        return made


class Dlrm(nn.Module):
    """DLRM (Naumov et al., 2019): embeddings and an MLP, their products with one another, an MLP on those."""

    def __init__(self, tables: int = 6, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.pairs: Any
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        each = torch.stack([x, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        products = each @ each.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        made: Tensor = self.top(torch.cat([x, chosen], 1))
        return made


class Rms(nn.Module):
    """LLaMA's norm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Decode(nn.Module):
    """One step of a LLaMA decoder as runtimes export it: rotary positions, grouped keys, a cache that grows by one."""

    def __init__(self, width: int = 64, heads: int = 4, groups: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        kv = groups * self.size
        self.words = nn.Embedding(99, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "n1": Rms(width), "n2": Rms(width), "q": nn.Linear(width, width, bias=False),
                "k": nn.Linear(width, kv, bias=False), "v": nn.Linear(width, kv, bias=False),
                "o": nn.Linear(width, width, bias=False), "gate": nn.Linear(width, 2 * width, bias=False),
                "up": nn.Linear(width, 2 * width, bias=False), "down": nn.Linear(2 * width, width, bias=False),
            }) for _ in range(layers)
        )  # fmt: skip
        self.norm, self.head = Rms(width), nn.Linear(width, 99, bias=False)
        self.rates: Any
        self.register_buffer("rates", 10000 ** (-torch.arange(0, self.size, 2).float() / self.size))

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x = self.words(ids)
        angle = position[..., None].float() * self.rates.float()
        cos, sin = (torch.cat([f, f], -1)[:, None].to(x.dtype) for f in (angle.cos(), angle.sin()))
        kept: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            parts: Any = layer
            h = parts["n1"](x)
            q, k, v = (parts[p](h).view(*h.shape[:2], -1, self.size).transpose(1, 2) for p in "qkv")
            k = torch.cat([past[2 * n], self._turned(k, cos, sin)], 2)
            v = torch.cat([past[2 * n + 1], v], 2)
            kept += [k, v]
            wide_k, wide_v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
            scores = self._turned(q, cos, sin) @ wide_k.transpose(2, 3) / self.size**0.5
            y = scores.float().softmax(-1).to(x.dtype) @ wide_v
            x = x + parts["o"](y.transpose(1, 2).reshape(h.shape))
            h = parts["n2"](x)
            x = x + parts["down"](functional.silu(parts["gate"](h)) * parts["up"](h))
        return (self.head(self.norm(x)), *kept)


class Tcn(nn.Module):
    """A temporal convolution net (Bai et al., 2018): dilated causal convolutions with residuals."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(6 if n == 0 else width, width, 3, dilation=2**n) for n in range(levels))
        self.narrow, self.head = nn.Conv1d(6, width, 1), nn.Linear(width, 5)

    def forward(self, series: Tensor) -> Tensor:
        x = series
        for n, conv in enumerate(self.convs):
            y = functional.relu(conv(functional.pad(x, (2 * 2**n, 0))))
            x = functional.relu(y + (self.narrow(x) if n == 0 else x))
        made: Tensor = self.head(x.mean(-1))
        return made


class NoteNet(nn.Module):
    """A net of large odd kernels on a spectrogram, as basic-pitch has them (Bittner et al., 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        self.contours = nn.ModuleList([nn.Conv2d(8, 8, (3, 39), padding=(1, 19)), nn.Conv2d(8, 1, 5, padding=2)])
        self.notes = nn.ModuleList([
            nn.Conv2d(1, 32, 7, stride=(1, 3), padding=3), nn.Conv2d(32, 1, (7, 3), padding=(3, 1)),
        ])  # fmt: skip
        self.onset = nn.Conv2d(8, 32, 5, stride=(1, 3), padding=2)
        self.both, self.batch = nn.Conv2d(33, 1, 3, padding=1), nn.BatchNorm2d(32)

    def forward(self, spectrum: Tensor) -> tuple[Tensor, ...]:
        x = functional.relu(self.norm(spectrum))
        contour = torch.sigmoid(self.contours[1](functional.relu(self.contours[0](x))))
        note = torch.sigmoid(self.notes[1](functional.relu(self.notes[0](contour))))
        begin = functional.relu(self.batch(self.onset(x)))
        return contour, note, torch.sigmoid(self.both(torch.cat([note, begin], 1)))


class SharedPositions(nn.Module):
    """Twelve attentions whose positions are products of one table: twelve products of one value."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 12) -> None:
        super().__init__()
        self.table, self.heads = nn.Parameter(torch.randn(16, width)), heads
        self.qkv, self.places, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in range(layers):
            self.qkv.append(nn.Linear(width, 3 * width))
            self.places.append(nn.Linear(width, width))
            self.norms.append(nn.LayerNorm(width))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        shared = functional.layer_norm(table + self.table, (table.shape[-1],))
        for qkv, place, norm in zip(self.qkv, self.places, self.norms, strict=True):
            split = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
            q, k, v = (t.reshape(split).transpose(1, 2) for t in qkv(x).chunk(3, -1))
            p = place(shared).reshape(-1, self.heads, split[-1]).transpose(0, 1)
            scores = (q @ k.transpose(2, 3) + q @ p.transpose(1, 2)) / (2 * split[-1]) ** 0.5
            x = norm(x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        return x


def _decode() -> Parts:
    past = {f"past_{what}_{n}": torch.randn(ROWS, 2, 12, 16) for n in range(2) for what in ("keys", "values")}
    inputs = {"ids": torch.randint(0, 99, (ROWS, 1)), "position": torch.full((ROWS, 1), 12), **past}
    return Decode(), inputs, {"ids": BATCH, "position": BATCH, **{n: {0: "batch", 2: "past"} for n in past}}


def _denoiser() -> Parts:
    inputs = {
        "latent": torch.randn(ROWS, 4, 16, 16),
        "step": torch.full((ROWS,), 500),
        "text": torch.randn(ROWS, 7, 48),
    }
    return Denoiser(), inputs, {"latent": BATCH, "step": BATCH, "text": BATCH | {1: "words"}}


def _one(module: Callable[[], nn.Module], name: str, value: Callable[[], Tensor], **axes: int) -> Callable[[], Parts]:
    return lambda: (module(), {name: value()}, {name: BATCH | {axis: word for word, axis in axes.items()}})


def _unet() -> nn.Module:
    from models.vision import torch_model

    made: nn.Module = torch_model("unet")
    return made


MODELS: dict[str, Callable[[], Parts]] = {
    "rrdb": _one(Rrdb, "image", lambda: torch.randn(ROWS, 3, 48, 48)),
    "hifi_gan": _one(HifiGan, "mel", lambda: torch.randn(ROWS, 80, 32), frames=2),
    "conformer": _one(Conformer, "x", lambda: torch.randn(ROWS, 50, 64), sequence=1),
    "denoiser": _denoiser,
    "unet": _one(_unet, "image", lambda: torch.randn(ROWS, 3, 64, 64)),
    "bilstm": _one(BiLstm, "ids", lambda: torch.randint(0, 99, (ROWS, 12)), sequence=1),
    "dlrm": lambda: (
        Dlrm(), {"dense": torch.randn(ROWS, 13), "sparse": torch.randint(0, 50, (ROWS, 6))},
        {"dense": BATCH, "sparse": BATCH}),
    "llama_decode": _decode,
    "tcn": _one(Tcn, "series", lambda: torch.randn(ROWS, 6, 100), time=2),
    "note_net": _one(NoteNet, "spectrum", lambda: torch.randn(ROWS, 8, 60, 264)),
    "shared_positions": lambda: (
        SharedPositions(), {"x": torch.randn(ROWS, 16, 64), "table": torch.randn(16, 64)}, {"x": BATCH, "table": {}}),
}  # fmt: skip
