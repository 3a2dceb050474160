"""An asynchronous client of OpenAI-compatible servers that stamps chunks at the socket read."""
