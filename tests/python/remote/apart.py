"""Calls of the Blosc2 library on mounts, in a process of their own.

The library holds Python's lock while it reads a file. The proxy that the read waits for is a thread of the test's, and needs that lock too.
"""

import multiprocessing
import signal

import blosc2

from frames import contents, open_frame

from .mounting import LONG, Wrong

worker = None


def apart(function, *words):
    """What a function of this module gives, or raises, there."""
    global worker
    if worker is None:
        # A copy of this process would have the locks of its threads.
        worker = multiprocessing.get_context("spawn").Pool(1, ready)
    try:
        return worker.apply_async(function, words).get(LONG)
    except multiprocessing.TimeoutError:
        worker.terminate()
        worker = None
        raise Wrong(f"the library hangs: {function.__name__}{words}") from None


def ready():
    # Who started it ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    blosc2.set_nthreads(1)


def read(path):
    """All that the library reads of a frame."""
    return contents(open_frame(path))


def items(path, places):
    """The shape of an array, and some of its items."""
    array = open_frame(path)
    return array.shape, [int(array[place]) for place in places]
