"""Object stores and the web as a source: whatever fsspec reads."""
