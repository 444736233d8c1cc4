# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the play itself, for every host. PRIVATE to the collection.

C(hostvars) has the variables of the inventory, but not the C(vars) of a play or of C(import_playbook). A user who sets
C(gpu_disruption: idle) there means all hosts of the play.
"""

from __future__ import annotations

import functools
import typing as t

from ansible.errors import AnsibleError
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Values = t.Mapping[str, t.Any]
# Templates a value of the play with the variables of a host.
Template = t.Callable[[t.Any, Values], t.Any]


class PlayHostVars:
    """C(hostvars), overridden by the variables of the play, which are templated on demand for each host.

    Ansible collects the variables of a host each time that they are read (0.3 ms), and the plan of a fleet reads those
    of all hosts several times. Here they are collected once, and each variable is templated once.
    """

    def __init__(self, hostvars: t.Any, play: Values, template: Template) -> None:
        self._hostvars = hostvars
        self._raw = functools.cache(hostvars.raw_get)
        self._of_host = functools.cache(
            lambda host: _OfHost(host, hostvars[host], play, template, lambda: self._raw(host)))

    def __getitem__(self, host: str) -> Values:
        return self._of_host(host)

    def __contains__(self, host: str) -> bool:
        return host in self._hostvars

    def raw_get(self, host: str) -> t.Any:
        """The variables of a host without templating and without those of the play. They include registered results."""
        return self._raw(host)


class _OfHost(t.Mapping[str, t.Any]):
    """Raises InputError for a variable that cannot be templated or decrypted."""

    def __init__(self, host: str, own: Values, play: Values, template: Template, raw: t.Callable[[], Values]) -> None:
        self._host, self._own, self._play, self._template, self._raw = host, own, play, template, raw
        self._templated: dict[str, t.Any] = {}

    @functools.cached_property
    def _known(self) -> Values:
        return {**self._raw(), **self._play}

    def __getitem__(self, name: str) -> t.Any:
        if name not in self._templated:
            self._templated[name] = self._read(name)
        return self._templated[name]

    def _read(self, name: str) -> t.Any:
        try:
            return self._template(self._play[name], self._known) if name in self._play else self._own[name]
        except AnsibleError as error:
            raise InputError(f"its value cannot be read: {str(error).strip().rstrip('.')}.",
                             f"Correct it in the inventory, then try: ansible {self._host} -m ansible.builtin.debug "
                             f"-a var={name}.", path=f"hostvars.{self._host}.{name}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._play or name in self._own

    def __iter__(self) -> t.Iterator[str]:
        return iter({**dict.fromkeys(self._own), **dict.fromkeys(self._play)})

    def __len__(self) -> int:
        return len({*self._own, *self._play})
