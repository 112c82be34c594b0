"""Streams: a mount's part of a shuffled pass as one virtual file, below `.deepiofs/stream`.

`formats` names the kinds, `layout` says where everything lies in such a file, `orders` which samples it has, `tree`
gives names to them, `reading` and `ahead` get the bytes.
"""
