"""Communicators of the C library between torch's ranks: how ranks agree to use Thinwire, connect, post
operations, and react when a rank fails."""
