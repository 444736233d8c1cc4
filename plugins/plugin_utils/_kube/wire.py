# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP requests to an API server. Only this file imports the kubernetes library. PRIVATE to the collection.

The library reads the kubeconfig (certificates, tokens, exec plugins, proxies). Requests are sent without the library,
because its generated models take more time than the requests. Only the given kubeconfig is used: no environment
variable, no ~/.kube/config, no service account.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import ssl
import tempfile
import threading
import time
import typing as t
from urllib.parse import quote, urlencode

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object

try:
    import urllib3
    import yaml
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException, load_kube_config

    HAS_KUBERNETES = True
except ImportError:
    HAS_KUBERNETES = False

# Timeouts in seconds: to connect; to receive the next part of an answer; to receive the first answer of the server.
CONNECT_TIMEOUT, READ_TIMEOUT, FIRST_TIMEOUT = 10.0, 60.0, 30.0
# Seconds until an answer must be complete (twice the limit of an API server); the number of bytes of one read.
ANSWER_TIMEOUT, PART = 120.0, 1 << 16
# The maximum number of times to send a request. The pauses (in seconds) double, about 6 s in all, or use Retry-After.
TRIES, FIRST_PAUSE, LONGEST_PAUSE = 7, 0.1, 10.0
# The maximum number of times to send a request without an answer. An API server answers with an error after 60 s.
SILENT_TRIES = 2
_BUSY = (429, 500, 502, 503, 504)
_LOADING = threading.Lock()

Query = t.Mapping[str, "str | int | None"]
# A manifest or a patch; a JSON patch is a list of operations.
Body = t.Union[Live, t.Sequence[Live], None]


class _Slow(Exception):
    """An answer was not complete after L(ANSWER_TIMEOUT)."""


class _TooLong(Exception):
    """An answer has more bytes than its request allows."""


class _NoObject(Exception):
    """A successful answer is not a JSON object, for example because it was cut off."""


class Answer(t.NamedTuple):
    """The answer to a request.

    status: the HTTP status; body: the decoded JSON, or C({"message": text}) for other content; retry_after: the seconds
    of the header Retry-After, 0 without the header.
    """

    status: int
    body: Object
    retry_after: float

    @property
    def details(self) -> Object:
        """The details of a Status; empty if the answer is not a Status, for example the page of a proxy."""
        details = self.body.get("details")
        return details if isinstance(details, dict) else {}

    @property
    def causes(self) -> t.List[Object]:
        """The causes in the details of a Status. Each may have C(field) and C(message)."""
        causes = self.details.get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


