"""The order of samples: pure functions of seed, pass, membership and topology, and state machines without I/O.

No clock, no messages; numpy only. The same on every rank without a word between them.
"""
