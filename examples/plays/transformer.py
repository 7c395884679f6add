"""A character transformer as a model of one's own: `model = {kind = "transformer:transformer", width = 64}`."""

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Decoder blocks over characters; the table of characters is also the last layer (tied weights)."""

    def __init__(self, length: int, characters: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(characters, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores `[batch, length, characters]` of the next character at each place."""
        x = self.table(tokens) + self.places
        scores: Tensor = self.head(self.blocks(x, mask=self.mask, is_causal=True))
        return scores


def transformer(inputs: tuple[int, ...], outputs: int, width: int = 64, layers: int = 2, heads: int = 4) -> nn.Module:
    """The factory that an experiment file names: inputs are sequences, outputs is the number of characters."""
    return Transformer(inputs[0], outputs, width, layers, heads)
