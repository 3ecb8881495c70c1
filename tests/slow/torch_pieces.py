"""Small pieces of PyTorch, each by itself: how its operators look once they are exported."""

import torch
from tests.slow.torch_networks import Case, normal, tokens
from torch import nn
from torch.nn import functional

F = functional
B0 = ({0: "batch"},)
IMAGE = ({0: "batch", 2: "height", 3: "width"},)
LENGTH = ({0: "batch", 1: "length"},)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def piece(name, function, arguments, dynamic=(), **others):
    """A case of a function, of arguments by shape: (shape, ...) for normal numbers, or a callable."""
    def made():
        return [tuple(a() if callable(a) else normal(*a) for a in row) for row in arguments]

    return Case(name, lambda: Function(function), made, dynamic, **others)


def network(name, build, arguments, dynamic=(), **others):
    return Case(name, build, lambda: [tuple(a() if callable(a) else normal(*a) for a in row) for row in arguments], dynamic, **others)


IMAGES = [((2, 3, 12, 16),), ((1, 3, 20, 8),)]
ROWS = [((2, 12, 16),), ((3, 7, 16),)]


def resized(**how):
    return lambda x: F.interpolate(x, **how)


def complex_spectrum(x):
    spectrum = torch.fft.rfft(x)
    return spectrum.real, spectrum.imag


def assigned(x, rows):
    y = x.clone()
    y[:, 2:5] = 1.5
    y[rows, 0] = x[rows, 1] * 2
    y[x > 1] = 0.25
    return y


def counted(x):
    out = torch.zeros(3)
    for i in range(4):
        out = out + x[i] * i
    return out


def sampled(mode, padding, corners):
    def run(x, grid):
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
    return run


def affine(x, theta):
    return F.grid_sample(x, F.affine_grid(theta, [2, 3, 6, 8], align_corners=False), align_corners=False)


class QuantizedLinear(nn.Module):
    """Weights and activations through fake quantisation, which exports as QuantizeLinear and DequantizeLinear."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.conv.weight, torch.full((8,), 0.004), torch.zeros(8, dtype=torch.int32), 0, -128, 127)
        x = F.relu(F.conv2d(x, weight, self.conv.bias, padding=1))
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, 0, 255)
        return self.linear(x.mean((2, 3)))


class Half(nn.Module):
    """A small network in a narrow type."""

    def __init__(self, dtype):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 16), nn.GELU(),
                                 nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)

    def forward(self, x):
        return torch.softmax(self.net(x), -1)


class Bag(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode=mode)

    def forward(self, ids):
        return self.bag(ids)


class OffsetBag(Bag):
    def forward(self, ids, offsets):
        return self.bag(ids, offsets)


class SelfAttention(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.attend, self.masked = nn.MultiheadAttention(16, 4, batch_first=True), masked

    def forward(self, x):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if self.masked else None
        return self.attend(x, x, x, attn_mask=mask)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, kdim=8, vdim=12, bias=False)

    def forward(self, q, k, v):
        return self.attend(q, k, v, need_weights=False)[0]


class Cells(nn.Module):
    """Cells called step by step."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 10), nn.GRUCell(10, 7)

    def forward(self, x):
        h, c, g = torch.zeros(x.shape[0], 10), torch.zeros(x.shape[0], 10), torch.zeros(x.shape[0], 7)
        for step in range(3):
            h, c = self.lstm(x[:, step], (h, c))
            g = self.gru(h, g)
        return g, c


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 12, num_layers=2, bidirectional=True)

    def forward(self, x, h, c):
        return self.lstm(x, (h, c))


def bool_mask(shape):
    return lambda: torch.rand(*shape) > 0.5


def whole(*shape, below=5):
    return lambda: torch.randint(0, below, shape)


def of_type(dtype, *shape):
    return lambda: normal(*shape, dtype=dtype)