class Wire:
    """Sends requests to the API server of one kubeconfig. Connections are kept open; several threads can use it.

    The constructor sends nothing, and raises InputError for a missing or invalid kubeconfig.
    """

    def __init__(self, kubeconfig: str, context: str | None, connections: int) -> None:
        if not HAS_KUBERNETES:
            raise MissingLibrary("kubernetes", "Install it on the controller: pip install kubernetes.")
        path = _existing(kubeconfig)
        # The library writes keys to files and deletes them at the exit of the interpreter, but the workers of Ansible
        # end without these exit handlers. Therefore the files are in a folder that is deleted as soon as the TLS
        # context has read them. The lock is needed because the library shares these files within the process.
        with _LOADING, tempfile.TemporaryDirectory(prefix="gpuops-") as folder:
            self._configuration: t.Any = _load(path, context, folder)
            self._configuration.connection_pool_maxsize = connections
            self.server: str = self._configuration.host
            self._pool = _pool(self._configuration, path)
            if self.server.startswith("https"):
                _use_context(self._pool.connection_pool_kw, _tls(self._configuration, path))
        self._lock = threading.Lock()
        self._answered = False  # whether the server has answered a request

    def send(self, verb: str, target: str, method: str, path: str, query: Query, body: Body = None,
             content_type: str = "application/json", accept: str = "application/json",
             retry: t.Sequence[int] = (), final: t.Sequence[int] = (), tries: int = TRIES,
             most: int | None = None) -> Answer:
        """Sends a request; repeats it if the server is busy or the connection breaks. All requests are idempotent.

        verb, target: for messages; retry: further statuses after which the request is repeated; final: statuses after
        which it is not repeated; tries: the maximum number of times to send it; most: the maximum number of bytes of
        an answer that is not from the API server itself. Raises ClusterError (status 0) if there is no answer.
        """
        url = self.server + quote(path)
        given = {key: value for key, value in query.items() if value is not None}
        if given:
            url += "?" + urlencode(given)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        pause, left, silent = FIRST_PAUSE, tries, 0
        while True:
            left -= 1
            timeout = READ_TIMEOUT if self._answered else FIRST_TIMEOUT
            try:
                answer = self._once(method, url, data, content_type, accept, timeout, most)
                self._answered = True
            except _TooLong:
                raise ClusterError(f"Could not {verb} {target}: the answer has more than {most} bytes.",
                                   "Check the program that answers there.", verb, target, 0, "TooLong") from None
            except (urllib3.exceptions.HTTPError, _Slow, _NoObject) as error:
                silent += isinstance(error, urllib3.exceptions.ReadTimeoutError)
                if not left or silent == SILENT_TRIES or isinstance(error, (_Slow, urllib3.exceptions.SSLError)):
                    within = f"within {timeout:g} s, {silent} times"
                    raise _failed(self.server, verb, target, error, within) from error
                wait = 0.0
            else:
                if not left or answer.status in final or answer.status not in (*_BUSY, *retry):
                    return answer
                wait = answer.retry_after
            time.sleep(min(LONGEST_PAUSE, max(wait, pause * random.uniform(0.7, 1.3))))
            pause *= 2

    def _once(self, method: str, url: str, data: bytes | None, content_type: str, accept: str,
              timeout: float, most: int | None) -> Answer:
        headers = {"Accept": accept, "User-Agent": "gpuops.nvidia", **self._credentials()}
        if data is not None:
            headers["Content-Type"] = content_type
        reply = self._pool.request(method, url, body=data, headers=headers, retries=False, redirect=False,
                                   timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=timeout),
                                   preload_content=False)
        with contextlib.closing(reply):
            content = _content(reply, most)
        after = reply.headers.get("Retry-After", "")
        return Answer(reply.status, _decoded(content, reply.status < 300, accept),
                      float(after) if after.isdecimal() else 0.0)

    def _credentials(self) -> dict[str, str]:
        """The request headers with the user's credentials. The library renews an expired token."""
        with self._lock:
            settings = self._configuration.auth_settings()
        return {auth["key"]: auth["value"] for auth in settings.values() if auth["in"] == "header" and auth["value"]}


def _content(reply: urllib3.BaseHTTPResponse, most: int | None = None) -> bytes:
    """The bytes of an answer. Raises _Slow after ANSWER_TIMEOUT, _TooLong for an answer with more than most bytes."""
    # urllib3 before 2.2 has no read1. Its read waits for a whole part, so a slow answer can take longer than the limit.
    read = getattr(reply, "read1", reply.read)
    begin, parts = time.monotonic(), [read(PART)]
    while parts[-1]:
        if time.monotonic() - begin > ANSWER_TIMEOUT:
            raise _Slow
        if most is not None and sum(map(len, parts)) > most:
            raise _TooLong
        parts.append(read(PART))
    return b"".join(parts)


def _decoded(content: bytes, success: bool, accept: str) -> Object:
    """The body of an L(Answer). Raises _NoObject if a successful answer is not a JSON object."""
    text = success and "*/*" in accept  # a log is not decoded, even if it is JSON
    try:
        decoded = None if text else json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        return decoded
    if success and not text:
        raise _NoObject(content[:80].decode(errors="replace"))
    return {"message": content.decode(errors="replace").strip()}


def _existing(kubeconfig: str) -> str:
    if not kubeconfig:
        raise InputError("No kubeconfig is set.",
                         "Set gpu_kubeconfig, or the option kubeconfig, to the path of the cluster's kubeconfig. "
                         "The variable KUBECONFIG, ~/.kube/config and service accounts are not used.",
                         path="kubeconfig", value=kubeconfig, allowed="the path of a file")
    path = os.path.abspath(os.path.expanduser(kubeconfig))
    if os.pathsep in path:  # the library would read this as several files, and might choose another cluster
        raise InputError(f"{path} contains {os.pathsep!r}, which the Kubernetes library reads as a separator of paths.",
                         f"Move or rename the file, so that its path has no {os.pathsep!r}.", path="kubeconfig",
                         value=kubeconfig, allowed="the path of a file")
    if not os.path.isfile(path):
        raise InputError(f"The file {path} does not exist.", "Set the path of a kubeconfig on the controller.",
                         path="kubeconfig", value=kubeconfig, allowed="the path of a file")
    return path


