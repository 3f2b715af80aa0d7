"""FSDP2 over Thinwire: its collectives replaced by Thinwire's (comms, hooks), gathers ahead of their use
(prefetch), reductions during backward (backward, buffers), and replicas of weights (replicas)."""
