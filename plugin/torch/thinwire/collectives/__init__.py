"""One collective operation on tensors: its shape, its codec, samples for the report, and torch's handles."""
