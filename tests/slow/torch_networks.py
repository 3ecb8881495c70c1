"""Networks as people write them in PyTorch, small and with random weights: the material of `test_torch_exports`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """A module and what to call it with: the first arguments are exported with, all are compared."""

    name: str
    build: Callable[[], nn.Module]
    arguments: Callable[[], list[tuple[Any, ...]]]
    dynamic: tuple[dict[int, str], ...] = ()  # for each argument, which axes have names; () where all sizes are fixed
    tolerance: float = 1e-4
    exporters: tuple[str, ...] = ("torchscript", "dynamo")
    opset: int | None = None
    hosted: tuple[str, ...] = ()  # operators left to the host where sizes are open
    fixed_only: tuple[str, ...] = ()  # exporters that keep sizes of the example in places, so that others fail everywhere


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def tokens(*shape, below=100):
    return torch.randint(1, below, shape)


# --- vision ----------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer's block, norms first."""

    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask=None, causal=False):
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, learnt positions."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.cls, self.places = nn.Parameter(torch.randn(1, 1, 64)), nn.Parameter(torch.randn(1, 17, 64))
        self.blocks = nn.ModuleList([Block(64, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ChannelsLastNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.up, self.down = nn.LayerNorm(channels), nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(functional.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext():
    return nn.Sequential(nn.Conv2d(3, 32, 4, 4), ChannelsLastNorm(32), NextBlock(32), NextBlock(32), ChannelsLastNorm(32),
                         nn.Conv2d(32, 64, 2, 2), NextBlock(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))


def double_convolution(inner, outer):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
                         nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, transposed):
        super().__init__()
        self.down = nn.ModuleList([double_convolution(3, 16), double_convolution(16, 32), double_convolution(32, 64)])
        self.up = nn.ModuleList([double_convolution(96 if not transposed else 64, 32), double_convolution(48 if not transposed else 32, 16)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)]) if transposed else None
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if not number else functional.max_pool2d(x, 2))
            kept.append(x)
        for number, level in enumerate(self.up):
            skip = kept[1 - number]
            if self.grow is not None:
                x = self.grow[number](x)
            else:
                x = functional.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)
            x = level(torch.cat([skip, x], 1))
        return torch.softmax(self.head(x), 1)


class SqueezeExcite(nn.Module):
    """EfficientNet's inverted bottleneck."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        wide = inner * 4
        self.expand = nn.Sequential(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.depthwise = nn.Sequential(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, inner // 4, 1), nn.SiLU(), nn.Conv2d(inner // 4, wide, 1), nn.Sigmoid())
        self.project = nn.Sequential(nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        return x + y if x.shape[1:] == y.shape[1:] else y


def efficientnet():
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish(), SqueezeExcite(16, 16, 1), SqueezeExcite(16, 32, 2),
                         SqueezeExcite(32, 32, 1), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10))


def group_norms():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Mish(), nn.Conv2d(16, 16, 3, padding=1),
                         nn.InstanceNorm2d(16, affine=True), nn.ELU(), nn.InstanceNorm2d(16), nn.Conv2d(16, 8, 3, 2, 1, padding_mode="reflect"),
                         nn.GroupNorm(1, 8), nn.LeakyReLU(0.2), nn.PReLU(8), nn.Conv2d(8, 4, 3, padding=1, padding_mode="replicate"))


def super_resolution():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 9, 3, padding=1),
                         nn.PixelShuffle(3))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
                                 nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                                 nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1, groups=2), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Shuffle(nn.Module):
    """ShuffleNet's unit: halves, a grouped convolution, channels shuffled."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())

    def forward(self, x):
        a, b = x.chunk(2, 1)
        y = torch.cat([a, self.branch(b)], 1)
        batch, channels, height, width = y.shape
        return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


# --- language --------------------------------------------------------------------------------------------------------------


class Bert(nn.Module):
    """Embeddings of three kinds, post-norm layers with a mask of padding, a pooled and a sequence output."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(100, width, padding_idx=0), nn.Embedding(64, width), nn.Embedding(2, width)
        self.norm, self.heads = nn.LayerNorm(width, eps=1e-12), heads
        self.layers = nn.ModuleList([nn.ModuleDict({
            "q": nn.Linear(width, width), "k": nn.Linear(width, width), "v": nn.Linear(width, width), "o": nn.Linear(width, width),
            "n1": nn.LayerNorm(width, eps=1e-12), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
            "n2": nn.LayerNorm(width, eps=1e-12)}) for _ in range(2)])
        self.pooler = nn.Linear(width, width)

    def forward(self, ids, mask, kinds):
        batch, length = ids.shape
        x = self.norm(self.words(ids) + self.kinds(kinds) + self.places(torch.arange(length, device=ids.device))[None])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            def split(name, layer=layer, x=x):
                return layer[name](x).view(batch, length, self.heads, -1).transpose(1, 2)

            scores = split("q") @ split("k").transpose(-1, -2) / (x.shape[-1] // self.heads) ** 0.5 + bias
            mixed = (torch.softmax(scores, -1) @ split("v")).transpose(1, 2).reshape(batch, length, -1)
            x = layer["n1"](x + layer["o"](mixed))
            x = layer["n2"](x + layer["down"](functional.gelu(layer["up"](x))))
        return x, torch.tanh(self.pooler(x[:, 0]))


class Gpt(nn.Module):
    """Causal attention, weights shared between embedding and head."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 48), nn.Embedding(64, 48)
        self.blocks = nn.ModuleList([Block(48, 3) for _ in range(2)])
        self.norm = nn.LayerNorm(48)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, causal=True)
        return self.norm(x) @ self.words.weight.T


