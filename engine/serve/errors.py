"""What a client did wrong, in the shape OpenAI's clients read."""

from __future__ import annotations

from typing import Any

__all__ = ["ApiError", "bad_request", "error_body"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """Becomes an HTTP status with `{"error": {"message", "type", "param", "code"}}`.

    Args:
        param: the field of the request that is wrong.
        code: a short machine-readable word; the status where there is none.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        super().__init__(message)


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, param=param)


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error."""
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.status, "server_error"),
            "param": error.param,
            "code": error.code or error.status,
        }
    }
