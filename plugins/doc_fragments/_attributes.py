# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """What all modules promise; included as C(gpuops.nvidia._attributes)."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and return what it would change, without changing anything.
    support: full
  diff_mode:
    description: Returns what has changed, or in check mode would change, as a difference.
    support: full
  idempotent:
    description: Running it again without a change from outside writes nothing and restarts nothing.
    support: full
"""

    PLAN = r"""
options:
  disruption:
    description:
      - What this task may do to running work. The levels are ordered, each allows what the former allows.
      - V(never) writes files, installs packages, loads a module for the first time and restarts containerd.
      - V(idle) also resets an idle GPU, changes its MIG mode, destroys idle MIG instances and reloads idle modules.
      - V(drain) also stops GPU clients. V(reboot) also reboots.
      - What a level forbids is returned as RV(pending) with its reason.
    type: str
    choices: [never, idle, drain, reboot]
    default: never
"""

    CLUSTER = r"""
options:
  kubeconfig:
    description:
      - Path of the kubeconfig of the cluster. No other is looked for.
      - A relative path is looked for beside the inventory, beside the playbook, and in the working directory.
    type: path
    required: true
  context:
    description:
      - A context in it, instead of its current one.
    type: str
"""

    FILES_BEFORE = r"""
options:
  files_before:
    description:
      - For check mode, the paths of files that tasks before this one bring.
      - If this is not set, it is what a task that has registered C(driver_result), as the role driver does, plans to
        install.
    type: list
    elements: str
    default: []
"""

    REPOSITORY = r"""
options:
  repository:
    description:
      - A mirror instead of the vendor's repository, for the driver and the software beside it alike. What is not given
        is the vendor's.
    type: dict
    suboptions:
      url:
        description:
          - The folder that holds the repository's C(Release) file or its C(repodata), such as
            V(https://mirror.example.com/cuda/ubuntu2404/x86_64/), or on the host itself
            V(file:///var/nvidia-driver-local-repo-ubuntu2404-595.91.07), where its C(.list) file in apt's folder of
            sources must not name the same.
          - User and password do not belong into it; apt takes them from C(/etc/apt/auth.conf.d).
        type: str
      key:
        description:
          - The public key as a URL, as an absolute path on the host, or as a file name below O(repository.url).
        type: str
      fingerprint:
        description:
          - The 40 hexadecimal digits that the key must have. Needed with O(repository.key).
        type: str
"""

    PROXY = r"""
options:
  proxy:
    description:
      - The proxy through which packages, keys and files are downloaded. What the host's own configuration of C(apt),
        C(dnf) or C(zypper) says comes before it. Nothing of it is written to the host.
      - Percent-encode what is special in a password. No message and no log shows the addresses.
    type: dict
    suboptions:
      http:
        description: The URL of the proxy for C(http) addresses, such as V(http://proxy.example.com:3128).
        type: str
        aliases: [HTTP_PROXY, http_proxy]
      https:
        description: The URL of the proxy for C(https) addresses; it begins with C(http) for most proxies.
        type: str
        aliases: [HTTPS_PROXY, https_proxy]
      no_proxy:
        description: Hosts, domains and networks that are reached without it.
        type: list
        elements: str
        aliases: [NO_PROXY]
"""