class Llama(nn.Module):
    """RMS norm, rotary positions, grouped queries, SwiGLU, a causal mask built at run time."""

    def __init__(self, width=64, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.words = nn.Embedding(100, width)
        self.q, self.kv, self.o = nn.Linear(width, width, False), nn.Linear(width, 2 * groups * self.size, False), nn.Linear(width, width, False)
        self.gate, self.up, self.down = nn.Linear(width, 128, False), nn.Linear(width, 128, False), nn.Linear(128, width, False)
        self.n1, self.n2 = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.register_buffer("rates", 1 / 10000 ** (torch.arange(0, self.size, 2) / self.size))

    def rms(self, x, weight):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotated(self, x, cos, sin):
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, ids):
        batch, length = ids.shape
        x = self.words(ids)
        angles = torch.outer(torch.arange(length).float(), self.rates)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        h = self.rms(x, self.n1)
        q = self.rotated(self.q(h).view(batch, length, self.heads, self.size).transpose(1, 2), cos, sin)
        k, v = self.kv(h).view(batch, length, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k = self.rotated(k, cos, sin)
        repeat = self.heads // self.groups
        k, v = (t[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(batch, self.heads, length, self.size) for t in (k, v))
        mask = torch.full((length, length), float("-inf")).triu(1)
        scores = q @ k.transpose(2, 3) / self.size ** 0.5 + mask
        x = x + self.o((torch.softmax(scores.float(), -1).to(x.dtype) @ v).transpose(1, 2).reshape(batch, length, -1))
        h = self.rms(x, self.n2)
        return self.down(functional.silu(self.gate(h)) * self.up(h)) + x


class Tagger(nn.Module):
    """Bidirectional LSTM over embeddings."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(100, 32), nn.LSTM(32, 24, 2, batch_first=True, bidirectional=True), nn.Linear(48, 9)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0]).log_softmax(-1)


class PackedTagger(Tagger):
    """The same over sequences of different lengths."""

    def forward(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out)


class GruClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(12, 20, 2, batch_first=True, bidirectional=True), nn.Linear(40, 5)

    def forward(self, x):
        out, last = self.gru(x)
        return self.head(out.mean(1)), torch.cat([last[-2], last[-1]], 1)


class RnnStep(nn.Module):
    """A plain RNN with a given state."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(8, 16, nonlinearity="relu")

    def forward(self, x, h):
        return self.rnn(x, h)


class SequenceToSequence(nn.Module):
    """nn.Transformer with causal and padding masks."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.net = nn.Transformer(32, 4, 2, 2, 64, batch_first=True, dropout=0.0)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.net(self.words(source), self.words(target), tgt_mask=mask, src_key_padding_mask=source == 7)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, activation="gelu", dropout=0.0)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.net(x)


class Mixed(nn.Module):
    """A sentence encoder: a convolution over characters, attention, an average that leaves padding out."""

    def __init__(self):
        super().__init__()
        self.words, self.conv = nn.Embedding(100, 32), nn.Conv1d(32, 32, 3, padding=1)
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, ids):
        x = functional.gelu(self.conv(self.words(ids).transpose(1, 2))).transpose(1, 2)
        x = self.attend(x, x, x, key_padding_mask=ids == 7)[0]
        keep = (ids != 7).unsqueeze(-1).float()
        return functional.normalize((x * keep).sum(1) / keep.sum(1).clamp(min=1e-9), dim=-1)


class Wave(nn.Module):
    """Dilated causal convolutions with gates, as in WaveNet, and weight normalisation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(1, 16, 1)
        self.gates = nn.ModuleList([nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 32, 2, dilation=d)) for d in (1, 2, 4, 8)])
        self.mix, self.last = nn.ModuleList([nn.Conv1d(16, 16, 1) for _ in range(4)]), nn.Conv1d(16, 4, 1)

    def forward(self, x):
        x = self.first(x)
        total = 0.0
        for gate, mix, reach in zip(self.gates, self.mix, (1, 2, 4, 8), strict=True):
            a, b = gate(functional.pad(x, (reach, 0))).chunk(2, 1)
            y = mix(torch.tanh(a) * torch.sigmoid(b))
            total, x = total + y, x + y
        return self.last(functional.relu(total))


