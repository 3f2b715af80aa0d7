"""One collective operation on tensors: its shape and codec, what is sampled of it, torch's handles on it."""
