"""Attention of JAX arrays, beside JAX's own: they meet through DLPack, and nothing is copied."""

import attune
import jax


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 256, 8, 64)) for key in keys)  # [B,S,H,D]
    ours = attune.attention(q, k, v, is_causal=True, layout="bshd")
    theirs = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    difference = float(abs(ours - theirs).max())
    print(f"{type(ours).__name__} of {ours.shape}, off by {difference:.1e} from JAX's own")
    return difference


if __name__ == "__main__":
    main()