class Spectrogram(nn.Module):
    """Log-mel features and a small network, the transform as torch.stft gives it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(33, 20))
        self.net = nn.Sequential(nn.Conv1d(20, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))

    def forward(self, x):
        spectrum = torch.stft(x, 64, 16, window=self.window, center=False, return_complex=False, onesided=True)
        power = spectrum.pow(2).sum(-1)
        return self.net(torch.log(power.transpose(1, 2) @ self.mel + 1e-5).transpose(1, 2))


class Experts(nn.Module):
    """The two best of four experts for each token, their outputs weighted."""

    def __init__(self):
        super().__init__()
        self.route, self.up, self.down = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16, 32)), nn.Parameter(torch.randn(4, 32, 16))

    def forward(self, x):
        weights, chosen = torch.topk(torch.softmax(self.route(x), -1), 2)
        all_out = torch.einsum("beh,ehd->bed", torch.relu(torch.einsum("bd,edh->beh", x, self.up)), self.down)
        picked = torch.gather(all_out, 1, chosen[:, :, None].expand(-1, -1, 16))
        return (picked * (weights / weights.sum(-1, keepdim=True))[:, :, None]).sum(1)


# --- detection -------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("sartor_tests::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor, overlap: float) -> torch.Tensor:
    """Greedy suppression, as torchvision's: indices of kept boxes, best score first."""
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for index in scores.argsort(descending=True, stable=True).tolist():
        low = torch.maximum(boxes[index, :2], boxes[kept, :2])
        inner = (torch.minimum(boxes[index, 2:], boxes[kept, 2:]) - low).clamp(min=0).prod(1)
        if not bool((inner / (areas[index] + areas[kept] - inner) > overlap).any()):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


@nms.register_fake
def _(boxes, scores, overlap):
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


class Suppress(torch.autograd.Function):
    """The same for the older exporter, which asks a function for its operators."""

    @staticmethod
    def forward(ctx, boxes, scores, overlap):
        return nms(boxes, scores, overlap)

    @staticmethod
    def symbolic(g, boxes, scores, overlap):
        def constant(value):
            return g.op("Constant", value_t=value)

        axes = constant(torch.tensor([0]))
        found = g.op("NonMaxSuppression", g.op("Unsqueeze", boxes, axes), g.op("Unsqueeze", scores, constant(torch.tensor([0, 1]))),
                     constant(torch.tensor([2**31])), constant(torch.tensor([overlap])))
        return g.op("Squeeze", g.op("Gather", found, constant(torch.tensor([2])), axis_i=1), constant(torch.tensor([1])))


class Detector(nn.Module):
    """An anchor-free head on a small trunk: boxes decoded, the best candidates suppressed, results picked by index."""

    def __init__(self, through_function):
        super().__init__()
        self.through_function = through_function
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
        self.scores, self.boxes = nn.Conv2d(32, 3, 1), nn.Conv2d(32, 4, 1)

    def forward(self, image):
        x = self.trunk(image)
        _, _, height, width = x.shape
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centres = torch.stack([xs, ys], -1).reshape(-1, 2).float() * 4 + 2
        sides = self.boxes(x)[0].permute(1, 2, 0).reshape(-1, 4).exp() * 8
        boxes = torch.cat([centres - sides[:, :2], centres + sides[:, 2:]], 1)
        scores, labels = self.scores(x)[0].permute(1, 2, 0).reshape(-1, 3).sigmoid().max(1)
        kept = Suppress.apply(boxes, scores, 0.5) if self.through_function else torch.ops.sartor_tests.nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept], labels[kept]


