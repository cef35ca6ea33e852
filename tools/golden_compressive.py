"""Makes tests/golden/compressive.npz: what two other implementations of the Compressive Transformer compute.

Needs torch, compressive-transformer-pytorch 0.4.0 and labml-nn 0.5.1, which memjax does not depend on:

    pip install torch==2.13.0 numpy==1.26.4 pyyaml gitpython
    pip install --no-deps compressive-transformer-pytorch==0.4.0 mogrifier labml-nn==0.5.1 labml labml-helpers
    python tools/golden_compressive.py tests/golden/compressive.npz
"""

import copy
import sys

import numpy as np
import torch
from compressive_transformer_pytorch.compressive_transformer_pytorch import PreNorm, Residual, SelfAttention
from labml_nn.transformers.compressive import (
    AttentionReconstructionLoss,
    CompressiveTransformerLayer,
    Conv1dCompression,
)
from labml_nn.transformers.feed_forward import FeedForward
from labml_nn.transformers.xl.relative_mha import RelativeMultiHeadAttention

DIM, HEADS, BATCH = 16, 2, 2


def randomise(module: torch.nn.Module) -> None:
    """Values that hide no mistake. The biases of maps are 0: memjax has none there, as the authors' code."""
    for name, value in module.named_parameters():
        noise = torch.randn_like(value)
        if "norm" in name:
            value.data = noise * 0.2 + float(name.endswith("weight"))
        else:
            value.data = 0 * noise if name.endswith("bias") else noise * value[0].numel() ** -0.5


def parameters_of(module: torch.nn.Module) -> dict:
    return {f"param/{name}": value.detach().numpy().copy() for name, value in module.named_parameters()}


def sinusoids(total: int) -> np.ndarray:
    """`[total, dim]`, distance `total - 1` first."""
    angles = np.arange(total)[::-1, None] / 10000 ** (np.arange(0, DIM, 2) / DIM)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def self_attention() -> dict:
    """A layer that reads five segments, with the table of positions that Transformer-XL's relative keys would give."""
    length, memory, slots, rate, segments = 6, 6, 4, 3, 5
    part = Residual(PreNorm(DIM, SelfAttention(DIM, length, memory, slots, rate, HEADS))).eval()
    randomise(part)
    relative = np.random.default_rng(0).normal(size=(DIM, HEADS, DIM // HEADS)) * 0.3
    table = np.einsum("td,dhe->hte", sinusoids(length + memory + slots), relative)
    table = torch.tensor(table, dtype=torch.float32)
    arrays = {"relative": relative.astype(np.float32), **parameters_of(part)}
    memories = None
    for segment in range(segments):
        x = torch.randn(BATCH, length, DIM)
        with torch.no_grad():
            y, after, _ = part(x, memories=memories, pos_emb=table)
        # In training it computes the loss, and freezes a matrix: on a copy.
        training = copy.deepcopy(part).train()
        *_, loss = training(x, memories=memories, pos_emb=table)
        loss.sum().backward()
        gradient = training.fn.fn.compress_mem_fn.conv.weight.grad
        found = {"x": x, "y": y, "mem": after.mem, "cmem": after.compressed_mem, "loss": loss.detach()}
        found["grad"] = torch.zeros_like(training.fn.fn.compress_mem_fn.conv.weight) if gradient is None else gradient
        arrays |= {f"segment{segment}/{name}": value.detach().numpy().copy() for name, value in found.items()}
        memories = after
    return arrays


def reconstruction() -> dict:
    """The loss of a pre-norm layer, and its gradient to the convolution."""
    length, rate = 8, 4
    attention = RelativeMultiHeadAttention(HEADS, DIM, 0.0)
    layer = CompressiveTransformerLayer(
        d_model=DIM,
        self_attn=attention,
        feed_forward=FeedForward(DIM, DIM, 0.0),
        dropout_prob=0.0,
        compress=Conv1dCompression(rate, DIM),
    )
    randomise(layer)
    hidden, memory = torch.randn(length, BATCH, DIM), torch.randn(length, BATCH, DIM)
    loss = AttentionReconstructionLoss(torch.nn.ModuleList([layer]))([hidden], [memory])
    loss.backward()
    learning = sorted(name for name, value in layer.named_parameters() if value.grad is not None)
    assert learning == ["compress.conv.bias", "compress.conv.weight"]
    found = {"hidden": hidden, "memory": memory, "loss": loss.detach(), "grad": layer.compress.conv.weight.grad}
    wanted = ("compress", "norm_self_attn", "self_attn.query.", "self_attn.key.", "self_attn.value.")
    parameters = {name: value for name, value in parameters_of(layer).items() if name[6:].startswith(wanted)}
    return {**{name: value.numpy().copy() for name, value in found.items()}, **parameters}


def main(path: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parts = {"self_attention": self_attention(), "reconstruction": reconstruction()}
    np.savez_compressed(path, **{f"{part}/{name}": a for part, arrays in parts.items() for name, a in arrays.items()})


if __name__ == "__main__":
    main(sys.argv[1])
