"""Counts and times of this process, from which the report and the timeline are made."""
