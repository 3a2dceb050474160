"""Who holds which KV pages and sequence slots."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PagePool"]


class PagePool:
    """Free lists of pages and slots; the lowest numbers go first.

    Page 0 is scratch for padding and never handed out.
    """

    def __init__(self, num_pages: int, num_slots: int) -> None:
        self.num_pages = num_pages
        self._free_pages = list(range(num_pages - 1, 0, -1))
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def num_free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free_pages)

    @property
    def num_free_slots(self) -> int:
        """Slots nobody holds."""
        return len(self._free_slots)

    def fits(self, num_pages: int) -> bool:
        """Whether a sequence of so many pages can start now."""
        return bool(self._free_slots) and num_pages <= len(self._free_pages)

    def take(self, num_pages: int) -> tuple[int, tuple[int, ...]]:
        """A slot and pages; `fits` must hold."""
        pages = self.grow(num_pages)
        return self._free_slots.pop(), pages

    def grow(self, num_pages: int) -> tuple[int, ...]:
        """More pages for a sequence that has a slot; so many must be free."""
        return tuple(self._free_pages.pop() for _ in range(num_pages))

    def give_back(self, slot: int, pages: Iterable[int]) -> None:
        """Return what `take` gave."""
        self._free_slots.append(slot)
        self._free_slots.sort(reverse=True)
        self._free_pages.extend(pages)
        self._free_pages.sort(reverse=True)
