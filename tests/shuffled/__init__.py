"""The shuffled view under real readers: unmodified frameworks, real mounts, real ranks."""
