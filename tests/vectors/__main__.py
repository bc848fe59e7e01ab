"""python -m tests.vectors FILE: prints `N of M exact` and each miss; exit status 1 if there is one."""
from __future__ import annotations

import sys
from pathlib import Path

from tests.vectors.run import read, run


def main(argv: list[str]) -> int:
    if len(argv) != 1 or not Path(argv[0]).is_file():
        print("usage: python -m tests.vectors FILE", file=sys.stderr)
        return 2
    results = run(read(Path(argv[0])))
    missed = [result for result in results if result.misses]
    print(f"{len(results) - len(missed)} of {len(results)} exact")
    for result in missed:
        print(f"  {result.id}: {'; '.join(result.misses)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
