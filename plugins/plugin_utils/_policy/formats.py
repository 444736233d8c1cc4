# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a policy: detects the formats of its documents, validates them, and translates them to one format. PRIVATE."""

from __future__ import annotations

import copy
import functools
import os
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import node_terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import (
    Schema,
    check,
    faults_error,
    shown,
    suggestion,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document, load_data, parse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    defaults,
    format_schemas,
    kernel_module_config,
    rules,
    translate,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path, merge, without_null

SUPPORTED = ("ClusterPolicy (nvidia.com/v1), NVIDIADriver or GPUCluster (nvidia.com/v1alpha1), GPUClusterPolicy "
             "(gpu.nvidia.com/v1), values of the GPU Operator's Helm chart")
LIVE = "live"  # the value of gpu_policy that selects the objects in the cluster


@dataclass(frozen=True)
class Source:
    """One document as the user wrote it. kind: as in L(Policy); name: its metadata.name; spec: without nulls, except in
    values, where they remain."""

    kind: str
    name: str
    spec: Section


@dataclass(frozen=True)
class DriverPool:
    """An NVIDIADriver for the Nodes that match its node selector and one of the terms of its node affinity, if it has
    any. spec: C({driver, gds, gdrcopy}) as in L(Policy), with the same defaults."""

    name: str
    node_selector: t.Mapping[str, str]
    terms: t.Sequence[Section]
    spec: Section

    def selects(self, name: str, labels: t.Mapping[str, str]) -> bool:
        """Whether it selects a Node."""
        return self.node_selector.items() <= labels.items() and (
            not self.terms or node_terms.any_matches(self.terms, name, labels))

    @property
    def keys(self) -> str:
        """Its keys that select Nodes."""
        return " and ".join([*(["nodeSelector"] if self.node_selector else []),
                             *(["nodeAffinity"] if self.terms else [])])


@dataclass(frozen=True)
class Policy:
    """A policy in the common format.

    kind: C(ClusterPolicy), C(values), C(NVIDIADriver), C(GPUCluster), C(GPUClusterPolicy) or C(defaults); origin: the
    file or the variable that contains it; spec: in the structure of L(format_schemas.COMMON), with the defaults of the
    release; mig_config: the document of mig-parted in the values of the chart, or None; sharing: the configuration of
    the device plugin in these values, or None; release: the version whose defaults are used; sources: the documents;
    pools: NVIDIADrivers that select Nodes; spec applies to all other Nodes; fallback: False if other Nodes get no
    driver, because all NVIDIADrivers select Nodes; driver_name: the name of the NVIDIADriver in spec.driver, empty
    if this is the section of another format; module_parameters: C({module: {parameter: value}}) from the ConfigMap that
    driver.kernelModuleConfig references, None if it is not in the values.
    """

    kind: str
    origin: str
    spec: Section
    mig_config: Section | None
    sharing: Section | None
    warnings: t.Tuple[str, ...]
    release: str = ""
    sources: t.Tuple[Source, ...] = ()
    pools: t.Tuple[DriverPool, ...] = ()
    fallback: bool = True
    driver_name: str = ""
    module_parameters: t.Mapping[str, t.Mapping[str, str]] | None = None

    @property
    def documents(self) -> tuple[str, ...]:
        """The kinds of the documents, in the order of the documents."""
        return tuple(source.kind for source in self.sources)

    def get(self, path: str) -> Value:
        """The value at a path such as C(driver.version), None if it is not set. Raises KeyError for a path that does
        not exist in any format."""
        if not _known(path):
            raise KeyError(f"no policy has {path}")
        return get_path(self.spec, path)

    @property
    def driver_type(self) -> str:
        """C(gpu), C(vgpu) or C(vgpu-host-manager)."""
        by_chart = self.get("driver.useNvidiaDriverCRD") and self.get("driver.nvidiaDriverCRD.driverType")
        return str(self.get("driver.driverType") or by_chart or "gpu")

    def enabled(self, section: str) -> bool:
        """Whether a section such as C(devicePlugin) or C(driver.rdma) is enabled, with the operator's default if it is
        not set."""
        value = self.get(f"{section}.enabled")
        return value if isinstance(value, bool) else defaults.on_by_default(section)

    @property
    def chart_driver(self) -> Section:
        """The section driver.nvidiaDriverCRD of the chart's values, also if NVIDIADrivers replace the section driver;
        empty if it is not enabled."""
        found: Value = next((get_path(one.spec, "driver.nvidiaDriverCRD") for one in self.sources
                             if one.kind == "values"), None)
        return found if isinstance(found, dict) and self.get("driver.useNvidiaDriverCRD") else {}

    def for_pool(self, pool: DriverPool) -> Policy:
        """The policy for the Nodes of a pool: with the driver, GPUDirect Storage and GDRCopy of the pool."""
        kept = {key: value for key, value in self.spec.items() if key not in pool.spec}
        return replace(self, origin=f"NVIDIADriver {pool.name}", spec={**kept, **pool.spec}, pools=(), fallback=True,
                       driver_name=pool.name)


@functools.lru_cache(maxsize=None)
def _known(path: str) -> bool:
    """Whether a path exists in the common format. All paths below a mapping with arbitrary keys exist."""
    schema: Schema = format_schemas.COMMON
    for key in path.split("."):
        if not isinstance(schema, t.Mapping):
            return isinstance(schema, str) and schema in ("any", "map", "strmap", "boolmap")
        if key not in schema:
            return False
        schema = schema[key]
    return True


def read(source: str | Section | t.Sequence[Value] | None, release: Release, origin: str = "gpu_policy") -> Policy:
    """Reads a policy from a file (path), a mapping, or a list of mappings. None means the defaults of the release.

    origin: the source in messages for a policy that is not in a file. Raises InputError that lists all faults, each
    with its path, line and nearest known key.
    """
    try:
        if source is None:
            return _policy("defaults", "defaults", [], release)
        if source == "":
            return _with_empty_warning(_policy("defaults", "defaults", [], release), origin)
        path = isinstance(source, str)
        documents = _from_file(str(source)) if path else _from_data(source)
        policy = _read(documents, str(source) if path else origin, release)
        return policy if any(document.data for document in documents) else _with_empty_warning(policy, policy.origin)
    except RecursionError as error:
        raise InputError(f"{origin} is nested too deeply, or contains itself.", f"Give {SUPPORTED}.") from error


def _with_empty_warning(policy: Policy, origin: str) -> Policy:
    """The policy, with an added warning that the document is empty."""
    note = f"{origin} is empty: the defaults of release {policy.release} apply."
    return replace(policy, warnings=(note, *policy.warnings))


# -- documents

def _from_file(path: str) -> list[Document]:
    try:
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.",
                         "Save it as UTF-8; a redirection in PowerShell writes UTF-16.", path="gpu_policy",
                         value=path) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
                         "Give the path of the policy's file.", path="gpu_policy", value=path) from error
    if text.startswith("$ANSIBLE_VAULT"):
        raise InputError(f"{path} is encrypted.", "Write the policy as a mapping into gpu_policy, from a vault.",
                         path="gpu_policy", value=path)
    try:
        return parse(text, path) or [Document({})]
    except InputError as error:
        line = _unindented_spec(text)
        if line is None:
            raise
        raise _indentation_lost(f"{path}, line {line}") from error


