"""Programs that measure the judge itself: capacity, soak, preflight, comparisons, published kernels judged again.

    python -m sandbox.study.NAME --out FOLDER --seconds N [--backend cpp|cuda] ...

Each writes FOLDER/NAME.jsonl as it goes and FOLDER/NAME.json (a list of figures) whenever it ends or runs out of time; started again
with the same options it goes on where it stopped.
"""
