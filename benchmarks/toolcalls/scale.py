"""How many right calls a grammar forbids and wrong ones it lets through, with and without the normaliser, on one set.

For every generated tool and every argument object (right or wrong by construction): its GLM text goes to xgrammar's
matcher, through our decoder, and to the judge under the client's own schema. Grammar and judge are reported apart.
A tenth as many tools that nobody could serve stand beside them (`refusals`), and are in none of these counts.

    python -m benchmarks.toolcalls.scale --tokenizer DIR --count 2000 --out FILE
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.toolcalls.grammars import Grammars
from benchmarks.toolcalls.record import environment, write
from benchmarks.toolcalls.refusals import refusals, totals
from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared, Tool, declare
from prime_inference.toolcalls.door import without_patterns
from prime_inference.toolcalls.errors import ToolError, Unspellable
from prime_inference.toolcalls.findings import Effect
from prime_inference.toolcalls.glm import Call, Decoder, encode
from prime_inference.toolcalls.strict_json import parse, spell
from prime_inference.toolcalls.suite.generate import EVERY, Sample, generate
from prime_inference.toolcalls.tags import build_tag
from prime_inference.toolcalls.verdict import Verdict, judge

NAME = "tool"
ONE_CALL = Choice(Mode.REQUIRED, (NAME,))
SEED = 20_261_129


@dataclass
class Side:
    """One way of making the grammar: from the client's schema as it is, or normalised."""

    tools: int = 0
    compile_failures: int = 0
    unreported_failures: int = 0
    """Compile failures that would reach the engine: neither refused at the door nor degraded with a finding."""
    degraded: int = 0
    right: int = 0
    right_rejected: int = 0
    wrong: int = 0
    wrong_accepted: int = 0
    wrong_accepted_unreported: int = 0
    """Of them those of a tool without a finding that says the grammar is looser than the schema."""
    reordered: int = 0
    reordered_rejected: int = 0
    extended: int = 0
    extended_rejected: int = 0
    text_differs: int = 0
    """Texts that the same grammar, sent as EBNF text, treats otherwise."""
    rejected_by: Counter[str] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """The raw samples: tool, right, of them rejected, wrong, of them accepted. One that did not compile has none."""


@dataclass
class Judged:
    right: int = 0
    right_rejected: int = 0
    wrong: int = 0
    wrong_accepted: int = 0
    wrong_after_parsing: int = 0
    """Texts whose decoded arguments are not the ones they were made from."""
    no_spelling: int = 0
    """Wrong arguments that GLM's text cannot say, such as a number for a plain string; not in the other counts."""
    counted_otherwise: int = 0
    """Right by the client's meaning, a mismatch by OpenRouter's counter (`nullable`, foreign type names)."""


@dataclass(frozen=True)
class Texts:
    right: list[str]
    wrong: list[tuple[str, str]]
    """Each with the construct that makes it wrong."""
    reordered: list[str]
    extended: list[str]


def spelled(tool: Tool, group: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], str | None]]:
    result: list[tuple[dict[str, Any], str | None]] = []
    for arguments in group:
        try:
            result.append((arguments, encode(NAME, arguments, tool)))
        except Unspellable:
            result.append((arguments, None))
    return result


def judge_sample(sample: Sample, tool: Tool, declared: Declared, judged: Judged) -> Texts:
    texts: dict[str, list[Any]] = {}
    for label in ("right", "wrong", "reordered", "extended"):
        texts[label] = []
        group = [one for _, one in sample.wrong] if label == "wrong" else getattr(sample, label)
        for index, (arguments, text) in enumerate(spelled(tool, group)):
            if text is None:
                judged.no_spelling += 1
                continue
            texts[label].append((sample.wrong[index][0], text) if label == "wrong" else text)
            events = Decoder(declared.tools).feed(text)
            call = events[0] if len(events) == 1 and isinstance(events[0], Call) else None
            if call is None or spell(parse(call.arguments)) != spell(arguments):
                judged.wrong_after_parsing += 1
                continue
            verdict = judge(NAME, call.arguments, declared.tools)
            if label == "wrong":
                judged.wrong += 1
                judged.wrong_accepted += verdict.verdict is Verdict.OK
            else:
                judged.right += 1
                judged.right_rejected += verdict.verdict is not Verdict.OK
                judged.counted_otherwise += verdict.counted is not verdict.verdict
    return Texts(**texts)


def measure(side: Side, grammars: Grammars, compiled: Any, sample: Sample, texts: Texts) -> None:
    before = side.right_rejected, side.wrong_accepted
    for text in texts.right:
        taken = grammars.takes(compiled, text)
        side.right += 1
        side.right_rejected += not taken
        if not taken:
            side.rejected_by.update(set(sample.constructs))
    for construct, text in texts.wrong:
        taken = grammars.takes(compiled, text)
        side.wrong += 1
        side.wrong_accepted += taken
        if taken:
            side.accepted_by[construct] += 1
    rejected, accepted = side.right_rejected - before[0], side.wrong_accepted - before[1]
    side.rows.append((sample.number, len(texts.right), rejected, len(texts.wrong), accepted))
    side.reordered += len(texts.reordered)
    side.reordered_rejected += sum(not grammars.takes(compiled, text) for text in texts.reordered)
    side.extended += len(texts.extended)
    side.extended_rejected += sum(not grammars.takes(compiled, text) for text in texts.extended)


def as_it_is(tool: Tool, words: Callable[[Any], Any]) -> dict[str, Any]:
    """The tag of the client's own schema, as an engine builds it. `words` replaces words of another dialect."""
    tag = build_tag(Declared({NAME: tool}), ONE_CALL)
    tag["format"]["tags"][0]["content"]["json_schema"] = words(tool.function["parameters"])
    return tag