def _unindented_spec(text: str) -> int | None:
    """The line of spec in a text whose indentation is lost, None for other texts."""
    lines = text.splitlines()
    keys = [line.partition(":")[0] for line in lines]
    if "kind" not in keys or "spec" not in keys:
        return None
    index = keys.index("spec")
    below = next((line for line in lines[index + 1:] if line.strip() and not line.lstrip().startswith("#")), "")
    value = lines[index].partition(":")[2].partition("#")[0].strip()
    return index + 1 if not value and below[:1].isalpha() else None


def _indentation_lost(where: str) -> InputError:
    return InputError(f"{where}: spec is empty, because the document has lost its indentation.",
                      "Indent the keys below metadata and below spec, for example by two spaces.", path="spec")


def _from_data(source: object) -> list[Document]:
    if isinstance(source, dict):
        return [Document(copy.deepcopy(source))]
    if not isinstance(source, (list, tuple)):
        raise InputError(f"a path or a mapping is expected, not {shown(source)}.", f"Give {SUPPORTED}.",
                         path="gpu_policy", value=shown(source))
    return [Document(copy.deepcopy(one)) for one in source] or [Document({})]


def _unfold(documents: t.Sequence[Document]) -> t.Iterator[Document]:
    """The documents. A List, as kubectl writes it, is replaced by its items."""
    for document in documents:
        data = document.data
        if isinstance(data, dict) and data.get("kind") == "List" and isinstance(data.get("items"), list):
            yield from (document.part("items", index) for index in range(len(data["items"])))
        else:
            yield document


