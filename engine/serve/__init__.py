"""The OpenAI-compatible server: HTTP on one event loop, the engine on a thread of its own."""
