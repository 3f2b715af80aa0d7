"""The report, and the watchers that count for it the operations that do not go over Thinwire."""