def _kind_of(data: object) -> str:
    """A description of a value for messages, without the content of texts and lists, which can be secret."""
    if isinstance(data, (bool, int, float)):
        return shown(data)
    return "nothing" if data is None else "a list" if isinstance(data, (list, tuple)) else "text"


def _detect(data: Value, origin: str) -> str:
    """The format of a document. Raises InputError if the format is unknown."""
    if not isinstance(data, dict):
        raise InputError(f"{origin}: a mapping is expected, not {_kind_of(data)}.",
                         f"Give {SUPPORTED}.")
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind is None and version is None and "spec" not in data:
        return "values"
    form = format_schemas.FORMS.get(kind) if isinstance(kind, str) and kind != "values" else None
    if form is None:
        if kind is None:
            raise InputError(f"{origin}: kind is missing.", f"Give one of {SUPPORTED}.")
        hint = suggestion(str(kind)[:60], [name for name in format_schemas.FORMS if name != "values"])
        given = " ".join(str(word)[:60] for word in (version, kind) if word is not None)
        raise InputError(f"{origin}: {given} is not a policy{hint if 'mean' in hint else '.'}",
                         f"Give one of {SUPPORTED}.")
    if version != form.api_version:
        has = "no apiVersion" if version is None else f"apiVersion {shown(version)}"
        raise InputError(f"{origin}: {kind} has {has}; allowed: {form.api_version!r}.",
                         f"Set apiVersion to {form.api_version}.")
    return form.kind


# -- from documents to a policy

def _read(documents: t.Sequence[Document], origin: str, release: Release) -> Policy:
    given = [(document, _detect(document.data, origin)) for document in _unfold(documents)]
    if not given:
        raise InputError(f"{origin} contains an empty List.", f"Give {SUPPORTED}.")
    every = [*given, *_drivers_in_values(given)]
    faults: list[str] = []
    for document, kind in every:
        prefix = f"{kind} {_name(document.data)}: " if len(every) > 1 else ""
        faults += [f"{prefix}{fault}" for fault in _faults(document, kind, origin)]
    if not faults:
        faults = [*rules.kind_faults([kind for _document, kind in given]), *rules.driver_faults(
            [(_name(document.data), _spec(document, kind)) for document, kind in every if kind == "NVIDIADriver"])]
    if faults:
        raise faults_error(f"{origin} ({', '.join(kind for _document, kind in every)})", faults)
    main = next((kind for _document, kind in every if kind != "NVIDIADriver"), "NVIDIADriver")
    return _policy(main, origin, every, release)


def _drivers_in_values(given: t.Sequence[tuple[Document, str]]) -> list[tuple[Document, str]]:
    """The NVIDIADrivers in extraObjects of the chart's values."""
    drivers = []
    for document, kind in given:
        extra = document.data.get("extraObjects") if kind == "values" else None
        for index, item in enumerate(extra if isinstance(extra, list) else ()):
            if isinstance(item, dict) and item.get("kind") == "NVIDIADriver":
                inner = document.part("extraObjects", index)
                drivers.append((inner, _detect(inner.data, "extraObjects")))
    return drivers


