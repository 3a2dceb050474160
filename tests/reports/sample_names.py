"""Names that a document must escape."""

from __future__ import annotations

MARKUP = '<script>alert("x")</script> | `b` & *c*'
