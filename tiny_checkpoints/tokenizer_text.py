"""The text the tiny tokenizer's merges are counted on; written for this purpose."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = """
The harness compares two ways of computing one thing and says which of them it trusts. A kernel
reads tokens from memory, multiplies rows by columns, rounds the result and writes it back. The
reference does the same work slowly and in the open, so that anybody can check each step with a
pencil. When both agree within the written budget the case passes; when they differ the report
names the first bad element, both values and the slice that holds it. Nothing is green without
evidence.

Attention looks back over a short window of recent positions and over a few selected entries
further away. An indexer scores every older entry, keeps the best blocks as candidates, and later
layers choose among them. Experts are small networks; a router sends each token to several of them
and adds what they answer, weighted by how well the router likes them. A shared expert sees all
tokens. Tables of hashed phrases give each layer a hint about common word groups before it thinks
on its own.

A model is split over many ranks. Each rank owns some heads and some experts, computes its part
and joins the others in a sum. If the parts are right and the sum is in a fixed order, the tokens
of two ranks, four ranks or sixty four ranks must equal those of a single one. A sweep measures
how long the first token takes and how long each further token takes, for short prompts and long
prompts, with warm caches and with nothing else running. Numbers carry their unit; an average
hides its samples from no one.

Please describe the weather in London, then write a short poem about rivers, mountains, winter
light and the sea. What is the capital of France? Which planet is the largest? How many legs does
a spider have? Translate this sentence into German, Spanish and Japanese. Explain why leaves turn
red in autumn. Add seventeen and twenty five, divide by three, and show your reasoning line by
line. Once upon a time there lived a clever engineer who measured everything twice before she
believed it. Her machine was quiet, her notebook full, and her tests never lied. Every morning she
asked the same question: what would prove me wrong today? Good software answers that question by
itself, quickly, and in plain language.

def main(values): return sum(value for value in values if value > 0)
for index in range(10): print(index, "hello world")
import numpy as np; class Engine: pass; assert result == expected, "mismatch"
0 1 2 3 4 5 6 7 8 9 10 12 16 24 32 48 64 96 100 128 256 512 1024 2048 4096 8192 2024 2025 2026
"""
