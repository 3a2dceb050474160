"""The openai SDK against the server, unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.engine.serve.running import RunningServer

PROMPT = [7, 8, 9, 10]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_it_lists_the_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["formula"]


def test_it_completes_ids_and_text(client: openai.OpenAI) -> None:
    by_ids = client.completions.create(model="formula", prompt=PROMPT, max_tokens=5)
    assert by_ids.usage is not None
    assert (by_ids.usage.prompt_tokens, by_ids.usage.completion_tokens) == (4, 5)
    assert by_ids.choices[0].finish_reason == "length"
    by_text = client.completions.create(
        model="formula", prompt=["Hello", "there"], max_tokens=3, logprobs=2
    )
    assert [choice.index for choice in by_text.choices] == [0, 1]
    assert all(len(choice.logprobs.tokens) == 3 for choice in by_text.choices)


def test_it_reads_a_stream_and_its_usage(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model="formula", prompt=PROMPT, max_tokens=9, extra_body={"ignore_eos": True}
    )
    chunks = list(
        client.completions.create(
            model="formula",
            prompt=PROMPT,
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert len(texts) == 9
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


def test_it_chats_with_and_without_a_stream(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    asked = {
        "model": "formula",
        "messages": messages,
        "max_completion_tokens": 6,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_errors_become_its_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="formula", prompt="x", max_tokens=-1)
    assert bad.value.param == "max_tokens"
