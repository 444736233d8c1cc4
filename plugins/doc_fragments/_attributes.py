# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of attributes that several modules have. PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """The attributes of all modules, and options that several modules have. Included as
    C(gpuops.nvidia._attributes)."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and return what it would change, without changing anything.
    support: full
  diff_mode:
    description: Returns a diff of what has changed, or in check mode would change.
    support: full
  idempotent:
    description: If nothing else changes, a second run writes nothing and restarts nothing.
    support: full
"""

    PLAN = r"""
options:
  disruption:
    description:
      - What this task may do to running work. Each level also allows what the levels before it allow.
      - V(never) writes files, installs packages, loads a module for the first time and restarts containerd.
      - V(idle) also resets an idle GPU, changes its MIG mode, destroys idle MIG instances and reloads idle modules.
      - V(drain) also stops GPU clients that can be stopped. On a host, these are system services, which are started
        again, and for a change of MIG also other processes, but never those in pods. Only modules that work on Nodes
        evict pods. V(reboot) also reboots.
      - Steps that the level forbids are returned as RV(pending), each with its reason.
    type: str
    choices: [never, idle, drain, reboot]
    default: never
"""

    CLUSTER = r"""
options:
  kubeconfig:
    description:
      - The path of the kubeconfig of the cluster. No other kubeconfig is used.
      - A relative path is looked up next to the inventory, next to the playbook, and in the working directory.
    type: path
    required: true
  context:
    description:
      - A context in O(kubeconfig). The default is the current context.
    type: str
"""

    FILES_BEFORE = r"""
options:
  files_before:
    description:
      - For check mode, the paths of files that earlier tasks would install.
      - If this is not set, they are taken from the plan in the registered variable C(driver_result), which the role
        driver sets.
    type: list
    elements: str
    default: []
"""

    REPOSITORY = r"""
options:
  repository:
    description:
      - A mirror of the repository of the vendor, for the driver and other software. Suboptions that are not set have
        the values of the vendor.
    type: dict
    suboptions:
      url:
        description:
          - The folder that contains the C(Release) file or the C(repodata) of the repository, such as
            V(https://mirror.example.com/cuda/ubuntu2404/x86_64/).
          - It can be a folder on the host, such as V(file:///var/nvidia-driver-local-repo-ubuntu2404-595.91.07). A
            C(.list) file for apt must not name the same folder.
          - Do not add a user and password to the URL. apt reads them from C(/etc/apt/auth.conf.d).
        type: str
      key:
        description:
          - The public key, as a URL, an absolute path on the host, or a file name relative to O(repository.url).
        type: str
      fingerprint:
        description:
          - The fingerprint of the key, 40 hexadecimal digits. Needed with O(repository.key).
        type: str
"""

    PROXY = r"""
options:
  proxy:
    description:
      - The proxy for downloads of packages, keys and files. The configuration of C(apt), C(dnf) or C(zypper) on the
        host takes precedence. Nothing is written to the host.
      - Percent-encode special characters in a password. The URLs appear in no message and no log.
    type: dict
    suboptions:
      http:
        description: The URL of the proxy for C(http) addresses, such as V(http://proxy.example.com:3128).
        type: str
        aliases: [HTTP_PROXY, http_proxy]
      https:
        description: The URL of the proxy for C(https) addresses. For most proxies it begins with C(http).
        type: str
        aliases: [HTTPS_PROXY, https_proxy]
      no_proxy:
        description: Hosts, domains and networks that are reached without the proxy.
        type: list
        elements: str
        aliases: [NO_PROXY]
"""
