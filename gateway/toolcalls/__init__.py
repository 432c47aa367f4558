"""Tool calls in the gateway: tools read and enforced on the way in, calls parsed and judged on the way out.

    desk     what a process holds: a grammar compiler for each tokenizer; `prepare` turns a request into a `Served`
    reading  tools read between the event loop's turns
    forward  what of a request leaves for the frontend: pure
    served   one request's answers: the editor of its stream, or the edit of its whole answer
    editor   `StreamEditor` that also parses and judges: pure
    passing  Responses and Messages that the frontend parsed: they pass and are judged
    books    verdicts, counted: once a call, once an answer

The rules are `prime_inference.toolcalls`; docs/toolcalls.md says which configuration of the workers belongs to it.
"""
