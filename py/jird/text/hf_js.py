"""The browser's tokenizer and template engines: npm @huggingface/tokenizers 0.2.0 and @huggingface/jinja.

worker.js puts the two modules on globalThis as jirdTokenizers and jirdJinja before Python starts. `for_js` rewrites
what 0.2.0 reads differently from the Rust library; it is plain data and runs in CPython too, where the tests give
its result to the same modules under node.
"""

from __future__ import annotations

import json
from functools import lru_cache

from ..errors import BadRequest, ModelNotSupported
from .tokenizer import GPT2_PATTERN, SpecTokenizer, TokenizerSpec, without_first_prefix, without_surrogates


def for_js(tokenizer_json: dict) -> dict:
    """tokenizer.json as 0.2.0 must see it to give the Rust library's ids.

    Its ByteLevel, Digits and Whitespace use JavaScript's \\s, \\d, \\w; Metaspace ignores `split`; Split knows only
    the behaviours Isolated and Removed; (?i:...) misses the long s. All become Split with an equivalent pattern.
    Post-processor and decoder are dropped: bos, eos and decoding are done here, in Python.
    """
    pre = tokenizer_json.get("pre_tokenizer")
    steps = [] if pre is None else [step for part in _parts(pre) for step in _pre_tokenizer_for_js(part)]
    return {
        **tokenizer_json,
        "normalizer": tokenizer_json.get("normalizer"),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if steps else None,
        "post_processor": None,
        "decoder": None,
        "added_tokens": tokenizer_json.get("added_tokens") or [],
    }


def _parts(pre: dict) -> list[dict]:
    return [step for part in pre["pretokenizers"] for step in _parts(part)] if pre["type"] == "Sequence" else [pre]


