"""Chat templates: the same text as transformers, refusal of hostile ones, system turns, BOS."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from models.chat_template import ChatTemplate, fold_system
from models.errors import TemplateError
from models.tokenizer import Tokenizer
from tests.tiny_vocab import CONTROL, byte_level

CHATML = """{%- for message in messages %}
{%- if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MISTRAL = """{{ bos_token }}
{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ '[INST] ' ~ message['content'] | trim ~ ' [/INST]' }}
    {% else %}
        {{ message['content'] | trim + eos_token }}
    {% endif %}
{% endfor %}"""
LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
{% set content = head + message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
OLMOE = (
    "{{ bos_token }}{% for message in messages %}\n{% if message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] }}\n"
    "{% elif message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
    "{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
ERNIE = """{%- if not add_generation_prompt is defined -%}
    {%- set add_generation_prompt = true -%}
{%- endif -%}
{%- if not cls_token is defined -%}
    {%- set cls_token = "<|begin_of_sentence|>" -%}
{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
    {%- if message["role"] == "user" -%}
        {{- "User: " + message["content"] + "\n" -}}
    {%- elif message["role"] == "assistant" -%}
        {{- "Assistant: " + message["content"] + "<|end_of_sentence|>" -}}
    {%- else -%}
        {{- message["content"] + "\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "Assistant: " -}}
{%- endif -%}"""
NAMESPACED = """{%- set ns = namespace(system='', n=0) %}
{%- macro show(m) -%}[{{ m.role|upper }}: {{ m.content }}]{%- endmacro %}
{%- for m in messages if m.role != 'tool' %}
{% set ns.n = ns.n + 1 %}{{ show(m) }}{{ ', ' if not loop.last }}
{% endfor %}
{%- if tools is none %} no tools{% endif %} {{ ns.n }}/{{ messages|length }} {{ messages[::-1][0].content[:3] }}
{{ {'z': 1, 'a': ["<é>", none, true]} | tojson }} {{ {'b': 2}|tojson(indent=2) }}
{% generation %}g{{ 1 }}{% endgeneration %}
{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ loop.index }}{% endfor %}
{%- for k, v in {'x': 1}.items() %}{{ '%s=%d' % (k, v) }}{{ "{}".format(k) }}{% endfor %}"""
TALK = [
    {"role": "user", "content": " Hi <b> \n"},
    {"role": "assistant", "content": "héllo"},
    {"role": "user", "content": "3 * 4 = ?\n"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, messages: Any = None, **options: Any) -> str:
    return ChatTemplate(source, TOKENS).render(messages or TALK, **options)


def tokenizer(**keys: Any) -> Tokenizer:
    extra = {"<s>": CONTROL, "</s>": CONTROL, "[gMask]": CONTROL, "<sop>": CONTROL}
    return Tokenizer.from_metadata(byte_level("gpt-2", (), extra, eos_token_id=257, **keys))


@pytest.fixture(scope="module")
def hf_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"<s>": 0, "</s>": 1}, merges=[]))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("with_system", [True, False])
@pytest.mark.parametrize("source", [CHATML, MISTRAL, LLAMA3, OLMOE, ERNIE, NAMESPACED])
def test_renders_what_transformers_renders(
    hf_tokenizer: Any, source: str, with_system: bool, add_generation_prompt: bool
) -> None:
    system = [{"role": "system", "content": "Be brief."}] if with_system and source is not MISTRAL else []
    expected = hf_tokenizer.apply_chat_template(
        system + TALK, chat_template=source, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert render(source, system + TALK, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),
        ('{{ {"a":"<é>"}|tojson }}', '{"a": "<é>"}'),
        ("{% for i in [1,2,3] %}{% if i==2 %}{% break %}{% endif %}{{i}}{% endfor %}", "1"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ messages|length }}{{ unknown_variable }}", "3"),
        ("{% for x in unknown_variable %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for g in [[1, [2, 0]]] recursive %}{{loop.length}}{{ g.0 }}{{ loop([g.1]) if g.1 }}{% endfor %}", "1112"),
    ],
)
def test_environment(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_time_has_all_its_fields() -> None:
    before = datetime.now().replace(second=0, microsecond=0)
    shown = datetime.strptime(render('{{ strftime_now("%d %m %Y %H:%M") }}'), "%d %m %Y %H:%M")
    assert before <= shown <= datetime.now()


def test_the_templates_own_exception_is_one_line() -> None:
    with pytest.raises(TemplateError, match=r"^the chat template failed: a b$"):
        render("{{ raise_exception('a\n b') }}")


@pytest.mark.parametrize("source", ["{% if %}", "{% for x in y %}", "{{ 'a }}", "{% unknown %}", "{{ x|nofilter }}"])
def test_a_template_that_does_not_parse_is_named_with_its_line(source: str) -> None:
    with pytest.raises(TemplateError, match="a fault in line 2"):
        ChatTemplate("\n" + source, {})


# What the template does, by the reason it is refused for: a bound that fails must not be covered up by another one.
REFUSED = {
    "unsafe": [
        '{{ lipsum.__globals__["os"].popen("touch pwned").read() }}',
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
    ],
    "makes texts or lists of more than": [
        "{{ 'a'*10**10 }}",
        "{{ 'a'*10**7 }}",
        "{{ 10**7*['a'] }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%9999999999d'|format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ ('{0:>99999}'*40000).format(1) }}",
        "{% set x='a'*10**6 %}{{ x.replace('a', x) }}",
        "{% set x='a'*10**6 %}{{ x|replace('a', x) }}",
        "{% set x='a'*10**6 %}{{ x.join(x) }}",
        "{% set x='a'*10**6 %}{{ x|join(x) }}",
        "{% set ns=namespace(x='a') %}{% for i in range(30) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns=namespace(x='a') %}{% for i in range(30) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns=namespace(x='a') %}{% for i in range(30) %}{% set ns.x %}{{ns.x}}{{ns.x}}{% endset %}{% endfor %}",
        "{% set ns=namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = ns.l + ['a'*4000000] %}{% endfor %}",
        "{% set x='a'*10**6 %}{% for i in range(9) %}{{ x }}{% endfor %}",
    ],
    "is given to a function": [
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a'|center(10**10) }}",
        "{{ [1]|batch(10**9, 'x')|list }}",
        "{{ lipsum(10**9) }}",
    ],
    "a format computes": ["{{ '%*d' % (10**10, 1) }}", "{{ '{:{w}}'.format(1, w='9999999999') }}"],
    "a power": ["{{ 9**99999 }}"],
    "an indent of": ["{{ [[1]]|tojson(indent=10**9) }}"],
    "steps": [
        "{% set r=range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
    ],
}


@pytest.mark.parametrize(("reason", "source"), [(why, text) for why, texts in REFUSED.items() for text in texts])
def test_a_hostile_template_is_refused(
    reason: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(TemplateError, match=rf"^the chat template was refused: [^\n]*{reason}[^\n]*$"):
        render(source, messages)
    assert messages == [{"role": "user", "content": "hi"}]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    ["{% for i in range(10**9) %}{% endfor %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% include 'x' %}"],
)
def test_other_faults_are_one_line_too(source: str) -> None:
    with pytest.raises(TemplateError, match=r"the chat template failed: [^\n]+$"):
        render(source)


def test_str_format_through_attr_leaks_nothing() -> None:
    assert "class" not in render('{{ ("{0.__class__}")|attr("format")(1) }}')


def test_a_slow_template_is_stopped_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(TemplateError, match="refused"):
        render("{% for i in range(30) %}{% endfor %}")


def test_long_messages_are_not_refused() -> None:
    content = "word " * 2_000_000
    assert len(render(CHATML, [{"role": "user", "content": content}])) > len(content)


# Which template
def test_the_default_of_several_templates_is_taken() -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    for metadata in (
        {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"},
        {"tokenizer.chat_template.default": "D", "tokenizer.chat_template.tool_use": "T"},
        {"tokenizer.chat_template": named},
    ):
        assert ChatTemplate.from_metadata(metadata, tokenizer()).render(TALK) == "D"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [({}, "no chat template"), ({"tokenizer.chat_template.tool_use": "T"}, "only the templates tool_use")],
)
def test_no_template_is_invented(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message + ".*--template"):
        ChatTemplate.from_metadata(metadata, tokenizer())
    assert ChatTemplate.from_metadata(metadata, tokenizer(), override="mine").render(TALK) == "mine"


# Begin-of-text
@pytest.mark.parametrize("source", ["{{ bos_token }}x", "x", "<s>x"])
def test_exactly_one_bos(source: str) -> None:
    tok = tokenizer(bos_token_id=256, add_bos_token=True)
    assert ChatTemplate.from_metadata({}, tok, source).encode(tok, TALK) == [256, ord("x")]


def test_without_add_bos_the_ids_are_the_templates_alone() -> None:
    tok = tokenizer(bos_token_id=258, add_bos_token=False)
    assert ChatTemplate.from_metadata({}, tok, "[gMask]<sop>x").encode(tok, TALK) == [258, 259, ord("x")]
    assert ChatTemplate.from_metadata({}, tok, "x").encode(tok, TALK) == [ord("x")]


# Roles
STRICT = (
    "{% if messages[0].role=='system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "{% if (m.role=='user')!=(loop.index0%2==0) %}{{ raise_exception('alternate') }}{% endif %}"
    "[{{m.role}}]{{m.content}}{% endfor %}"
)
DEAF = "{% for m in messages if m.role != 'system' %}[{{m.role}}]{{m.content}}{% endfor %}"
WITH_SYSTEM = [{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}]


@pytest.mark.parametrize("source", [STRICT, DEAF])
def test_a_system_text_that_the_template_does_not_take_is_folded(source: str) -> None:
    template = ChatTemplate(source, {})
    messages, warning = template.prepare(WITH_SYSTEM)
    assert template.render(messages) == "[user]S\n\nhello"
    assert warning is not None
    assert "system" in warning
    assert WITH_SYSTEM[1]["content"] == "hello"


def test_a_template_that_takes_a_system_text_gets_it() -> None:
    assert ChatTemplate(CHATML, {}).prepare(WITH_SYSTEM) == (WITH_SYSTEM, None)
    assert ChatTemplate(STRICT, {}).prepare(WITH_SYSTEM[1:]) == (WITH_SYSTEM[1:], None)


def test_a_template_that_fails_anyway_is_not_blamed_on_the_system_text() -> None:
    assert ChatTemplate("{{ raise_exception('always') }}", {}).prepare(WITH_SYSTEM) == (WITH_SYSTEM, None)


def test_folding_without_a_user_turn_makes_one() -> None:
    assert fold_system(WITH_SYSTEM[:1]) == [{"role": "user", "content": "S"}]
    assert fold_system(WITH_SYSTEM[1:]) == WITH_SYSTEM[1:]


def test_roles_that_do_not_alternate_raise_the_templates_message() -> None:
    with pytest.raises(TemplateError, match="alternate"):
        ChatTemplate(STRICT, {}).render([*WITH_SYSTEM[1:], *WITH_SYSTEM[1:]])
