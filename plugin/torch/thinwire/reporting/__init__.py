"""The report, and the watchers that see for it what does not go over Thinwire."""
