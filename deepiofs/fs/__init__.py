"""The file system without FUSE: what it looks like, and where its bytes come from, is defined here and only here."""
