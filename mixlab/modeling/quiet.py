"""Silence between our own lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def quiet_bars() -> Iterator[None]:
    """transformers draws no bar; afterwards it does as before."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars and hints of transformers; afterwards it speaks as before."""
    loudness = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with quiet_bars():
            yield
    finally:
        logging.set_verbosity(loudness)
