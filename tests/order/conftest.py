"""How hypothesis runs here: no time limit per example, as machines are busy; nothing is left behind."""

from hypothesis import settings

settings.register_profile("order", deadline=None, max_examples=40, database=None)
settings.load_profile("order")