def _load(path: str, context: str | None, folder: str) -> Configuration:
    configuration = Configuration()
    configuration.host = ""
    try:
        load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=context or None, client_configuration=configuration, persist_config=False,
            temp_file_path=folder)
    except Exception as error:  # the library raises any exception for an invalid document
        known = _contexts(path)
        if context and known and context not in known:
            raise InputError(f"{path} has no context {context!r}.", f"Set one of {', '.join(known)}, or no context to "
                             "use the current one.", path="context", value=context, allowed=known) from error
        # The messages of these types may contain a whole entry with its token, after "/{". The messages of other types
        # do not help a user.
        reason = str(error).partition("/{")[0] if isinstance(
            error, (ConfigException, yaml.YAMLError, OSError, ValueError)) else "its structure is unexpected"
        raise InputError(f"{path} is not a valid kubeconfig: {reason}.",
                         "Use a kubeconfig that works with kubectl, and one of its contexts.",
                         path="context" if context else "kubeconfig", value=context or path) from error
    if not configuration.host:
        raise InputError(f"The cluster in {path} has no server.", "Add clusters[].cluster.server to the kubeconfig.",
                         path="kubeconfig", value=path)
    return configuration


def _pool(configuration: Configuration, path: str) -> urllib3.PoolManager:
    try:
        return RESTClientObject(configuration).pool_manager
    except Exception as error:  # its type depends on the kind of proxy; its message may contain a password
        raise InputError(f"The proxy-url in {path} cannot be used.",
                         "Write the proxy-url as http://proxy.example.com:3128. A socks5:// URL needs the Python "
                         "library PySocks.",
                         path="kubeconfig", value=path) from error


def _contexts(path: str) -> t.List[str]:
    """The names of the contexts of a kubeconfig; empty if the document is invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            return [str(context["name"]) for context in yaml.safe_load(file)["contexts"]]
    except Exception:
        return []


def _tls(configuration: Configuration, path: str) -> ssl.SSLContext:
    """The TLS context of all connections. To create one for each connection would take longer than a small request.

    path: the kubeconfig, for the error. Raises InputError for a certificate or key that cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if configuration.cert_file:
            # Without this argument, OpenSSL would prompt for a password at the terminal.
            context.load_cert_chain(configuration.cert_file, configuration.key_file or None, password="")
    except (OSError, ValueError) as error:
        raise InputError(f"A certificate or a key of {path} cannot be read: {error}.",
                         "Check certificate-authority(-data), client-certificate(-data) and client-key(-data). A key "
                         "must not have a password.", path="kubeconfig", value=path) from error
    return context


def _use_context(settings: t.Dict[str, t.Any], context: ssl.SSLContext) -> None:
    """Sets the TLS context of a pool's settings and removes the files of the kubeconfig, which will be deleted."""
    for key in ("ca_certs", "cert_file", "key_file", "ca_cert_data"):
        settings.pop(key, None)
    # urllib3 sets the ALPN protocols for each connection. OpenSSL then frees the old list of protocols while a
    # connection in another thread may copy it; the server would end that connection with decode_error.
    context.set_alpn_protocols(["http/1.1"])
    context.set_alpn_protocols = lambda alpn_protocols: None  # type: ignore[method-assign]
    settings["ssl_context"] = context


def _failed(server: str, verb: str, target: str, error: Exception, within: str) -> ClusterError:
    """The error of a request without a valid answer. within: a text such as C(within 30 s, 2 times)."""
    request, reason = f"the request to {verb} {target}", type(error).__name__
    message = f"{server}: {request} failed: {error}."
    hint = "Check that the server of this kubeconfig runs, and that the controller can connect to it."
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        reason, message = "NoAnswer", f"{server} accepts connections, but did not answer {request} {within}."
        hint = ("Check that an API server runs behind this address, for example behind the load balancer, and that it "
                "is not overloaded.")
    elif isinstance(error, _Slow):
        reason = "SlowAnswer"
        message = f"The answer of {server} to {request} was not complete after {ANSWER_TIMEOUT:g} s."
        hint = "Check the connection to this server, and the load balancer or proxy before it."
    elif isinstance(error, _NoObject):
        reason = "NoObject"
        message = f"The answer of {server} to {request} is not a JSON object: it begins with {str(error)!r}."
        hint = ("Check that the server of this kubeconfig is an API server, and that no proxy before it truncates or "
                "replaces its answers.")
    elif isinstance(error, urllib3.exceptions.SSLError):
        hint = "In the kubeconfig, check certificate-authority-data, the client certificate and the name of the server."
    return ClusterError(message, hint, verb=verb, object=target, reason=reason)
