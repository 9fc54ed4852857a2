"""One file per architecture. Adding one is adding a file: the registry finds it by being there.

The package has the name of the public function that lists the architectures, so it is that function as well: `mixlab.archs()`.
"""

import sys
from types import ModuleType

from mixlab import registry


class _CallablePackage(ModuleType):
    def __call__(self) -> list[str]:
        return registry.archs()


sys.modules[__name__].__class__ = _CallablePackage
