"""Causal multi-head self-attention, as it is written down in a first lecture: the baseline."""

import math

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        keep = torch.ones(max_seqlen, max_seqlen, dtype=torch.bool).tril()
        self.register_buffer("keep", keep[None, None], persistent=False)
        self.n_head = n_head

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for t in self.c_attn(x).split(width, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        scores = scores.masked_fill(~self.keep[:, :, :length, :length], -math.inf)
        out = self.attn_dropout(scores.softmax(dim=-1)) @ v
        out = out.transpose(1, 2).reshape(batch, length, width)
        return self.resid_dropout(self.c_proj(out))
