# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems that users have reported, as the API server and the log show them, and the expected causes.

Numbers are threads of github.com/NVIDIA/gpu-operator; dp is NVIDIA/k8s-device-plugin, rke2 is rancher/rke2. For each,
only the line that the program itself prints is kept.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import known_causes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import Cause, explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import not_ready_pod
from ansible_collections.gpuops.nvidia.tests.unit.pages import HOME

INITS = {
    "driver": ["k8s-driver-manager"], "container_toolkit": ["driver-validation"],
    "validator": ["driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"],
}
DRIVER, TOOLKIT, VALIDATOR = "nvidia-driver-ctr", "nvidia-container-toolkit-ctr", "nvidia-operator-validator"
PLUGIN, EXPORTER = "nvidia-device-plugin", "nvidia-dcgm-exporter"
CRASH = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=x"}}
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}
CREATED: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "message": message}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def why(component: str, container: str, state: dict[str, Any], log: str = "", events: tuple[str, ...] = (),
        last: dict[str, Any] | None = None, image: str = "nvcr.io/nvidia/x:1") -> Cause:
    """The explanation of a pod on the Node gpu-7 that is stuck at this container."""
    inits = INITS.get(component, ["toolkit-validation"])
    told = {"name": container, "ready": False, "restartCount": 4 if last else 0, "state": state,
            "lastState": {"terminated": last} if last else {}}
    at = inits.index(container) if container in inits else len(inits)
    done = [{"name": name, "state": {"terminated": {"exitCode": 0}}} for name in inits[:at]]
    main = container if at == len(inits) else "main"
    pod = {"metadata": {"name": f"{component}-x1"},
           "spec": {"nodeName": "gpu-7", "initContainers": [{"name": name, "image": image} for name in inits],
                    "containers": [{"name": main, "image": image}]},
           "status": {"phase": "Running" if at == len(inits) else "Pending",
                      "initContainerStatuses": done + ([told] if at < len(inits) else []),
                      "containerStatuses": [told] if at == len(inits) else []}}
    return explain(not_ready_pod(pod, component), events, "gpu-operator", log.splitlines())


def crash(component: str, container: str, log: str, code: int = 1) -> Cause:
    """The explanation of a pod that crashes repeatedly."""
    return why(component, container, CRASH, log, last=ended(code))


INSTALLER = ("ERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when [...] or if "
             "another driver, such as nouveau, is present")
