"""The measurements of `scale` on tools that others wrote: every function of BFCL v4's single-turn categories that its authors
have an answer for, with that answer as the right call.

    python -m benchmarks.toolcalls.bfcl --public FOLDER --tokenizer DIR --out FILE

FOLDER/bfcl is `bfcl_eval/data` of the package `bfcl-eval`, as for `toolcheck --public FOLDER`. What is right or wrong is
decided apart from our code, by the `jsonschema` package under Draft 7 with Python's type names replaced: an answer that
does not fit its own function is left out and counted. The same replacement is all that the side "as it is" gets, since no
engine compiles `dict`. Wrong calls are the right one without a required key, or with a value
of another type.
"""

import argparse
import warnings
from pathlib import Path

from benchmarks.toolcalls.bfcl_files import in_drafts_words, read
from benchmarks.toolcalls.grammars import Grammars
from benchmarks.toolcalls.record import environment, write
from benchmarks.toolcalls.scale import as_plain, measured, table
from prime_inference.toolcalls.suite.public import public_cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    about = environment("python -m benchmarks.toolcalls.bfcl --public FOLDER --tokenizer DIR")
    taken = read(options.public / "bfcl")
    result = measured(taken.samples, Grammars(options.tokenizer), in_drafts_words)
    print(table(result))
    cases, _ = public_cases(options.public)
    counts = {
        "cases_loaded": len(cases),
        "functions": taken.functions,
        "answers": taken.answers,
        "not_fitting": taken.not_fitting,
        "with_undeclared_keys": taken.with_undeclared_keys,
    }
    print(counts, result.refused)
    if options.out is not None:
        write(options.out, about, {**counts, **as_plain(result)})


if __name__ == "__main__":
    main()
