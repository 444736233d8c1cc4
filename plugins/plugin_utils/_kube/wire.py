# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to an API server, and the one file that imports the kubernetes library. PRIVATE to the collection.

The library reads the kubeconfig (certificates, tokens, exec plugins, proxies); the requests are our own: its generated
models cost more time than the requests. Only the kubeconfig that was named counts: no environment variable, no
~/.kube/config, no service account.
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

try:
    import urllib3
    import yaml
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException, load_kube_config

    HAS_KUBERNETES = True
except ImportError:
    HAS_KUBERNETES = False

# Seconds: to connect, between two parts of an answer, and of the answers until the first has come.
CONNECT_TIMEOUT, READ_TIMEOUT, FIRST_TIMEOUT = 10.0, 60.0, 30.0
# Seconds until an answer must be complete, twice the limit of an API server; bytes that are read at once.
ANSWER_TIMEOUT, PART = 120.0, 1 << 16
# Tries of one request; the pauses double, about 6 s in all, and are as long as the server's Retry-After asks.
TRIES, FIRST_PAUSE, LONGEST_PAUSE = 7, 0.1, 10.0
# Tries of a request that gets no answer at all. An API server gives up by itself after 60 s, and says so.
SILENT_TRIES = 2
_BUSY = (429, 500, 502, 503, 504)
_LOADING = threading.Lock()


class _Slow(Exception):
    """An answer was not complete after L(ANSWER_TIMEOUT)."""


class _NoObject(Exception):
    """A successful answer should be a JSON object and is none, for example because it was cut off."""


class Answer(t.NamedTuple):
    """What the server said. body: the decoded JSON, or C({"message": text}) where it is none."""

    status: int
    body: t.Dict[str, t.Any]
    retry_after: float

    @property
    def details(self) -> t.Mapping[str, t.Any]:
        """The details of a failure; empty if the answer is not one of the API server, such as the page of a proxy."""
        found = self.body.get("details")
        return found if isinstance(found, dict) else {}

    @property
    def causes(self) -> t.List[t.Mapping[str, t.Any]]:
        """The causes of a failure, each with C(field) and C(message) if the API server names them."""
        found = self.details.get("causes")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class Wire:
    """Sends requests to the server of one kubeconfig, over kept connections. Safe to use from several threads.

    Raises InputError where no usable kubeconfig is named, before anything is sent.
    """

    def __init__(self, kubeconfig: str, context: str | None, connections: int) -> None:
        if not HAS_KUBERNETES:
            raise MissingLibrary("kubernetes", "Install it on the controller: pip install kubernetes.")
        path = _existing(kubeconfig)
        # The library writes keys to files that it removes at the interpreter's end, which Ansible's workers never
        # reach. So they get a folder that is gone as soon as the TLS context has read them. It remembers these files
        # by content for the whole process, so nobody else may load meanwhile.
        with _LOADING, tempfile.TemporaryDirectory(prefix="gpuops-") as folder:
            self._configuration = _load(path, context, folder)
            self._configuration.connection_pool_maxsize = connections
            self.server: str = self._configuration.host
            self._pool = _pool(self._configuration, path)
            if self.server.startswith("https"):
                _use_context(self._pool.connection_pool_kw, _tls(self._configuration, path))
        self._lock = threading.Lock()
        self._heard = False

    def send(self, verb: str, target: str, method: str, path: str, query: t.Mapping[str, t.Any], body: t.Any = None,
             content_type: str = "application/json", accept: str = "application/json",
             retry: t.Sequence[int] = (), final: t.Sequence[int] = (), tries: int = TRIES) -> Answer:
        """One request, tried again while the server is busy or the connection breaks, and on the statuses in retry.

        Every request of this collection may be sent twice without harm. verb and target: for messages. final: statuses
        that are answers to this request, though others may mean a busy server by them. tries: at most so many.
        Raises ClusterError (status 0) where no answer comes.
        """
        url = self.server + quote(path)
        given = {key: value for key, value in query.items() if value is not None}
        if given:
            url += "?" + urlencode(given)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        pause, left, silent = FIRST_PAUSE, tries, 0
        while True:
            left -= 1
            patience = READ_TIMEOUT if self._heard else FIRST_TIMEOUT
            try:
                answer = self._once(method, url, data, content_type, accept, patience)
                self._heard = True
            except urllib3.exceptions.ReadTimeoutError as error:
                silent += 1
                if not left or silent == SILENT_TRIES:
                    raise _silent(self.server, verb, target, silent, patience) from error
                wait = 0.0
            except _Slow as error:
                raise _incomplete(self.server, verb, target) from error
            except _NoObject as error:
                if not left:
                    raise _no_object(self.server, verb, target, str(error)) from error
                wait = 0.0
            except urllib3.exceptions.HTTPError as error:
                if not left or isinstance(error, urllib3.exceptions.SSLError):
                    raise _unreachable(self.server, verb, target, error) from error
                wait = 0.0
            else:
                if not left or answer.status in final or answer.status not in (*_BUSY, *retry):
                    return answer
                wait = answer.retry_after
            time.sleep(min(LONGEST_PAUSE, max(wait, pause * random.uniform(0.7, 1.3))))
            pause *= 2

    def _once(self, method: str, url: str, data: bytes | None, content_type: str, accept: str,
              patience: float) -> Answer:
        headers = {"Accept": accept, "User-Agent": "gpuops.nvidia", **self._credentials()}
        if data is not None:
            headers["Content-Type"] = content_type
        reply = self._pool.request(method, url, body=data, headers=headers, retries=False, redirect=False,
                                   timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=patience),
                                   preload_content=False)
        with contextlib.closing(reply):
            content = _content(reply)
        after = reply.headers.get("Retry-After", "")
        return Answer(reply.status, _decoded(content, reply.status < 300, accept),
                      float(after) if after.isdecimal() else 0.0)

    def _credentials(self) -> dict[str, str]:
        """Headers of the user; a token that has expired is renewed by the library, one thread at a time."""
        with self._lock:
            settings = self._configuration.auth_settings()
        return {one["key"]: one["value"] for one in settings.values() if one["in"] == "header" and one["value"]}


