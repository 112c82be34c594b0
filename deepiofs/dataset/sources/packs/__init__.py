"""Files that records lie in one after the other: tar, TFRecord, zip."""
