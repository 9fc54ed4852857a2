"""Data: from files, the Hub or a generator to examples; every random decision a pure function of (seed, epoch, sample index)."""
