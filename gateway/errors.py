"""Every error a client can see, with its HTTP status.

    ApiError
      InvalidRequest          400  invalid_request_error   the request itself is wrong; retrying it changes nothing
      Unauthenticated         401  authentication_error    no key, or one we do not know
      PermissionDenied        403  permission_error        the key may not do this
      NotFound                404  not_found_error         unknown model or route
      MethodNotAllowed        405  invalid_request_error
      Conflict                409  invalid_request_error   what was asked for does not go with how things stand
      PayloadTooLarge         413  invalid_request_error
      Overloaded              429  rate_limit_error        no room now; carries Retry-After
      HeadersTooLarge         431  invalid_request_error
      Internal                500  server_error            a bug of ours
      UpstreamFailed          502  server_error            a deployment answered wrongly, or not at all
      Unavailable             503  server_error            every deployment of the model is unavailable
      UpstreamTimeout         504  server_error            no first event in time

The body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`, all four present, `code` a string or null.
FastAPI's own 404, 405 and 422 take the same shape (see `app.py`); 422 becomes 400, as OpenAI answers.
"""

import math
from typing import Any, ClassVar


class ApiError(Exception):
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.more_headers: dict[str, str] = {}
        """What else the answer carries: the key's limits."""

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds (at least 1) and the SDK's `x-should-retry`, where they were given."""
        headers = dict(self.more_headers)
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class Unauthenticated(ApiError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDenied(ApiError):
    status = 403
    type = "permission_error"
    default_code = "permission_denied"


class NotFound(ApiError):
    status = 404
    type = "not_found_error"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class Conflict(ApiError):
    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class PayloadTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    default_code = "payload_too_large"


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"
    default_code = "overloaded"


class HeadersTooLarge(ApiError):
    status = 431
    type = "invalid_request_error"
    default_code = "headers_too_large"


class Internal(ApiError):
    default_code = "internal_error"


class UpstreamFailed(ApiError):
    status = 502
    default_code = "upstream_failed"


class Unavailable(ApiError):
    status = 503
    default_code = "unavailable"


class UpstreamTimeout(ApiError):
    status = 504
    default_code = "upstream_timeout"