def _content(reply: t.Any) -> bytes:
    """The bytes of an answer. Raises _Slow."""
    # urllib3 before 2.2 has no read1, and its read waits for a whole part: a slow answer exceeds the limit there.
    read = getattr(reply, "read1", reply.read)
    begin, parts = time.monotonic(), [read(PART)]
    while parts[-1]:
        if time.monotonic() - begin > ANSWER_TIMEOUT:
            raise _Slow
        parts.append(read(PART))
    return b"".join(parts)


def _decoded(content: bytes, success: bool, accept: str) -> t.Dict[str, t.Any]:
    """The body of an L(Answer). Raises _NoObject."""
    text = success and "*/*" in accept  # a log, which may be JSON by itself
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
        raise InputError("No kubeconfig is named, and none is looked for.",
                         "Say which cluster is meant: gpu_kubeconfig (or the option kubeconfig) takes the path of a "
                         "kubeconfig; KUBECONFIG, ~/.kube/config and service accounts are not used.",
                         path="kubeconfig", value=kubeconfig, allowed="the path of a file")
    path = os.path.abspath(os.path.expanduser(kubeconfig))
    if os.pathsep in path:  # the library would take it for several files, and for that of another cluster
        raise InputError(f"{path} has a {os.pathsep!r} in it, which the Kubernetes library takes as the end of a path.",
                         "Give one file, in a folder and with a name without it.", path="kubeconfig", value=kubeconfig,
                         allowed="the path of a file")
    if not os.path.isfile(path):
        raise InputError(f"There is no file {path}.", "Give the path of a kubeconfig on the controller.",
                         path="kubeconfig", value=kubeconfig, allowed="the path of a file")
    return path


