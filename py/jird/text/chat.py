"""Messages to prompt ids: the checkpoint's own Jinja template, and literals of special tokens kept plain text."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable
from functools import lru_cache

from ..errors import BadRequest, ModelNotSupported, shown
from .tokenizer import Tokenizer, TokenizerSpec, without_surrogates

ROLES = ("system", "developer", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def render(
    spec: TokenizerSpec,
    messages: list[dict],
    *,
    add_generation_prompt: bool = True,
    clock: Callable[[], datetime.datetime] = datetime.datetime.now,
    **variables,
) -> str:
    """The prompt text of a conversation. messages: [{role, content}], content a string or a list of typed parts.
    clock: gives the time for templates that print the date. variables: tools, documents, enable_thinking, ...

    Raises: BadRequest for messages that are malformed, that the template refuses, or without a template;
    ModelNotSupported when the template itself is not valid.
    """
    return _render(spec, checked(messages), add_generation_prompt, clock, variables)


def encode_chat(
    tokenizer: Tokenizer,
    spec: TokenizerSpec,
    messages: list[dict],
    *,
    add_generation_prompt: bool = True,
    clock: Callable[[], datetime.datetime] = datetime.datetime.now,
    **variables,
) -> list[int]:
    """Prompt ids of a conversation. What people and tools wrote never becomes a special token; the template's own
    special tokens do. bos is put first where the checkpoint wants it and the template has not written it.

    Raises: as render.
    """
    messages = checked(messages)
    literals = _literals(spec)
    given = json.dumps([messages, variables, spec.config.get("chat_templates")], ensure_ascii=False, default=str)
    mark = _unused_mark(given)
    marked = _marked([messages, variables], literals, mark) if literals else None
    if marked is None or marked == [messages, variables]:
        text = _render(spec, messages, add_generation_prompt, clock, variables)
        ids = tokenizer.encode(text, special=True)
    else:
        text = _render(spec, marked[0], add_generation_prompt, clock, marked[1])
        ids = _encode_pieces(tokenizer, spec, text, literals, mark)
    return _with_prefix(spec, ids)


def encode_prompt(tokenizer: Tokenizer, spec: TokenizerSpec, text: str, *, special: bool = True) -> list[int]:
    """Ids of a raw prompt, bos first where the checkpoint wants it. special: literals become special tokens."""
    return _with_prefix(spec, tokenizer.encode(text, special=special))


def checked(messages: list[dict]) -> list[dict]:
    """Messages in the form templates expect: known roles, text parts joined to one string.

    Raises: BadRequest naming the message and what is wrong with it.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise BadRequest(f"messages must be a list with at least one message, got {shown(messages)}")
    return [_checked(message, f"message {index}") for index, message in enumerate(messages)]


def _checked(message: dict, name: str) -> dict:
    if not isinstance(message, dict):
        raise BadRequest(f"{name} must be an object with role and content, got {shown(message)}")
    if not all(isinstance(key, str) for key in message):
        raise BadRequest(f"{name} must have names as keys, got {shown(list(message))}")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadRequest(f"{name} has role {shown(role)}; allowed: {', '.join(ROLES)}")
    if isinstance(content, (list, tuple)):
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise BadRequest(f"{name}: each content part must be an object with a type, got {shown(part)}")
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                raise BadRequest(f"{name}: a text part must have text, got {shown(part)}")
        if all(part["type"] == "text" for part in content):
            content = "".join(part["text"] for part in content)
        else:
            content = list(content)
    elif content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    elif not isinstance(content, str):
        raise BadRequest(f"{name} must have text or a list of parts as content, got {shown(content)}")
    return _without_surrogates({**message, "content": content})


def _render(spec: TokenizerSpec, messages: list[dict], add_generation_prompt: bool, clock, variables: dict) -> str:
    special = {name: spec.config[name] for name in _SPECIAL_NAMES if spec.config.get(name) is not None}
    context = {**special, "messages": messages, "add_generation_prompt": add_generation_prompt, **variables}
    template = _template(spec, bool(variables.get("tools")))
    if sys.platform == "emscripten":
        from . import hf_js

        return hf_js.render(template, context, clock)
    return _render_jinja2(template, context, clock)


def _template(spec: TokenizerSpec, has_tools: bool) -> str:
    templates = spec.config.get("chat_templates") or {}
    template = (has_tools and templates.get("tool_use")) or spec.config.get("chat_template")
    if template:
        return template
    if "<|im_start|>" in spec.vocabulary.ids and "<|im_end|>" in spec.vocabulary.ids:
        return CHATML
    raise BadRequest(
        "this model has no chat template", "It is not a chat model: complete a raw prompt, or choose a chat model."
    )


def _render_jinja2(template: str, context: dict, clock) -> str:
    import jinja2

    try:
        compiled = _compiled(template)
    except jinja2.TemplateSyntaxError as error:
        raise ModelNotSupported(f"the chat template is not understood: {error}") from error
    try:
        return compiled.render(strftime_now=lambda pattern: clock().strftime(pattern), **context)
    except Exception as error:  # a template can raise whatever its expressions raise
        raise BadRequest(f"the chat template refuses the messages: {error}") from error


@lru_cache(maxsize=4)
def _compiled(template: str):
    """Mirrors the environment in which transformers renders chat templates."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)


def _literals(spec: TokenizerSpec) -> re.Pattern | None:
    """Matches any special token's literal, the longest first; one character cannot be broken by a mark."""
    contents = [literal for literal in spec.vocabulary.special_literals if len(literal) > 1]
    return re.compile("|".join(map(re.escape, contents))) if contents else None


def _encode_pieces(tokenizer: Tokenizer, spec: TokenizerSpec, text: str, literals: re.Pattern, mark: str) -> list[int]:
    """Ids of a rendered text in which marks break the literals that are not the template's own."""
    ids: list[int] = []
    at = 0
    for match in [*literals.finditer(text), None]:
        piece = text[at : match.start() if match else len(text)].replace(mark, "")
        if piece:
            ids.extend(tokenizer.encode(piece, special=False, continues=at > 0))
        if match:
            ids.append(spec.vocabulary.ids[match[0]])
            at = match.end()
    return ids


def _marked(value, literals: re.Pattern, mark: str):
    """The value with a mark after the first character of each special literal in its strings."""
    if isinstance(value, str):
        while literals.search(value):
            value = literals.sub(lambda match: match[0][0] + mark + match[0][1:], value)
        return value
    if isinstance(value, dict):
        return {key: _marked(item, literals, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, literals, mark) for item in value]
    return value


def _unused_mark(text: str) -> str:
    """A private-use character that the text does not contain."""
    for area in (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)):
        for code in area:
            if chr(code) not in text:
                return chr(code)
    raise BadRequest("the messages hold every private-use character there is; at least one must be left out")


def _without_surrogates(value):
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]
    return value


def _with_prefix(spec: TokenizerSpec, ids: list[int]) -> list[int]:
    prefix = list(spec.prefix_ids)
    return ids if ids[: len(prefix)] == prefix else prefix + ids