def _pre_tokenizer_for_js(step: dict) -> list[dict]:
    kind = step["type"]
    if kind == "ByteLevel":
        bare = {**step, "use_regex": False}
        if not step.get("use_regex", True):
            return [bare]
        return [_isolated(GPT2_PATTERN), bare] if not step.get("add_prefix_space") else [step]
    if kind == "Digits":
        return [_isolated(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")]
    if kind == "Metaspace" and step.get("split", True):
        mark = step.get("replacement", "\u2581")
        return [step, _isolated(f"{mark}[^{mark}]*|[^{mark}]+")]
    if kind == "Whitespace":
        return [{**_isolated(r"\w+|[^\w\s]+"), "behavior": "Removed", "invert": True}]
    if kind == "WhitespaceSplit":
        return [{**_isolated(r"\S+"), "behavior": "Removed", "invert": True}]
    if kind == "Split":
        return [_split_for_js(step)]
    return [step]


def _split_for_js(step: dict) -> dict:
    pattern = step["pattern"]
    regex = pattern["Regex"] if "Regex" in pattern else _escaped(pattern["String"])
    regex = regex.replace("(?i:'s|", "(?i:'s|'\u017f|").replace("(?i:[sdmt]", "(?i:[s\u017fdmt]")
    behavior = step["behavior"].lower()
    other = f"(?:(?!{regex})[\\s\\S])"
    if behavior == "removed":
        return {**step, "pattern": {"Regex": regex}}
    if behavior == "mergedwithprevious":
        return _isolated(f"{other}*(?:{regex})|{other}+")
    if behavior == "mergedwithnext":
        return _isolated(f"(?:{regex}){other}*|{other}+")
    if behavior == "contiguous":
        return _isolated(f"(?:{regex})+|{other}+")
    return _isolated(regex)


def _isolated(regex: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _escaped(text: str) -> str:
    return "".join("\\" + char if char in r"\^$.|?*+()[]{}-/" else char for char in text)


class JsTokenizer(SpecTokenizer):
    """npm @huggingface/tokenizers through Pyodide's FFI; instances without special tokens share one model.

    Raises: ModelNotSupported when the library refuses the spec.
    """

    def __init__(self, spec: TokenizerSpec):
        from pyodide.ffi import JsException

        super().__init__(spec.light())
        try:
            self._special = _new(for_js(spec.tokenizer_json))
            self._engines = {(True, False): self._special}
        except JsException as error:
            raise ModelNotSupported(f"tokenizer.json is not understood: {error.message}") from error
        if spec.tokenizer_json["model"].get("type") == "BPE":
            # The instance keeps its source, half of the tables' size, and reads none of it again.
            self._special.tokenizer = self._special.model.config = self._special.model.merges = None

    def encode(self, text: str, *, special: bool, continues: bool = False) -> list[int]:
        engine = self._engines.get((special, continues)) or self._engine(special, continues)
        return json.loads(_stringify(engine.encode(without_surrogates(text)).ids))

    def _engine(self, special: bool, continues: bool):
        """An instance with other added tokens or prefix rule over the same model (tables of some 10 MB)."""
        inner = self.spec.tokenizer_json
        if continues:
            inner = without_first_prefix(inner) or inner
        added = inner.get("added_tokens") or []
        kept = added if special else [entry for entry in added if not entry.get("special")]
        empty = {"type": "BPE", "vocab": {"": 0}, "merges": []}
        engine = _new(for_js({**inner, "added_tokens": kept, "model": empty}))
        engine.model = self._special.model
        self._engines[special, continues] = engine
        return engine


# String methods that @huggingface/jinja lacks, or runs without their arguments or with JavaScript's idea of a space.
_STRING_METHODS = ("strip", "lstrip", "rstrip", "rsplit", "splitlines", "removeprefix", "removesuffix")


def render(template: str, variables: dict, clock) -> str:
    """A chat template rendered by npm @huggingface/jinja; `clock()` gives the datetime of strftime_now.

    Known to differ from jinja2: a bare boolean, None, list or object in {{ }} prints as JSON, and an attribute of
    something undefined is undefined rather than an error.

    Raises: ModelNotSupported for a template that does not parse, BadRequest for one that refuses the messages.
    """
    from pyodide.ffi import create_proxy, to_js

    compiled = _compiled(template)
    functions = {f"jird_{name}": _string_method(name, to_js) for name in _STRING_METHODS}
    functions["jird_strftime"] = lambda pattern: clock().strftime(pattern)
    proxies = {name: create_proxy(function) for name, function in functions.items()}
    items = _js_tree(variables)
    try:
        for name, proxy in proxies.items():
            setattr(items, name, proxy)
        return compiled.render(items)
    except Exception as error:  # a JsException, or what a string method here raised
        raise BadRequest(f"the chat template refuses the messages: {getattr(error, 'message', error)}") from error
    finally:
        for proxy in proxies.values():
            proxy.destroy()


@lru_cache(maxsize=4)
def _compiled(template: str):
    import js
    from pyodide.ffi import JsException

    if "strftime_now" in template:  # the library's own names months in the browser's language; a global can only be set
        template = "{% set strftime_now = jird_strftime %}\n" + template
    try:
        compiled = js.jirdJinja.Template.new(template)
    except JsException as error:
        raise ModelNotSupported(f"the chat template is not understood: {error.message}") from error
    if "trim" in template or any(f".{name}" in template for name in _STRING_METHODS):
        _call_ours(compiled.parsed)
    return compiled


def _string_method(name: str, to_js):
    def method(text, *arguments):
        result = getattr(str, name)(text, *arguments)
        return to_js(result) if isinstance(result, list) else result

    return method


def _call_ours(node) -> None:
    """Turns `text.rstrip(x)` and `text|trim` of a parsed template into calls of our functions, in place."""
    import js
    from pyodide.ffi import JsProxy

    kind = getattr(node, "type", None)
    if kind == "CallExpression" and node.callee.type == "MemberExpression" and node.callee.property.type == "Identifier":
        name = node.callee.property.value
        if name in _STRING_METHODS:
            node.args.unshift(node.callee.object)
            node.callee = _js_tree({"type": "Identifier", "value": f"jird_{name}"})
    elif kind == "FilterExpression" and node.filter.type == "Identifier" and node.filter.value == "trim":
        arguments = js.Array.new()
        arguments.push(node.operand)
        node.type, node.args = "CallExpression", arguments
        node.callee = _js_tree({"type": "Identifier", "value": "jird_strip"})
        node.operand = None
    for child in js.Object.values(node):
        if isinstance(child, JsProxy):
            _call_ours(child)


def _new(tokenizer_json: dict):
    import js

    return js.jirdTokenizers.Tokenizer.new(_js_tree(tokenizer_json), _js_tree({}))


def _js_tree(value):
    """A big tree crosses fastest as JSON text, and text fastest as ASCII (152k tokens: 0.3 s, with other characters 1.0 s)."""
    import js

    return js.JSON.parse(json.dumps(value, separators=(",", ":")))


def _stringify(value) -> str:
    import js

    return js.JSON.stringify(value)