MODES = {"nearest": {}, "nearest-exact": {}, "bilinear": {"align_corners": False}, "bicubic": {"align_corners": False}}
PIECES = [
    *(piece(f"resize_{m}_scale", resized(scale_factor=2.0, mode=m, **k), IMAGES, IMAGE) for m, k in MODES.items()),
    *(piece(f"resize_{m}_size", resized(size=(9, 21), mode=m, **k), IMAGES, IMAGE) for m, k in MODES.items()),
    *(piece(f"resize_{m}_corners", resized(size=(9, 21), mode=m, align_corners=True), IMAGES, IMAGE) for m in ("bilinear", "bicubic")),
    piece("resize_down_scale", resized(scale_factor=0.5, mode="bilinear", align_corners=False), IMAGES, IMAGE),
    piece("resize_antialias", resized(size=(5, 7), mode="bilinear", antialias=True), IMAGES, IMAGE),
    piece("resize_area", resized(size=(4, 4), mode="area"), IMAGES),
    piece("resize_linear", resized(scale_factor=3.0, mode="linear", align_corners=False), [((2, 3, 9),), ((1, 3, 14),)], ({0: "batch", 2: "length"},)),
    piece("resize_trilinear", resized(size=(6, 5, 8), mode="trilinear", align_corners=False), [((1, 2, 3, 4, 5),)], B0),
    *(piece(f"grid_{m}_{p}_{int(c)}", sampled(m, p, c), [((2, 3, 8, 9), lambda: torch.rand(2, 5, 6, 2) * 2.4 - 1.2)],
            ({0: "batch", 2: "height", 3: "width"}, {0: "batch"}))
      for m, p, c in (("bilinear", "zeros", False), ("bilinear", "border", True), ("nearest", "reflection", False), ("bicubic", "zeros", False))),
    piece("affine_grid", affine, [((2, 3, 8, 9), (2, 2, 3))]),
    *(network(f"adaptive_avg_{s}", lambda s=s: nn.AdaptiveAvgPool2d(s), IMAGES[:1]) for s in (1, 2, (3, 4), (5, 7))),
    network("adaptive_max", lambda: nn.AdaptiveMaxPool2d((3, 4)), IMAGES[:1]),
    network("max_pool_indices", lambda: nn.MaxPool2d(2, return_indices=True), IMAGES, IMAGE),
    network("max_pool_ceil", lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGES, IMAGE),
    network("avg_pool_ceil", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGES, IMAGE),
    network("avg_pool_ceil_counted", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), [((2, 3, 13, 16),), ((1, 3, 20, 9),)], IMAGE),
    network("lp_pool", lambda: nn.LPPool2d(2, 3, 2), IMAGES, IMAGE),
    network("pool_1d_3d", lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.MaxPool3d(2), nn.AvgPool3d((1, 2, 2))), [((1, 2, 4, 8, 8),)], B0),
    piece("unfold", lambda x: F.unfold(x, 3, padding=1, stride=2), IMAGES, IMAGE),
    piece("fold", lambda x: F.fold(x, (8, 8), 2, stride=2), [((2, 12, 16),)], B0),
    piece("fold_overlap", lambda x: F.fold(x, (8, 9), 3, stride=2, padding=1), [((2, 18, 20),)], B0),
    piece("tensor_unfold", lambda x: x.unfold(1, 4, 2), ROWS),
    piece("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), IMAGES, IMAGE),
    piece("roll", lambda x: torch.roll(x, (2, -3), (2, 3)), IMAGES, IMAGE),
    piece("flip", lambda x: torch.flip(x, (1, 3)).rot90(1, (2, 3)), IMAGES, IMAGE),
    piece("cumsum", lambda x: (x.cumsum(1), x.cumsum(-1)), ROWS, LENGTH),
    piece("cumprod_logcumsumexp", lambda x: (x.cumprod(1), ), ROWS, LENGTH),
    piece("sort", lambda x: (*x.sort(1, descending=True), x.argsort(-1)), ROWS, LENGTH),
    piece("topk", lambda x: x.topk(3, 1, largest=False), ROWS, LENGTH),
    piece("kth", lambda x: (x.median(), x.max(1), x.min(-1)), ROWS),
    piece("argmax", lambda x: (x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True)), ROWS, LENGTH),
    piece("gather", lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1)), [((2, 12, 16), whole(2, 4, 16))], (({0: "batch", 1: "length"}), {0: "batch"})),
    piece("scatter", lambda x, i, u: (x.scatter(1, i, u), x.scatter_add(1, i, u), x.scatter(1, i, 3.0)), [((2, 12, 16), whole(2, 4, 16), (2, 4, 16))],
          ({0: "batch", 1: "length"}, {0: "batch"}, {0: "batch"})),
    piece("scatter_reduce", lambda x, i, u: (x.scatter_reduce(1, i, u, "amax"), x.scatter_reduce(1, i, u, "sum")), [((2, 12, 16), whole(2, 4, 16), (2, 4, 16))]),
    piece("index_add", lambda x, i, u: (x.index_add(0, i, u), x.index_copy(0, i, u), x.index_fill(0, i, 2.0)), [((7, 5), lambda: torch.tensor([4, 0, 2]), (3, 5))], ({0: "rows"}, {}, {})),
    piece("index_select", lambda x, i: (x.index_select(1, i), x[:, i], x[..., [0, 2]]), [((2, 6, 5), lambda: torch.tensor([4, 0, 2]))], ({0: "batch"}, {0: "picked"})),
    piece("assigned", assigned, [((6, 8), lambda: torch.tensor([1, 3]))], ({0: "rows"}, {})),
    piece("advanced", lambda x, i, j: (x[i, j], x[:, i, j], x[i][:, None, j]), [((6, 7, 8), whole(4), whole(4))], ({0: "rows"}, {}, {})),
    piece("masked", lambda x, m: (x.masked_fill(m, -1e4).softmax(-1), torch.where(m, x, x * 2), torch.where(m, 1.0, 0.0)), [((2, 12, 16), bool_mask((2, 12, 16)))], LENGTH * 2),
    piece("masked_select", lambda x, m: x[m] * 2, [((6, 5), bool_mask((6, 5)))]),
    piece("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), [((6, 5), bool_mask((6, 5)), (30,))]),
    piece("nonzero", lambda x: (x > 0).nonzero(), [((6, 5),), ((3, 5),)], ({0: "rows"},)),
    piece("unique", lambda x: torch.unique(x, sorted=True, return_inverse=True, return_counts=True), [(whole(20),)]),
    piece("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])), ROWS, LENGTH),
    piece("one_hot", lambda i: F.one_hot(i, 7), [(whole(3, 5),)], LENGTH),
    piece("embedding_math", lambda i: (i // 3, i % 3, i << 2, i & 3, i.float() ** 0.5, torch.div(i, 3, rounding_mode="trunc"), torch.fmod(i, 3)), [(whole(3, 5, below=50),)], LENGTH),
    piece("einsum", lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->bk", a, b), torch.einsum("bii->bi", b)), [((2, 3, 4), (2, 4, 4))], (B0[0], B0[0])),
    piece("einsum_heads", lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), [((2, 5, 3, 4), (2, 6, 3, 4))], LENGTH * 1 + ({0: "batch", 1: "keys"},)),
    piece("matmuls", lambda a, b: (a @ b, torch.bmm(a, b), torch.baddbmm(a @ b, a, b, beta=0.5, alpha=2), a[0] @ b[0, :, 0], torch.addmm(a[0], a[0], b[0][:, :4])), [((2, 3, 4), (2, 4, 4))]),
    piece("outer", lambda a, b: (torch.outer(a, b), torch.dot(a, a), torch.kron(a[None], b[None]), torch.cross(a[:3], b[:3], dim=0), torch.tensordot(a[None], b[None], 0)), [((5,), (4,))]),
    piece("norms", lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1, dim=-1, keepdim=True), x.norm(p=float("inf"), dim=1), F.normalize(x, dim=1), torch.linalg.vector_norm(x, 3, 2)), ROWS, LENGTH),
    piece("moments", lambda x: (x.var(1), x.std(-1, unbiased=False), *torch.std_mean(x, 1), x.var((1, 2)), x.logsumexp(1), x.prod(1), x.amax((1, 2)), (x > 0).any(1), (x > -9).all()), ROWS, LENGTH),
    piece("distance", lambda a, b: (torch.cdist(a, b), F.cosine_similarity(a, a * 2 + 1, -1), F.pairwise_distance(a, a + 1)), [((2, 5, 4), (2, 6, 4))]),
    piece("activations", lambda x: torch.stack([F.celu(x), F.selu(x), F.softplus(x), F.softplus(x, 2, 1), F.hardtanh(x), F.hardshrink(x), F.softshrink(x), F.tanhshrink(x), F.logsigmoid(x), F.gelu(x, approximate="tanh"), F.silu(x), F.relu6(x), F.threshold(x, 0.1, 20), F.hardswish(x), F.softsign(x), F.softmin(x, -1), F.rrelu(x)]), ROWS, LENGTH),
    piece("glu", lambda x: (F.glu(x, -1), F.glu(x, 2)), ROWS, LENGTH),
    piece("special", lambda x: (torch.erf(x), torch.erfc(x), torch.expm1(x), torch.log1p(x.abs()), torch.atan2(x, x + 0.5), torch.sinh(x), torch.asinh(x), x.frac(), x.trunc(), x.round(), torch.sign(x), torch.rsqrt(x.abs() + 1), torch.exp2(x), torch.log2(x.abs() + 1), torch.log10(x.abs() + 1), torch.logit(x.sigmoid()), torch.hypot(x, x), torch.lerp(x, x * 2, 0.3), torch.addcmul(x, x, x, value=0.5), torch.nan_to_num(x / 0.0)), ROWS, LENGTH),
    piece("compare", lambda x, y: (x > y, x == y, torch.isclose(x, y), torch.isnan(x), torch.isinf(x / 0.0), torch.logical_xor(x > 0, y > 0), ~(x > 0), torch.maximum(x, y), x.clamp(-0.5, 0.5), x.clamp(min=y), torch.remainder(x, 0.7), torch.fmod(x, 0.7), torch.floor_divide(x, 0.3)), [((2, 12, 16), (2, 12, 16))], LENGTH * 2),
    piece("shapes", lambda x: (x.reshape(x.shape[0], -1), x.flatten(1), x.unflatten(2, (4, 4)), x.unsqueeze(1).squeeze(1), x.transpose(0, 1), x.permute(2, 0, 1), x.movedim(0, -1), x.repeat(1, 2, 1), x.repeat_interleave(2, 1), x.expand(2, -1, -1, -1), x[:, ::2], x[:, -3:], x[..., None, :], torch.tile(x, (2, 1))), ROWS, LENGTH),
    piece("squeeze_all", lambda x: x.unsqueeze(1).squeeze(), ROWS, LENGTH, exporters=("torchscript",), hosted=("Squeeze",)),
    piece("split", lambda x: (*x.split(5, 2), *x.chunk(3, 2), *x.unbind(0), *torch.tensor_split(x, 3, 2), x.narrow(1, 2, 3), x.select(1, -1)), [((2, 12, 16),)]),
    piece("split_dynamic", lambda x: (*x.split([3, 5, 8], 2), x.narrow(1, 2, 3), torch.hstack([x, x]), torch.stack([x, x], 1), torch.cat([x, x[:, :2]], 1)), ROWS, LENGTH),
    piece("triangles", lambda x: (x.tril(), x.triu(1), torch.tril(torch.ones(x.shape[1], x.shape[1])), x[0].diagonal(), torch.diag_embed(x[0]), x[0, :5, :5].trace()), ROWS, LENGTH),
    piece("ranges", lambda x: (torch.arange(x.shape[1]), torch.arange(0, 1, 0.1), torch.linspace(0, 1, 5) + x[0, 0, 0], torch.full_like(x, 2), torch.zeros(x.shape[0], 3), torch.eye(x.shape[1]), x.new_ones(2, 2), torch.meshgrid(torch.arange(x.shape[1]), torch.arange(3), indexing="ij")[0]), ROWS, LENGTH),
    piece("pads", lambda x: (F.pad(x, (1, 2, 3, 0)), F.pad(x, (1, 2, 3, 1), "reflect"), F.pad(x, (1, 1, 1, 1), "replicate"), F.pad(x, (2, 1, 1, 2), "circular"), F.pad(x, (-1, 2), value=1.5)), IMAGES, IMAGE),
    piece("causal_sdpa", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), [((2, 3, 12, 8),), ((1, 3, 5, 8),)], ({0: "batch", 2: "length"},)),
    piece("masked_sdpa", lambda q, k, m: F.scaled_dot_product_attention(q, k, k * 2, attn_mask=m, scale=0.4), [((2, 3, 5, 8), (2, 3, 7, 8), bool_mask((5, 7)))]),
    piece("grouped_sdpa", lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), [((2, 4, 5, 8), (2, 2, 7, 8))], exporters=("dynamo",)),
    network("self_attention", lambda: SelfAttention(False), ROWS, LENGTH, fixed_only=("torchscript",)),
    network("self_attention_causal", lambda: SelfAttention(True), ROWS, LENGTH, fixed_only=("torchscript",)),
    network("cross_attention", CrossAttention, [((5, 2, 16), (7, 2, 8), (7, 2, 12))], ({0: "q", 1: "batch"}, {0: "k", 1: "batch"}, {0: "k", 1: "batch"})),
    network("cells", Cells, [((2, 3, 6),), ((5, 3, 6),)], B0),
    network("lstm_states", Projected, [((5, 2, 6), (4, 2, 12), (4, 2, 12)), ((9, 3, 6), (4, 3, 12), (4, 3, 12))], ({0: "length", 1: "batch"}, {1: "batch"}, {1: "batch"})),
    *(network(f"bag_{m}", lambda m=m: Bag(m), [(lambda: tokens(3, 6, below=50),)], B0) for m in ("sum", "mean", "max")),
    network("bag_offsets", lambda: OffsetBag("sum"), [(lambda: tokens(10, below=50), lambda: torch.tensor([0, 4, 7]))], exporters=("torchscript",)),
    network("bag_offsets_grown", lambda: OffsetBag("sum"), [(lambda: tokens(10, below=50), lambda: torch.tensor([0, 4, 7]))],
            exporters=("dynamo",), hosted=("SequenceEmpty", "Loop", "ConcatFromSequence", "Cast")),  # a loop grows a sequence
    piece("rfft", complex_spectrum, [((2, 32),)], B0),
    piece("fft_power", lambda x: torch.fft.fft(x).abs().pow(2), [((2, 32),)], B0),
    piece("irfft", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=32), [((2, 32),)], B0),
    piece("fft2", lambda x: torch.fft.fft2(x).real, [((2, 8, 8),)], B0),
    piece("complex_product", lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones(6), torch.arange(6.0))), [((2, 6, 2),)], B0),
    network("quantized", QuantizedLinear, [((2, 3, 8, 8),)], B0),
    network("half", lambda: Half(torch.float16), [(of_type(torch.float16, 2, 3, 8, 8),)], B0, tolerance=4e-3),
    network("brain", lambda: Half(torch.bfloat16), [(of_type(torch.bfloat16, 2, 3, 8, 8),)], B0, tolerance=3e-2),
    piece("doubles", lambda x: (x.double() @ x.double().transpose(1, 2)).softmax(-1), ROWS, LENGTH),
    piece("loop_unrolled", counted, [((4, 3),)]),
    network("norm_kinds", lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.LocalResponseNorm(3), nn.RMSNorm([8, 10]), nn.LayerNorm([8, 10])), [((2, 4, 12),)], B0),
    network("spectral", lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8)), nn.Softmax(-1), nn.Linear(8, 3)), ROWS, LENGTH),
    network("bilinear", lambda: nn.Bilinear(6, 5, 4), [((3, 6), (3, 5))], B0 * 2),
    network("transposed_1d_3d", lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 5, 3, 2, 1), nn.Softmax(1)), [((2, 4, 9),), ((1, 4, 12),)], ({0: "batch", 2: "length"},)),
    network("strided_convolutions", lambda: nn.Sequential(nn.Conv2d(3, 6, (1, 5), (1, 2), "valid", bias=False), nn.Conv2d(6, 6, 3, padding="same", dilation=2, groups=3), nn.ChannelShuffle(3), nn.Dropout2d(), nn.Upsample(scale_factor=(1, 2))), IMAGES, IMAGE),
    network("channels", lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.Conv2d(3, 4, 1), nn.Softmax2d(), nn.Unflatten(1, (2, 2)), nn.Flatten(1, 2)), IMAGES, IMAGE),
]


class Together(nn.Module):
    """Several modules of the same arguments in one."""

    def __init__(self, modules):
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x):
        return [part(x) for part in self.parts]


def together():
    """Pieces of one argument of the same sizes joined, since an export by the newer exporter takes seconds whatever it exports."""
    groups = {}
    for case in PIECES:
        arguments = case.arguments()
        if len(arguments[0]) == 1 and case.tolerance == 1e-4 and case.name not in ALONE:
            key = str(([tuple(a.shape for a in row) for row in arguments], arguments[0][0].dtype, case.dynamic))
            groups.setdefault(key, []).append(case)
    parts = [cases[i:i + 8] for cases in groups.values() for i in range(0, len(cases), 8)]
    return [Case("+".join(c.name for c in cases), lambda cases=cases: Together([c.build() for c in cases]), cases[0].arguments, cases[0].dynamic,
                 exporters=("dynamo",)) for cases in parts]


ALONE = ("bag_offsets_grown", "kth", "cumprod_logcumsumexp", "special", "activations")  # of which the newer exporter cannot write all