def _name(data: Section) -> str:
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else "without a name"


def _root(kind: str) -> tuple[str, ...]:
    return () if kind == "values" else ("spec",)


def _spec(document: Document, kind: str) -> Data:
    return t.cast("Data", document.data if kind == "values" else document.data["spec"])


def _faults(document: Document, kind: str, origin: str) -> list[str]:
    """All faults of one document."""
    schema, data = format_schemas.FORMS[kind].schema, document.data
    if kind != "values":
        if data.get("spec") is None and any(key in schema for key in data):
            raise _indentation_lost(origin)
        faults = check(document, format_schemas.ENVELOPE)
        if not isinstance(data.get("spec"), dict):
            return [*faults, f"spec: a mapping is expected; allowed: {', '.join(sorted(schema)[:12])}"]
        faults += check(document, schema, ("spec",))
    else:
        faults = check(document, schema)
    return faults or rules.document_faults(kind, document, _root(kind))


def _policy(kind: str, origin: str, documents: t.Sequence[tuple[Document, str]], release: Release) -> Policy:
    warnings: list[str] = []
    specs = [_common_spec(document, form, release, warnings) for document, form in documents]
    if not documents:
        specs = [defaults.of_chart(release)]
    main = next((spec for spec, (_document, form) in zip(specs, documents) if form != "NVIDIADriver"), None)
    drivers = [(_name(document.data), spec) for spec, (document, form) in zip(specs, documents)
               if form == "NVIDIADriver"]
    spec = specs[0] if not documents else main or {}
    drivers = _used_drivers(kind, spec, drivers, warnings)
    base = defaults.of_resource(release)
    pools, default = _pools(drivers, base, alone=main is None)
    if default is not None:
        spec = _with_driver(spec, default[1])
    without = [name for name, own in drivers if not _selecting(own)]
    if default and without and without != [default[0]]:
        without.remove(default[0])
        warnings.append(f"NVIDIADriver {', '.join(without)} is ignored, because NVIDIADriver {default[0]} has no "
                        "nodeSelector and no required nodeAffinity, and applies to all Nodes that no other one "
                        "selects.")
    warnings += [f"{section}.config.data is ignored, because {section}.config.create is not true."
                 for section in ("migManager", "devicePlugin", "dcgmExporter")
                 if _config(spec, section).get("data") and not _config(spec, section).get("create")]
    warnings += [f"{section}.config.create has no effect, because {section}.config.data is empty. The ConfigMap "
                 f"{_config(spec, section)['name']} must exist in the cluster."
                 for section in ("migManager", "devicePlugin", "dcgmExporter") if _config(spec, section).get("create")
                 and _config(spec, section).get("name") and not _config(spec, section).get("data")]
    mig_config = _embedded(spec, origin, "migManager", "config.yaml")
    sharing = _embedded(spec, origin, "devicePlugin", str(_config(spec, "devicePlugin").get("default") or ""))
    objects = [item for document, form in documents if form == "values"
               for item in document.data.get("extraObjects") or ()]
    sources = tuple(Source(form, _name(document.data) if form != "values" else "", without_null(_spec(document, form))
                           if form != "values" else _spec(document, form)) for document, form in documents)
    made = Policy(kind, origin, merge(base, spec), mig_config, sharing, tuple(warnings), release.version, sources,
                  pools, fallback=not pools or not all(_selecting(own) for _driver, own in drivers),
                  driver_name=default[0] if default else _chart_driver(kind, spec, drivers),
                  module_parameters=kernel_module_config.find(
                      objects, get_path(spec, "driver.kernelModuleConfig.name")))
    _check_terms(made)
    return made


def _check_terms(policy: Policy) -> None:
    """Raises InputError if the DaemonSet of the default driver would need too many terms."""
    fault = rules.terms_fault([(pool.name, pool.node_selector, pool.terms) for pool in policy.pools],
                              node_terms.required(policy.get("driver.nodeAffinity"))) if policy.fallback else ""
    if fault:
        raise faults_error(f"{policy.origin} ({policy.kind})", [fault])


