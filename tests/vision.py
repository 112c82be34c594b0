"""Imports torchvision, for the datasets in it.

Its wheels hold compiled operators for one build of torch; registering their meta kernels fails beside another build.
The datasets need none of them.
"""

from __future__ import annotations

import sys
import types

sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
import torchvision.datasets  # type: ignore[import-untyped] # noqa: E402, F401
