#!/usr/bin/env python3
"""Makes the Caterva frames of tests/data: arrays as they were before b2nd.

    make_caterva_data.py [DIRECTORY]

Needs caterva 0.7.3, the last there was, which has its own Blosc2 inside; of Python 3.8 to 3.11. make_test_data.py keeps what this has made,
and says in expected.tsv what is in it.
"""

import shutil
import sys
from pathlib import Path

import caterva
import numpy as np

top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "data"
shutil.rmtree(top / "sframe/caterva.b2frame", ignore_errors=True)
(top / "cframe/caterva.b2frame").unlink(missing_ok=True)
array = np.arange(7 * 10, dtype="<i4").reshape(7, 10)
for layout in ("cframe", "sframe"):
    path = str(top / layout / "caterva.b2frame")
    caterva.asarray(array, chunks=(4, 6), blocks=(2, 3), urlpath=path, contiguous=layout == "cframe")