def _used_drivers(kind: str, spec: Data, drivers: list[tuple[str, Data]],
                  warnings: list[str]) -> list[tuple[str, Data]]:
    """The NVIDIADrivers that are used. They must be enabled in a ClusterPolicy or values. Adds warnings."""
    used = kind not in ("ClusterPolicy", "values") or bool(get_path(spec, "driver.useNvidiaDriverCRD"))
    names = ", ".join(name for name, _spec in drivers)
    warnings += _unused_keys_of_chart(spec, bool(drivers)) if kind == "values" else []
    if drivers and not used:
        warnings.append(f"NVIDIADriver {names} is ignored, because driver.useNvidiaDriverCRD is not true.")
    elif drivers and get_path(spec, "driver.enabled") is False:
        warnings.append(f"NVIDIADriver {names} is ignored, because driver.enabled is false. The GPU Operator would "
                        "install its driver. For the same effect, set driver.enabled to true.")
        return []
    elif drivers and kind == "values" and get_path(spec, "driver.nvidiaDriverCRD.deployDefaultCR") is not False:
        warnings.append(f"The NVIDIADriver that the chart creates from the section driver is not used, because "
                        f"extraObjects has NVIDIADriver {names}. If you need it, add it to extraObjects; otherwise set "
                        "driver.nvidiaDriverCRD.deployDefaultCR to false.")
    elif used and not drivers and kind == "ClusterPolicy":
        warnings.append("driver.useNvidiaDriverCRD is true and no NVIDIADriver is given; the section driver is used.")
    elif used and not drivers and get_path(spec, "driver.nvidiaDriverCRD.deployDefaultCR") is False:
        warnings.append("driver.nvidiaDriverCRD.deployDefaultCR is false and no NVIDIADriver is given; the section "
                        "driver is used.")
    return drivers if used else []


def _unused_keys_of_chart(spec: Data, replaced: bool) -> list[str]:
    """A note about keys of driver.nvidiaDriverCRD that have no effect. spec: that of values; replaced: whether the
    policy has NVIDIADrivers. If they replace the one of the chart, its other keys are refused or noted elsewhere.
    """
    chart = get_path(spec, "driver.nvidiaDriverCRD")
    chart = chart if isinstance(chart, dict) else {}
    usual: dict[str, list[Value]] = {"driverType": ["gpu", ""], "deployDefaultCR": [True], "nodeSelector": [{}]}
    keys = [key for key, values in usual.items() if chart.get(key) is not None and chart[key] not in values]
    why = "driver.nvidiaDriverCRD.enabled is not true"
    if get_path(spec, "driver.enabled") is False:
        return []
    if get_path(spec, "driver.useNvidiaDriverCRD"):
        keys = ["driverType"] if replaced and chart.get("driverType") == "vgpu" else []
        why = "the driverType of each NVIDIADriver applies"
    return [f"{', '.join(f'driver.nvidiaDriverCRD.{key}' for key in keys)}: no effect, because {why}."] if keys else []


def _chart_driver(kind: str, spec: Data, drivers: t.Sequence[tuple[str, Data]]) -> str:
    """The name of the NVIDIADriver that the chart creates from the section driver, empty if the chart creates none."""
    made = (kind == "values" and not drivers and get_path(spec, "driver.useNvidiaDriverCRD")
            and get_path(spec, "driver.nvidiaDriverCRD.deployDefaultCR") is not False)
    return "default" if made else ""


def _common_spec(document: Document, kind: str, release: Release, warnings: list[str]) -> Data:
    """The spec of a document in the common format, with deprecated keys translated. Adds warnings."""
    own = _spec(document, kind)
    if kind == "values":
        own = merge(defaults.of_chart(release), own, drop_null=True)
    spec = translate.to_common(kind, own)
    warnings += translate.newer_keys(kind, spec, document, _root(kind), release)
    warnings += translate.translate_deprecated(kind, spec, document, _root(kind), release)
    translate.add_implicit_defaults(kind, spec)
    return spec