class BestBoxes(nn.Module):
    """A YOLO-like head of fixed output: the scores of all places, the best sixteen."""

    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 12, 3, stride, 1) for stride in (2, 4)])

    def forward(self, image):
        found = torch.cat([level(image).flatten(2) for level in self.levels], 2).transpose(1, 2)
        scores, place = found[..., 4:].sigmoid().flatten(1).topk(16, 1)
        boxes = found[..., :4].gather(1, (place // 8)[..., None].expand(-1, -1, 4))
        return boxes, scores, place % 8


def nms_translation():
    """How the newer exporter writes `nms`."""
    from onnxscript import opset20 as op

    def suppress(boxes, scores, overlap: float):
        axes = op.Constant(value_ints=[0])
        found = op.NonMaxSuppression(op.Unsqueeze(boxes, axes), op.Unsqueeze(scores, op.Constant(value_ints=[0, 1])),
                                     op.Constant(value_ints=[2**31]), op.Constant(value_floats=[overlap]))
        return op.Squeeze(op.Gather(found, op.Constant(value_ints=[2]), axis=1), op.Constant(value_ints=[1]))

    return {torch.ops.sartor_tests.nms.default: suppress}


def images(*sizes):
    return lambda: [(normal(b, 3, h, w),) for b, h, w in sizes]


def batch_of_bert():
    return [(tokens(b, s), (torch.arange(s)[None] < torch.tensor([s, s - 2, s - 3])[:b, None]).long(), tokens(b, s, below=2))
            for b, s in ((2, 16), (1, 9), (3, 23))]


BY_IMAGE = ({0: "batch", 2: "height", 3: "width"},)
NETWORKS = [
    Case("vit", VisionTransformer, images((2, 32, 32), (1, 32, 32), (5, 32, 32)), ({0: "batch"},)),
    Case("convnext", convnext, images((2, 32, 32), (1, 64, 48), (3, 40, 32)), BY_IMAGE),
    Case("unet_transposed", lambda: UNet(True), images((2, 32, 32), (1, 48, 64)), BY_IMAGE),
    Case("unet_interpolated", lambda: UNet(False), images((2, 32, 32), (1, 48, 64), (1, 36, 28)), BY_IMAGE),
    Case("efficientnet", efficientnet, images((2, 32, 32), (1, 45, 64)), BY_IMAGE),
    Case("group_norms", group_norms, images((2, 32, 32), (1, 20, 28)), BY_IMAGE),
    Case("super_resolution", super_resolution, lambda: [(normal(2, 1, 16, 16),), (normal(1, 1, 20, 12),)], BY_IMAGE),
    Case("generator", Generator, lambda: [(normal(2, 16),), (normal(5, 16),)], ({0: "batch"},)),
    Case("shuffle", Shuffle, lambda: [(normal(2, 16, 8, 8),), (normal(1, 16, 9, 7),)], BY_IMAGE),
    Case("bert", Bert, batch_of_bert, ({0: "batch", 1: "length"},) * 3),
    Case("gpt", Gpt, lambda: [(tokens(2, 16),), (tokens(1, 7),), (tokens(3, 33),)], ({0: "batch", 1: "length"},)),
    Case("llama", Llama, lambda: [(tokens(2, 16),), (tokens(1, 7),), (tokens(3, 33),)], ({0: "batch", 1: "length"},)),
    Case("lstm_tagger", Tagger, lambda: [(tokens(2, 16),), (tokens(1, 7),), (tokens(3, 33),)], ({0: "batch", 1: "length"},), fixed_only=("dynamo",)),
    Case("packed_tagger", PackedTagger, lambda: [(tokens(3, 16), torch.tensor([16, 12, 5])), (tokens(3, 9), torch.tensor([9, 9, 2]))],
         ({0: "batch", 1: "length"}, {0: "batch"}), exporters=("torchscript",)),
    Case("gru_classifier", GruClassifier, lambda: [(normal(2, 16, 12),), (normal(1, 5, 12),)], ({0: "batch", 1: "length"},)),
    Case("rnn_step", RnnStep, lambda: [(normal(6, 2, 8), normal(1, 2, 16)), (normal(3, 4, 8), normal(1, 4, 16))],
         ({0: "length", 1: "batch"}, {1: "batch"})),
    Case("sequence_to_sequence", SequenceToSequence, lambda: [(tokens(2, 12), tokens(2, 9)), (tokens(3, 7), tokens(3, 16))],
         ({0: "batch", 1: "source"}, {0: "batch", 1: "target"}), fixed_only=("torchscript",)),
    Case("encoder", Encoder, lambda: [(normal(2, 12, 32),), (normal(1, 30, 32),)], ({0: "batch", 1: "length"},), fixed_only=("torchscript",)),
    Case("sentence_encoder", Mixed, lambda: [(tokens(2, 12, below=12),), (tokens(3, 30, below=12),)], ({0: "batch", 1: "length"},), fixed_only=("torchscript",)),
    Case("wavenet", Wave, lambda: [(normal(2, 1, 100),), (normal(1, 1, 333),)], ({0: "batch", 2: "samples"},)),
    Case("spectrogram", Spectrogram, lambda: [(normal(2, 320),), (normal(1, 800),)], ({0: "batch", 1: "samples"},)),
    Case("experts", Experts, lambda: [(normal(6, 16),), (normal(3, 16),)], ({0: "tokens"},)),
    Case("detector_script", lambda: Detector(True), images((1, 32, 32), (1, 48, 64)), ({2: "height", 3: "width"},), exporters=("torchscript",)),
    Case("detector_dynamo", lambda: Detector(False), images((1, 32, 32), (1, 48, 64)), ({2: "height", 3: "width"},), exporters=("dynamo",)),
    Case("best_boxes", BestBoxes, images((2, 32, 32), (1, 48, 64)), BY_IMAGE),
]