def _load(path: str, context: str | None, folder: str) -> t.Any:
    configuration = Configuration()
    configuration.host = ""
    try:
        load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=context or None, client_configuration=configuration, persist_config=False,
            temp_file_path=folder)
    except Exception as error:  # the library meets a document of another shape with any
        known = _contexts(path)
        if context and known and context not in known:
            raise InputError(f"{path} has no context {context!r}.", f"Name one of {', '.join(known)}, or none for the "
                             "current one.", path="context", value=context, allowed=known) from error
        # The library names an entry by all that it contains, such as a token. Other errors say nothing to a user.
        said = str(error).partition("/{")[0] if isinstance(
            error, (ConfigException, yaml.YAMLError, OSError, ValueError)) else "it is built otherwise"
        raise InputError(f"{path} is no usable kubeconfig: {said}.",
                         "Give a kubeconfig with which kubectl works, and a context that it names.",
                         path="context" if context else "kubeconfig", value=context or path) from error
    if not configuration.host:
        raise InputError(f"The cluster of {path} has no server.", "Add clusters[].cluster.server to it.",
                         path="kubeconfig", value=path)
    return configuration


def _pool(configuration: t.Any, path: str) -> t.Any:
    try:
        return RESTClientObject(configuration).pool_manager
    except Exception as error:  # of the library of this kind of proxy; it may show a password
        raise InputError(f"{path} has a proxy-url that cannot be used.",
                         "Write it as http://proxy.example.com:3128; socks5:// needs the Python library PySocks.",
                         path="kubeconfig", value=path) from error


def _contexts(path: str) -> t.List[str]:
    """The names of a kubeconfig's contexts; none where it is built otherwise."""
    try:
        with open(path, encoding="utf-8") as file:
            return [str(one["name"]) for one in yaml.safe_load(file)["contexts"]]
    except Exception:  # as above
        return []


def _tls(configuration: t.Any, path: str) -> ssl.SSLContext:
    """One context for all connections: made for each, it would cost more than a small request."""
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if configuration.cert_file:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(configuration.cert_file, configuration.key_file or None, password="")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} has a certificate or a key that cannot be read: {error}.",
                         "Check certificate-authority(-data), client-certificate(-data) and client-key(-data); keys "
                         "must be without a password.", path="kubeconfig", value=path) from error
    return context


def _use_context(settings: t.Dict[str, t.Any], context: ssl.SSLContext) -> None:
    """Has the pool use the context instead of the files behind it."""
    for key in ("ca_certs", "cert_file", "key_file", "ca_cert_data"):
        settings.pop(key, None)
    # urllib3 sets the protocols again for each connection. OpenSSL then frees the list that another thread's connection
    # may just be copying, without Python's lock: that one says garbage, and the server ends it (decode_error).
    context.set_alpn_protocols(["http/1.1"])
    context.set_alpn_protocols = lambda alpn_protocols: None  # type: ignore[method-assign]
    settings["ssl_context"] = context


def _silent(server: str, verb: str, target: str, times: int, patience: float) -> ClusterError:
    return ClusterError(
        f"{server} accepts connections, but gave no answer for {patience:g} s, {times} times, to the request to {verb} "
        f"{target}.", "Check that an API server runs behind this address, a load balancer for example, and that it is "
        "not overloaded.", verb=verb, object=target, reason="NoAnswer")


def _incomplete(server: str, verb: str, target: str) -> ClusterError:
    return ClusterError(f"{server} began to answer the request to {verb} {target}, and the answer was not complete "
                        f"after {ANSWER_TIMEOUT:g} s.", "Check the connection to this server, and the load balancer or "
                        "proxy in between.", verb=verb, object=target, reason="SlowAnswer")


def _no_object(server: str, verb: str, target: str, begin: str) -> ClusterError:
    return ClusterError(f"{server} answered the request to {verb} {target} with something that is not a JSON object: "
                        f"it begins with {begin!r}.", "Check that the server of this kubeconfig is an API server, and "
                        "that no proxy in between cuts or replaces its answers.", verb=verb, object=target,
                        reason="NoObject")


def _unreachable(server: str, verb: str, target: str, error: Exception) -> ClusterError:
    if isinstance(error, urllib3.exceptions.SSLError):
        hint = "Check certificate-authority-data, the client's certificate and the server's name in the kubeconfig."
    else:
        hint = "Check that the server of this kubeconfig runs and can be reached from the controller."
    return ClusterError(f"{server} cannot be asked to {verb} {target}: {error}.", hint, verb=verb, object=target,
                        reason=type(error).__name__)
