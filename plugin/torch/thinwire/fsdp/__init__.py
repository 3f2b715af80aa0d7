"""FSDP2 over Thinwire: what stands in its places for collectives, gathers ahead of their use, reductions
beside backward, and replicas of weights."""
