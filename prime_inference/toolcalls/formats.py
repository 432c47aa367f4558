"""The string formats that a Draft 7 validator asserts, after the RFCs they name. A format not listed here asserts
nothing."""

import re
from collections.abc import Callable
from datetime import date
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from prime_inference.toolcalls.regexes import UnreadablePattern, to_python

_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_TIME = re.compile(r"(\d{2}):(\d{2}):(\d{2})(?:\.\d+)?(z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII | re.IGNORECASE)
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)
_MAILBOX = re.compile(r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*", re.ASCII | re.IGNORECASE)
_UUID = re.compile(r"(?:urn:uuid:)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_POINTER = re.compile(r"(?:/(?:[^~/]|~0|~1)*)*")
_RELATIVE_POINTER = re.compile(r"(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~0|~1)*)*)")
_URI_CHARACTERS = re.compile(r"(?:[a-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9a-f]{2})*", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"P(?=.)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:[.,]\d+)?S)?)?)")
_MAILBOX_CHARACTERS, _HOST_CHARACTERS = 64, 253


def is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = (int(part) for part in found.groups())
    if not (1 <= month <= 12 and 1 <= day <= _DAYS[month - 1]):
        return False
    return (month, day) != (2, 29) or year == 0 or _leap(year)


def _leap(year: int) -> bool:
    return (date(year + 1, 1, 1) - date(year, 1, 1)).days == 366 if 1 <= year < 9999 else year % 4 == 0


def is_time(text: str, zone_required: bool = False) -> bool:
    found = _TIME.fullmatch(text)
    if found is None or (zone_required and not found.group(4)):
        return False
    hour, minute, second = (int(found.group(index)) for index in (1, 2, 3))
    return (hour <= 23 and minute <= 59 and second <= 59) or (hour, minute, second) == (23, 59, 60)


def is_date_time(text: str) -> bool:
    parts = re.split(r"[tT\s]", text)
    return len(parts) == 2 and is_date(parts[0]) and is_time(parts[1], zone_required=True)


def is_hostname(text: str) -> bool:
    return len(text.removesuffix(".")) <= _HOST_CHARACTERS and _HOSTNAME.fullmatch(text) is not None


def is_email(text: str) -> bool:
    mailbox, at, host = text.partition("@")
    return bool(at) and len(mailbox) <= _MAILBOX_CHARACTERS and bool(_MAILBOX.fullmatch(mailbox)) and is_hostname(host)


def is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return "%" not in text


def is_uri(text: str) -> bool:
    return _SCHEME.match(text) is not None and _URI_CHARACTERS.fullmatch(text) is not None


def is_regex(text: str) -> bool:
    try:
        to_python(text)
    except UnreadablePattern:
        return False
    return True


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "date-time": is_date_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "json-pointer": lambda text: _POINTER.fullmatch(text) is not None,
    "regex": is_regex,
    "relative-json-pointer": lambda text: _RELATIVE_POINTER.fullmatch(text) is not None,
    "time": is_time,
    "uri": is_uri,
    "uri-reference": lambda text: _URI_CHARACTERS.fullmatch(text) is not None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