@dataclass
class Result:
    plain: Side
    normalised: Side
    judged: Judged
    constructs: Counter[str]
    refused: list[dict[str, str]]


def measured(
    samples: Iterable[Sample], grammars: Grammars, words: Callable[[Any], Any] = lambda schema: schema
) -> Result:
    result = Result(Side(), Side(), Judged(), Counter(), [])
    for sample in samples:
        result.constructs.update(set(sample.constructs))
        entry = {"type": "function", "function": {"name": NAME, "parameters": sample.parameters}}
        try:
            declared = declare([entry])
        except ToolError as error:
            result.refused.append({"constructs": ", ".join(sample.constructs), "error": error.message})
            continue
        tool = declared.tools[NAME]
        texts = judge_sample(sample, tool, declared, result.judged)
        result.plain.tools += 1
        compiled, _ = grammars.compile(as_it_is(tool, words))
        if compiled is None:
            result.plain.compile_failures += 1
            result.plain.unreported_failures += 1
        else:
            measure(result.plain, grammars, compiled, sample, texts)
        normalised(result.normalised, grammars, declared, sample, texts)
    return result


def normalised(side: Side, grammars: Grammars, declared: Declared, sample: Sample, texts: Texts) -> None:
    side.tools += 1
    tag = build_tag(declared, ONE_CALL)
    findings = declared.tools[NAME].findings
    compiled, _ = grammars.compile(tag)
    if compiled is None:
        side.compile_failures += 1
        bare = without_patterns(declared.tools[NAME])
        tag = build_tag(Declared({NAME: bare}), ONE_CALL)
        compiled, _ = grammars.compile(tag)
        if compiled is None:
            side.unreported_failures += 1
            return
        side.degraded += 1
        findings = bare.findings
    accepted = side.wrong_accepted
    measure(side, grammars, compiled, sample, texts)
    if not any(finding.effect is Effect.LOOSER for finding in findings):
        side.wrong_accepted_unreported += side.wrong_accepted - accepted
    as_text = grammars.compile_text(tag)
    for text in (*texts.right, *(text for _, text in texts.wrong)):
        side.text_differs += grammars.takes(as_text, text) != grammars.takes(compiled, text)


def as_plain(result: Result) -> dict[str, Any]:
    """For JSON. `dataclasses.asdict` would rebuild each Counter from its pairs, and count those."""
    return {
        **vars(result),
        "plain": vars(result.plain),
        "normalised": vars(result.normalised),
        "judged": vars(result.judged),
    }


def percent(part: int, whole: int) -> str:
    return f"{part}/{whole} = {100 * part / whole:.2f} %" if whole else "0/0"


def table(result: Result) -> str:
    plain, mine, judged = result.plain, result.normalised, result.judged
    rows = [
        ("", "as it is", "normalised"),
        ("tools", str(plain.tools), str(mine.tools)),
        ("compile failures, unreported", str(plain.unreported_failures), str(mine.unreported_failures)),
        ("compile failures, degraded with a finding", "-", str(mine.degraded)),
        (
            "right rejected by the grammar",
            percent(plain.right_rejected, plain.right),
            percent(mine.right_rejected, mine.right),
        ),
        (
            "wrong accepted by the grammar",
            percent(plain.wrong_accepted, plain.wrong),
            percent(mine.wrong_accepted, mine.wrong),
        ),
        ("of them not reported as looser", "-", str(mine.wrong_accepted_unreported)),
        (
            "right but in another key order, rejected (policy)",
            percent(plain.reordered_rejected, plain.reordered),
            percent(mine.reordered_rejected, mine.reordered),
        ),
        (
            "right with an undeclared key, rejected (policy)",
            percent(plain.extended_rejected, plain.extended),
            percent(mine.extended_rejected, mine.extended),
        ),
    ]
    lines = [f"{name:52} {one:>24} {two:>24}" for name, one, two in rows]
    lines += [
        f"{'treated otherwise when sent as EBNF text':52} {mine.text_differs:>49}",
        f"{'right rejected by the judge':52} {percent(judged.right_rejected, judged.right):>49}",
        f"{'wrong accepted by the judge':52} {percent(judged.wrong_accepted, judged.wrong):>49}",
        f"{'wrong after parsing':52} {percent(judged.wrong_after_parsing, judged.right + judged.wrong):>49}",
        f"{'without a spelling in GLM text (not counted)':52} {judged.no_spelling:>49}",
        f"{'a mismatch only for the counter (dialects)':52} {percent(judged.counted_otherwise, judged.right):>49}",
        f"refused at the door: {len(result.refused)}; rarest construct in {min(result.constructs.values())} tools",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    command = f"python -m benchmarks.toolcalls.scale --count {options.count} --seed {options.seed}"
    about = environment(command)
    grammars = Grammars(options.tokenizer)
    rows = refusals(options.count // 10, options.seed, grammars)
    for line in totals(rows).items():
        print(*line)
    result = measured(generate(options.count, options.seed, EVERY), grammars)
    assert set(result.constructs) == set(EVERY), "a construct is missing from the set"
    print(table(result))
    for name, side in (("as it is", result.plain), ("normalised", result.normalised)):
        print(f"{name}: rejects right, by construct: {side.rejected_by.most_common(8)}")
        print(f"{name}: accepts wrong, by construct: {side.accepted_by.most_common(12)}")
    if options.out is not None:
        write(options.out, about, {"count": options.count, "seed": options.seed, **as_plain(result), "refusals": rows})
    failed = any(not (row["refused"] and row["named"]) for row in rows)
    sys.exit(1 if failed or result.judged.wrong_accepted or result.normalised.unreported_failures else 0)


if __name__ == "__main__":
    main()
