"""One file per architecture. Adding one is adding a file: the registry finds it by being there."""