CASES = [
    # A: the installation is stuck.
    ("378", why("validator", "driver-validation", RUNS, "chroot: failed to run command 'nvidia-smi': No such file"),
     "the driver is not ready on the node", "driver pod", ("driver",)),
    ("448", why("driver", "mofed-validation", RUNS, "stat: cannot statx '/run/mellanox/drivers/.driver-ready'"),
     "waits for network drivers (MOFED)", "driver.rdma.enabled: false", ()),
    ("280", why("container_toolkit", "driver-validation", RUNS, "command failed, retrying after 5 seconds"),
     "the driver is not ready", "driver pod", ("driver",)),
    ("487", crash("driver", DRIVER, "modprobe: ERROR: could not insert 'nvidia': Invalid module format\nFATAL"),
     "built for another kernel", "delete the pod", ()),
    ("1982", why("validator", "toolkit-validation", waiting(
        "RunContainerError", 'failed to create containerd task: ... no runtime for "nvidia" is configured')),
     "has no runtime handler named nvidia", "container toolkit is ready on gpu-7", ("driver", "container_toolkit")),
    ("1982, CDI", why("device_plugin", PLUGIN, waiting(
        "RunContainerError", "CDI device injection failed: unresolvable CDI devices management.nvidia.com/gpu=all")),
     "CDI devices", "restart its pod", ("driver", "container_toolkit")),
    ("1043", crash("validator", "cuda-validation", "[Vector addition of 50000 elements]\nFailed to allocate device "
                   "vector A (error code system not yet initialized)!"), "(802)", "fabric manager of exactly", None),
    ("375", crash("validator", "cuda-validation", "cudaGetDeviceCount returned 802\n-> system not yet initialized"),
     "fabric manager", "NVLink 5", None),
    ("2781", why("driver", DRIVER, RUNS, "waiting for the mlx5_core and ib_umad kernel modules to be loaded"),
     "ib_umad and mlx5_ib", "linux-modules-extra", ()),
    ("2781, older", crash("driver", DRIVER, "modprobe: FATAL: Module ib_umad not found in directory /lib/modules/6.8"),
     "ib_umad and mlx5_ib", "802", ()),
    ("398", crash("driver", "k8s-driver-manager", "NVIDIA GPU driver is already pre-installed on the "
                  "node, disabling the containerized driver"), "leftover nvidia-smi", "remove nvidia-smi", ()),
    # The three of the first installation.
    ("nouveau", crash("driver", "k8s-driver-manager", "failed to unload nouveau driver: rmmod: ERROR: "
                      "Module nouveau is in use"), "nouveau uses the GPU", "Blacklist nouveau on gpu-7", ()),
    ("nouveau, installer", crash("driver", DRIVER, "ERROR: The Nouveau kernel driver is currently in use by your "
                                 "system."), "nouveau uses the GPU", "reboot", ()),
    ("nouveau is one guess of many", crash("driver", DRIVER, INSTALLER), "of the driver cannot be loaded",
     "Secure Boot, the module nouveau is loaded", ()),
    ("fabric manager in the container", crash("driver", DRIVER, "request to query NVSwitch device information: fabric "
                                              "manager NVIDIA GPU driver interface version 570.1 don't match with "
                                              "driver version 570.2"), "fabric manager", "the driver's version", ()),
    # B: the runtime.
    ("432", why("device_plugin", "toolkit-validation", CREATED, events=(
        'Failed to create pod sandbox: rpc error: failed to get sandbox runtime: no runtime for "nvidia" is '
        "configured",)), "has no runtime handler named nvidia", "RKE2", ("driver", "container_toolkit")),
    ("rke2 3385", crash("container_toolkit", TOOLKIT, 'level=fatal msg="Error: unable to load config: failed to load '
                        'config: (1, 1): parsing error: keys cannot contain { character"'),
     "template or not valid", "config.toml.tmpl", ()),
    ("rke2 822", crash("container_toolkit", TOOLKIT, "unable to dial: dial unix /run/containerd/containerd.sock: "
                       "connect: no such file or directory"), "socket of the runtime", "CONTAINERD_SOCKET", ()),
    ("991", why("device_plugin", "toolkit-validation", CREATED), "has not started the container toolkit-validation",
     "delete it", ("driver", "container_toolkit", "validator")),
    ("1374", why("validator", "toolkit-validation", CRASH, 'error running command: exec: "nvidia-smi": executable file '
                 "not found in $PATH", last=ended(1)), "the driver is not injected", "runtimes.nvidia",
     ("driver", "container_toolkit")),
    # C: driver upgrades.
    ("991, driver", why("driver", DRIVER, CREATED), "has not started the container nvidia-driver-ctr", "Wait", ()),
    ("2509", crash("driver", DRIVER, "Unloading NVIDIA driver kernel modules...\nCould not unload NVIDIA driver kernel "
                   "modules, driver is in use"), "in use and cannot be unloaded", "Stop the GPU clients on gpu-7",
     ()),
    ("2166", crash("driver", "k8s-driver-manager", 'level=fatal msg="failed to uninstall nvidia driver components: '
                   'failed to unload driver"'), "in use and cannot be unloaded", "reboot it", ()),
    ("416", crash("driver", "k8s-driver-manager", "failed to unmount stale rootfs: failed to recursively unmount "
                  "/run/nvidia/driver: device or resource busy"), "still mounted", "Drain gpu-7", ()),
    ("drain", crash("driver", "k8s-driver-manager", "error when evicting pods: Cannot evict pod as it would violate "
                    "the pod's disruption budget."), "cannot be evicted from the node", "PodDisruptionBudget", ()),
    ("two drivers", crash("driver", DRIVER, "An instance of the NVIDIA driver is already running, aborting"),
     "another driver container", "previous driver pod", ()),
    # D: MIG.
    ("dp 253", crash("device_plugin", PLUGIN, "panic: at least one device with migEnabled=true was not configured "
                     "correctly: device 0 has an invalid MIG configuration"), "without instances", "mig.strategy", ()),
    ("no instance", crash("validator", "cuda-validation", "error code no CUDA-capable device is detected"),
     "MIG is enabled without instances", "MIG on gpu-7", None),
    # E: sharing.
    ("412", crash("device_plugin", "config-manager-init", "specified config a100 does not exist"),
     "sharing configuration is missing", "device-plugin.config of gpu-7", ()),
    ("412, ConfigMap", why("device_plugin", PLUGIN, CREATED, events=(
        'MountVolume.SetUp failed for volume "x" : configmap "time-slicing" not found',)),
     "ConfigMap or Secret that the pod mounts is missing", "Create what the message names", None),
    ("2641", crash("device_plugin", "config-manager-init", "no configuration files available"),
     "missing, empty", "gpu_sharing", ()),
    ("dp 1433", crash("device_plugin", PLUGIN, "unable to load config: unable to finalize config: unable to parse "
                      "config file: json: unknown field"), "a format that the device plugin cannot read",
     "devicePlugin.config", ()),
    ("MPS", crash("device_plugin", PLUGIN, "using --mig-strategy=mixed is not supported with MPS"), "MPS", "MIG", ()),
    ("dp 478", crash("device_plugin", PLUGIN, "Detected non-NVML platform: could not load NVML library: "
                     "libnvidia-ml.so.1"), "does not find the library", "container toolkit", None),
    # F: without the internet.
    ("91", crash("driver", DRIVER, "ERROR: Failed to update package cache. Ensure that the cluster can access the "
                 "proper networks."), "cannot connect to the package repositories", "gpu_proxy", ()),
    ("255", crash("driver", DRIVER, "Curl error (6): Could not resolve host: mirror.example\nCould not resolve Linux "
                  "kernel version"), "cannot connect to the package repositories", "driver.repoConfig", ()),
    ("1501", why("driver", DRIVER, waiting("ContainerCreating"), events=(
        'MountVolume.SetUp failed for volume "subscription-config-0" : hostPath type check failed: '
        "/etc/yum.repos.d/redhat.repo is not a file",)), "cannot be mounted", "RHEL", None),
    ("1519", why("driver", DRIVER, waiting("ErrImagePull", "tls: failed to verify certificate: x509: certificate "
                                           "signed by unknown authority"), image="mirror.example:5000/driver:1"),
     "does not trust the certificate of mirror.example:5000", "not for images", None),
    ("entitlement", crash("driver", DRIVER, "FATAL: failed to install elfutils-libel-devel. RHEL entitlement may be "
                          "improperly deployed."), "subscription", "Register gpu-7", ()),
    # G: drivers of the host.
    ("126", crash("driver", "k8s-driver-manager", "driver is pre-installed on host"), "already installed on the host",
     "gpu_placement: hybrid", ()),
    ("327", crash("driver", "k8s-driver-manager", "level=info msg=\"Host driver detected: /usr/bin/nvidia-smi\""),
     "already installed on the host", "driver.enabled: false", ()),
    ("two versions", crash("validator", "toolkit-validation", "nvidia-container-cli: initialization error: nvml error: "
                           "driver/library version mismatch"), "different driver versions", "reboot gpu-7", None),
    ("not loaded", crash("validator", "toolkit-validation", "nvidia-container-cli: initialization error: nvml error: "
                         "driver not loaded"), "kernel module of the driver is not loaded", "driver pod", None),
    # H: Secure Boot.
    ("1142", crash("driver", DRIVER, "modprobe: ERROR: could not insert 'nvidia': Required key not available"),
     "Secure Boot rejects", "signed modules", ()),
    ("1726", crash("driver", DRIVER, "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
     "Secure Boot rejects", "enroll a signing key", ()),
    # I: kernels.
    ("910", why("driver", DRIVER, waiting("ImagePullBackOff", 'Back-off pulling image "nvcr.io/nvidia/driver:580-6.8.0-'
                                          '31-generic-ubuntu22.04": ErrImagePull: not found'),
                image="nvcr.io/nvidia/driver:580-6.8.0-31-generic-ubuntu22.04"),
     "or the kernel of the node: nvcr.io/nvidia/driver:580-6.8.0-31", "precompiled", None),
    ("85", crash("driver", DRIVER, "Resolving Linux kernel version...\nCould not resolve Linux kernel version"),
     "headers or packages of the node's kernel", "Boot a kernel whose headers are available", ()),
    ("541", crash("driver", DRIVER, "E: Unable to locate package linux-headers-5.15.0-1028-gke"),
     "headers or packages", "driver.repoConfig", ()),
    ("300", crash("driver", DRIVER, "Error: Unable to find a match: kernel-devel-5.14.14"), "headers or packages",
     "precompiled", ()),
    ("too new", crash("driver", DRIVER, "make[1]: *** [Makefile:1700: modules] Error 2"), "cannot be built",
     "driver.version", ()),
    ("no such device", crash("driver", DRIVER, "modprobe: ERROR: could not insert 'nvidia': No such device"),
     "no GPU that it supports", "driver.kernelModuleType", ()),
    # K: memory.
    ("580", why("nfd", "master", CRASH, last=ended(137, "OOMKilled")), "out of memory", "resources", ()),
    # Others of the chain.
    ("startup probe", why("driver", DRIVER, CRASH, "Compiling NVIDIA driver kernel modules...", events=(
        "Startup probe failed: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",),
        last=ended(137)), "startup probe", "driver.startupProbe.failureThreshold", ()),
    ("once more", why("driver", DRIVER, RUNS, "Could not resolve Linux kernel version", last=ended(1)),
     "headers or packages", "Boot a kernel", ()),
    ("after a reboot", why("driver", DRIVER, RUNS, "Compiling NVIDIA driver kernel modules...",
                           last=ended(255, "Unknown")), "being built", "Wait", ()),
    ("building", why("driver", DRIVER, RUNS, "Proceeding with Linux kernel version 6.8.0-31-generic\nInstalling Linux "
                     "kernel headers...\nFound NVIDIA driver package"), "being built", "Wait", ()),
    ("profiler", crash("dcgm_exporter", EXPORTER, "Failed to watch metrics: Error watching fields: The third-party "
                       "Profiling module returned an unrecoverable error"), "another profiler", "DCGM_FI_PROF_", ()),
    ("no engine", crash("dcgm_exporter", EXPORTER, "Failed to connect to remote hostengine"), "connect to DCGM",
     "Check DCGM", ("dcgm",)),
    ("no space", crash("driver", DRIVER, "write /var/tmp/x: no space left on device"), "disk of the node is full",
     "gpu-7", ()),
    ("network", why("device_plugin", PLUGIN, CREATED, events=(
        "Failed to create pod sandbox: plugin type=\"calico\" failed: failed to setup network for sandbox",)),
     "pod network", "CNI", None),
    ("rate", why("nfd", "worker", waiting("ErrImagePull", "toomanyrequests: You have reached your pull rate limit")),
     "limits the number of image pulls", "gpu_pull_secrets", None),
]


@pytest.mark.parametrize(("found", "cause", "hint", "waits_for"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])
def test_what_users_met_is_named_with_its_fix(found: Cause, cause: str, hint: str,
                                              waits_for: tuple[str, ...] | None) -> None:
    assert cause in found.cause and hint in found.hint
    assert waits_for is None or found.waits_for == waits_for
    told = "\n".join([found.cause, found.hint, *found.do])
    assert "{" not in told.replace("'{.status.allocatable}'", "") and "gpu-operator" in found.do[0], told


def test_commands_can_be_pasted() -> None:
    found = crash("driver", DRIVER, "driver is in use")
    assert found.do == ("kubectl --namespace gpu-operator logs driver-x1 --container nvidia-driver-ctr --previous",
                        "ssh gpu-7 sudo lsof /dev/nvidia*")
    assert why("driver", DRIVER, RUNS).do == (
        "kubectl --namespace gpu-operator logs driver-x1 --container nvidia-driver-ctr",)
    # A container that has not run has no log.
    assert why("driver", DRIVER, waiting("ErrImagePull", "not found")).do[0] == (
        "kubectl --namespace gpu-operator describe pod driver-x1")


def test_what_no_waiting_mends_is_known() -> None:
    sure = [why("driver", DRIVER, waiting("ImagePullBackOff", "not found")),
            why("device_plugin", PLUGIN, waiting("CreateContainerConfigError", 'configmap "a" not found')),
            crash("driver", DRIVER, "Required key not available")]
    unsure = [why("driver", DRIVER, waiting("ImagePullBackOff", "i/o timeout")), why("driver", DRIVER, RUNS),
              crash("driver", DRIVER, "driver is in use"), why("validator", "driver-validation", RUNS)]
    assert [one.certain for one in sure] == [True] * 3 and not any(one.certain for one in unsure)


def test_every_row_is_for_people() -> None:
    for row in (*known_causes.STATUS_CAUSES, *known_causes.LOG_CAUSES):
        assert not row.cause.endswith(".") and row.hint and row.hint[0].isupper(), row.cause


def test_no_row_looks_any_distance_ahead() -> None:
    """Otherwise, a text that begins to match many times would take quadratic time."""
    for row in (*known_causes.STATUS_CAUSES, *known_causes.LOG_CAUSES):
        assert not re.search(r"(?<!\\)[*+]", row.pattern), row.pattern


def test_the_page_has_every_cause_in_this_order() -> None:
    names = {name: name.upper() for name in ("image", "registry", "node", "pod", "container", "namespace")}
    lines = (HOME / "docs" / "diagnose.md").read_text().splitlines()
    page = [row.split(" | ") for row in lines if row.startswith("| ")]
    told = [row[1] for row in page]
    wanted = list(dict.fromkeys(row.cause.format(**names)
                                for row in (*known_causes.STATUS_CAUSES, *known_causes.LOG_CAUSES)))
    assert [cause for cause in told if cause in wanted] == wanted
    for row in (*known_causes.STATUS_CAUSES, *known_causes.LOG_CAUSES):
        hint = row.hint.format(**names, log="`kubectl logs`")
        assert any(hint in cells[2] for cells in page if cells[1] == row.cause.format(**names)), row.cause
