"""The results table: every number with its command, commit, hardware and log."""
