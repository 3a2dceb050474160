"""lm-eval's local-completions, unmodified: log-likelihoods and the score equal the formula's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.serve.app import ServeOptions
from tests.clients.conftest import Client
from tests.engine.serve.running import running
from tests.fakes.formula_engine import formula_engine, formula_logprobs

TASK = """
task: formula_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
"""
DOCUMENTS = [
    {"context": f"The tile number {number} goes", "choices": ["to memory", "to the bank"]}
    | {"answer": number % 2}
    for number in range(10)
]


def expected_logprob(tokenizer: Tokenizer, context: str, continuation: str) -> float:
    whole = tokenizer.encode(context + continuation, add_special_tokens=False).ids
    num_context = len(tokenizer.encode(context, add_special_tokens=False).ids)
    return sum(formula_logprobs(whole)[num_context - 1 :])


@pytest.mark.clients
def test_log_likelihoods_equal_the_models_own(client: Client, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    (tmp_path / "formula_choice.yaml").write_text(TASK.format(data=data))
    with running(formula_engine(model), ServeOptions(model_names=("formula",))) as server:
        model_args = (
            f"model=formula,base_url={server.url}/v1/completions,tokenizer_backend=remote,"
            "num_concurrent=1,max_length=127"
        )
        client(
            "lm-eval",
            "lm_eval",
            *("--model", "local-completions", "--model_args", model_args),
            *("--tasks", "formula_choice", "--include_path", tmp_path, "--batch_size", 4),
            *("--log_samples", "--output_path", tmp_path / "out"),
        )
    (samples_file,) = (tmp_path / "out").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in samples_file.read_text().splitlines()]
    assert len(samples) == len(DOCUMENTS)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    num_right = 0
    for sample in samples:
        document: dict[str, Any] = sample["doc"]
        expected = [
            expected_logprob(tokenizer, document["context"], f" {choice}")
            for choice in document["choices"]
        ]
        found = [float(response[0]) for response in sample["filtered_resps"]]
        assert found == pytest.approx(expected, abs=1e-5)
        num_right += expected.index(max(expected)) == document["answer"]
    (results_file,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(results_file.read_text())["results"]["formula_choice"]
    assert results["acc,none"] == pytest.approx(num_right / len(DOCUMENTS))
