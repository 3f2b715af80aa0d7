"""Communicators of the C library between torch's ranks: how ranks agree to use Thinwire, meet, post
operations and learn of a failure."""
