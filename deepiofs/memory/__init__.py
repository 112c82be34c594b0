"""Where bytes are: which rank holds what, the shared segments, and the words between mount and engine."""
