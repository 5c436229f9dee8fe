"""Proxies of the environment, and names for what keeps a request from its server."""

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

_UNKNOWN_HOST = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
_UNTRUSTED = range(18, 22)  # OpenSSL's X509_V_ERR_*: self-signed, or of an unknown issuer
_PLAIN = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_TLS_SECONDS = 2.0
NO_TLS = "no TLS is spoken there: write http://"
TLS = "TLS is spoken there: write https://"


def proxy_for(url: str, no_proxy: str | None) -> str | None:
    """Return the proxy that the environment names for ``url``; None for a direct connection.

    ``no_proxy`` is added to the environment's ``NO_PROXY``: host names, domain suffixes,
    addresses, and networks such as ``10.0.0.0/8``. This machine itself is always reached directly.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host == "localhost" or _within(host, "127.0.0.0/8") or _within(host, "::1/128"):
        return None
    excluded = f"{no_proxy or ''},{proxies.get('no', '')}".lower().replace(" ", "").split(",")
    if "*" in excluded or any(_within(host, item) for item in excluded):
        return None
    names = [name for item in excluded if (name := item.lstrip("*."))]
    if any(f".{at}".endswith(f".{n}") for n in names for at in (host, f"{host}:{parts.port}")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def proxy_named(url: str, proxy: str) -> str:
    """Return the name of the proxy for ``url`` in messages: without its user and password."""
    scheme = urlsplit(url).scheme
    variable = scheme if getproxies().get(scheme) else "all"
    kind = "" if proxy.startswith("http") else ", not an HTTP proxy"
    at = proxy.rpartition("@")[2].rpartition("//")[2].rstrip("/")
    return f"the proxy {at} of {variable.upper()}_PROXY{kind}"


def network_fault(error: BaseException, url: str, proxy: str | None) -> str | None:
    """Return what keeps requests from the server at ``url``, by way of ``proxy``: its host's name,
    TLS, the proxy, or the system's error; None for other errors."""
    through = proxy_named(url, proxy) if proxy else ""
    causes = [*_causes(error)]
    for cause in causes:
        if isinstance(cause, ssl.SSLError) and proxy and proxy.startswith("https"):
            return f"{through}: TLS fails: {cause.reason or cause}"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _of_certificate(cause)
        if isinstance(cause, ssl.SSLError):
            return NO_TLS if cause.reason in _PLAIN else f"TLS fails: {cause.reason or cause}"
        if isinstance(cause, socket.gaierror):
            unknown = cause.errno in _UNKNOWN_HOST
            what = "no such host" if unknown else "the name server gives no answer"
            return f"{what}: {through or urlsplit(url).hostname}"
    numbers = [cause.errno for cause in causes if isinstance(cause, OSError)]
    number = next((number for number in reversed(numbers) if number and number > 0), None)
    if number is None:
        return None
    return f"{through}: {os.strerror(number)}" if proxy else os.strerror(number)


def _of_certificate(error: ssl.SSLCertVerificationError) -> str:
    remedy = "; SSL_CERT_FILE=FILE names its authority" if error.verify_code in _UNTRUSTED else ""
    return f"its certificate is not accepted: {error.verify_message.rstrip('.')}{remedy}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def speaks_tls(url: str) -> bool:
    """Return whether a server that ended an ``http://`` connection without a reply expects TLS."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or proxy_for(url, None):
        return False
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 80), _TLS_SECONDS) as plain,
            anyone.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):
        return False
