"""What is counted and timed in this process: the report and the timeline are made of it."""
