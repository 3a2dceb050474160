"""What is said where a name is unknown."""

from __future__ import annotations

from harness.core.suggest import near_names


def test_near_names_come_first_and_a_menu_is_listed_whole() -> None:
    assert near_names("tinny", ["tiny", "port"]) == "; did you mean tiny?"
    assert near_names("zzz", ["tiny", "port"]) == "; known: port, tiny"


def test_a_long_list_is_cut_and_counted() -> None:
    known = [f"layers.{layer:03}.weight" for layer in range(990)]
    said = near_names("#", known)
    assert said.startswith("; known: layers.000.weight, ")
    assert said.endswith("layers.004.weight and 985 more")
