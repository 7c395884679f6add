"""Ways to compute the gradients of an `nn.Module` for many workers."""