def _pools(drivers: t.Sequence[tuple[str, Data]], base: Data,
           alone: bool) -> tuple[tuple[DriverPool, ...], tuple[str, Data] | None]:
    """(NVIDIADrivers that select Nodes, (name, spec) of the NVIDIADriver for all other Nodes). alone: whether there are
    no other documents; a single NVIDIADriver then applies to all other Nodes, even if it selects Nodes."""
    base_spec = {key: base[key] for key in ("driver", *translate.BESIDE_DRIVER)}
    pools = tuple(DriverPool(name, spec["driver"].get("nodeSelector") or {},
                             node_terms.required(spec["driver"].get("nodeAffinity")), merge(base_spec, spec))
                  for name, spec in drivers if _selecting(spec))
    rest = [(name, spec) for name, spec in drivers if not _selecting(spec)]
    # An NVIDIADriver that selects no Nodes is for all of them, and takes precedence over the default NVIDIADriver.
    rest.sort(key=lambda driver: bool(driver[1]["driver"].get("default")))
    return pools, rest[0] if rest else drivers[0] if alone and len(drivers) == 1 else None


def _selecting(spec: Section) -> bool:
    """Whether an NVIDIADriver is only for Nodes that it selects. The affinity of the default NVIDIADriver limits the
    Nodes that no other one selects."""
    driver = spec["driver"]
    return bool(driver.get("nodeSelector") or not driver.get("default")
                and node_terms.required(driver.get("nodeAffinity")))


def _with_driver(spec: Data, driver: Data) -> Data:
    """A spec with the sections of an NVIDIADriver (driver), but its own values of the keys that enable the driver."""
    kept = {key: value for key, value in spec.items() if key not in translate.BESIDE_DRIVER}
    switches = {key: value for key, value in (spec.get("driver") or {}).items()
                if key in ("enabled", "useNvidiaDriverCRD")}
    return {**kept, **driver, "driver": {**driver["driver"], **switches}}


def _config(spec: Section, section: str) -> Data:
    config = get_path(spec, f"{section}.config")
    return config if isinstance(config, dict) else {}


def _embedded(spec: Section, origin: str, section: str, key: str) -> Data | None:
    """The document in a key of a ConfigMap that the values of the chart create, None if they do not contain it."""
    config = _config(spec, section)
    data = config.get("data") if config.get("create") else None
    text = data.get(key) if isinstance(data, dict) else None
    if not isinstance(text, str):
        return None
    where = f"{os.path.basename(origin)}, {section}.config.data[{key!r}]"
    content = load_data(text, where)
    if not isinstance(content, dict):
        raise InputError(f"{where}: a mapping is expected.", "Correct the policy.")
    return content


def unsupported_on_hosts(policy: Policy) -> list[str]:
    """The parts of a policy that are not supported on hosts, each as a sentence; empty if there are none."""
    parts = []
    of_chart = policy.chart_driver.get("driverType")
    if of_chart == "vgpu-host-manager" and policy.driver_type != of_chart:
        parts.append(f"driver.nvidiaDriverCRD.driverType: {of_chart!r} is not supported on hosts; allowed: 'gpu', "
                     "'vgpu'")
    if policy.driver_type not in ("gpu", "vgpu"):
        parts.append(f"spec.driverType: {policy.driver_type!r} is not supported on hosts; allowed: 'gpu', 'vgpu'")
    selecting = [(pool.name, pool.keys) for pool in policy.pools if not policy.fallback]
    if policy.get("driver.nodeAffinity") and policy.fallback:
        selecting.append((policy.driver_name, "nodeAffinity"))
    parts += [f"NVIDIADriver {name}: spec.{key}: hosts have no Node labels; use an NVIDIADriver without it, or groups "
              "of the inventory" for name, key in selecting]
    if policy.documents == ("GPUCluster",):
        parts.append("a GPUCluster describes only parts of a cluster and has no effect on hosts; add NVIDIADrivers, or "
                     "use another format")
    return parts
