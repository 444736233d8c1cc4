# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every shape of a file: desired state, comments, a second run that writes nothing, a removal that restores the
content."""

from __future__ import annotations

import os
import pathlib
import random
import typing as t
from dataclasses import replace

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import containerd
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import RuntimeState
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.conftest import effective

SHAPES = pathlib.Path(__file__).parent / "shapes"
FORMS: dict[str, t.Callable[[bytes], bytes]] = {
    "lf": lambda data: data,
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
}


def _cases() -> list[t.Any]:
    cases = []
    for path in sorted(SHAPES.glob("*.toml")):
        name, _dot, versions = path.name.removesuffix(".toml").partition(".")
        for version in versions.split("+"):
            cases += [pytest.param(path, version, form, id=f"{name}-{version}-{form}") for form in FORMS]
    return cases


@pytest.mark.parametrize(("path", "version", "form"), _cases())
def test_shape(host: t.Any, path: pathlib.Path, version: str, form: str) -> None:
    content = FORMS[form](path.read_bytes())
    one = host(version, content)
    one.config.chmod(0o640)
    former = one.shape()
    before = one.effective()

    steps = one.converge()

    after = one.effective()
    runtimes = after["containerd"]["runtimes"]
    assert after["containerd"]["default_runtime_name"] == "nvidia"
    assert runtimes["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert after.get("enable_cdi", True) is True
    old_default = before["containerd"]["default_runtime_name"]
    old = before["containerd"]["runtimes"]
    assert set(runtimes) >= set(old)
    source = old[old_default] if old[old_default]["runtime_type"] == "io.containerd.runc.v2" else old["runc"]
    assert bool(runtimes["nvidia"]["options"].get("SystemdCgroup")) == bool(source["options"].get("SystemdCgroup"))
    text = one.config.read_bytes()
    for line in content.splitlines():
        if b"#" in line:
            assert line[line.index(b"#"):] in text
    assert (b"\r\n" in text) == (form == "crlf" and b"\n" in content or b"\r\n" in content)
    assert oct(one.config.stat().st_mode & 0o777) == "0o640"
    assert one.restarts == (1 if steps else 0)

    still = one.tree()
    assert one.converge() == []
    assert one.tree() == still

    one.converge("absent")
    assert one.shape() == former
    assert one.config.read_bytes() == content


@pytest.mark.parametrize("version", ["1.6", "1.7", "2.2"])
def test_no_file(host: t.Any, version: str) -> None:
    one = host(version, None)
    assert one.converge()[-1] == "restart service: containerd.service"
    assert one.effective()["containerd"]["default_runtime_name"] == "nvidia"
    assert one.converge() == []
    one.converge("absent")
    assert one.shape() == {"containerd": one.shape()["containerd"]}


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_not_default_keeps_the_default(host: t.Any, version: str) -> None:
    one = host(version, (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    one.converge(set_as_default=True)
    one.converge(set_as_default=False)
    cri = one.effective()
    assert cri["containerd"]["default_runtime_name"] == "runc"
    assert "nvidia" in cri["containerd"]["runtimes"]
    assert one.converge(set_as_default=False) == []


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_modes_declare_their_class(host: t.Any, version: str) -> None:
    one = host(version, (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    one.converge(mode="cdi")
    runtimes = one.effective()["containerd"]["runtimes"]
    for name in ("nvidia", "nvidia-cdi"):
        assert runtimes[name]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime.cdi"
        assert runtimes[name]["options"]["SystemdCgroup"] is True
    assert one.converge(mode="cdi") == []


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_edit_by_hand_is_repaired_and_kept_at_removal(host: t.Any, version: str) -> None:
    one = host(version, (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    one.converge()
    target = one.config if version == "1.7" else one.drop_in
    text = target.read_text()
    target.write_text(text.replace("/usr/bin/nvidia-container-runtime", "/opt/other"))
    with one.config.open("a") as stream:
        stream.write('\n# my mirror\n[plugins."io.containerd.internal.v1.opt"]\npath = "/srv" # mine\n')
    steps, _proposal = one.plan()
    action = "edit" if version == "1.7" else "write"
    assert [step.id for step in steps] == [f"{action} file: {target}", "restart service: containerd.service"]
    assert steps[0].reason == "the file was edited after a run had written it"
    one.converge()
    assert one.converge() == []
    one.converge("absent")
    rest = one.config.read_text()
    assert "nvidia" not in rest
    assert rest.endswith('\n# my mirror\n[plugins."io.containerd.internal.v1.opt"]\npath = "/srv" # mine\n')
    assert rest.startswith((SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_text())
    assert not one.drop_in.exists()
    assert not os.path.exists(one.journal_root)


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_former_default_returns_from_an_edited_file(host: t.Any, version: str) -> None:
    content = (SHAPES / "20-crun.1.7+2.2.toml").read_bytes()
    one = host(version, content)
    one.converge()
    one.config.write_bytes(one.config.read_bytes() + b"# edited\n")
    _steps, proposal = one.plan("absent")
    assert any("Only the part of this collection was removed" in warning for warning in proposal.warnings)
    one.converge("absent")
    assert one.config.read_bytes() == content + b"# edited\n"


def test_upgrade_to_two_moves_our_part_to_the_drop_in(host: t.Any) -> None:
    content = (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes()
    one = host("1.7", content)
    one.converge()
    one.version = "2.2"
    one.converge()
    assert one.drop_in.exists()
    assert "nvidia-container-runtime" not in one.config.read_text()
    assert one.effective()["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    assert one.converge() == []
    one.converge("absent")
    assert one.config.read_bytes() == content


def test_another_drop_in_path_replaces_the_former(host: t.Any) -> None:
    one = host("2.2", b"version = 3\n")
    one.converge()
    old, one.drop_in = one.drop_in, one.folder / "other.d" / "50-gpu.toml"
    one.converge()
    assert not old.exists()
    assert "99-gpuops" not in one.config.read_text()
    assert one.effective()["containerd"]["default_runtime_name"] == "nvidia"
    assert one.converge() == []
    one.converge("absent")
    assert one.config.read_bytes() == b"version = 3\n"
    assert not one.drop_in.parent.exists()


def test_damaged_files_are_edited_rightly_or_refused(host: t.Any) -> None:
    """Lines are truncated, duplicated and swapped at random: the result is our own error or correct, and a removal
    restores the content."""
    chance = random.Random(3)
    one = host("1.7", b"")
    shapes = [path.read_text() for path in sorted(SHAPES.glob("*1.7*.toml"))]
    refused = done = 0
    for _round in range(150):
        lines = chance.choice(shapes).splitlines(keepends=True)
        for _change in range(chance.randint(1, 3)):
            place = chance.randrange(len(lines) + 1)
            act = chance.randrange(4)
            if act == 0 and place < len(lines):
                lines.insert(chance.randrange(len(lines)), lines.pop(place))
            elif act == 1 and place < len(lines):
                lines[place] = lines[place][:chance.randrange(len(lines[place]) + 1)]
            elif act == 2:
                lines.insert(place, chance.choice(["[x]\n", "y = [\n", "# z\n", "[[x]]\n", '"a.b".c = {}\n']))
            elif lines:
                lines.insert(place, chance.choice(lines))
        content = "".join(lines).encode()
        one.config.write_bytes(content)
        try:
            tomllib.loads(content.decode())
            one.converge()
        except (HostError, ValueError):
            refused += 1
            assert one.config.read_bytes() == content
            continue
        except (AttributeError, TypeError, KeyError):
            # Valid TOML in which a table is no table: the played containerd has no answer, a real one refuses it.
            assert one.config.read_bytes() == content
            continue
        done += 1
        assert one.effective()["containerd"]["default_runtime_name"] == "nvidia"
        assert one.converge() == []
        one.converge("absent")
        assert one.config.read_bytes() == content
    assert refused > 20
    assert done > 20


def _theirs(one: t.Any, monkeypatch: pytest.MonkeyPatch, text: str) -> pathlib.Path:
    """A drop-in at the path of nvidia-ctk and the GPU Operator."""
    path = pathlib.Path(one.folder / "conf.d" / "99-nvidia.toml")
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setattr(containerd, "VENDOR_FILES", (str(path),))
    probe = replace(containerd.Containerd.probe, other_files=[str(path)])
    monkeypatch.setattr(containerd.Containerd, "probe", probe)
    return path


OPERATOR = """version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
"""


def test_the_vendors_drop_in_is_not_fought(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("2.2", b'version = 3\nimports = ["conf.d/*.toml"]\n')
    path = _theirs(one, monkeypatch, OPERATOR)
    former = one.tree()
    with pytest.raises(HostError, match="declares the runtime differently.*GPU Operator") as caught:
        one.converge()
    assert caught.value.details["path"] == str(path)
    assert one.tree() == former
    path.write_text(OPERATOR.replace("/usr/local/nvidia/toolkit", "/usr/bin"))
    assert one.converge(set_as_default=False) == []


def test_our_drop_in_at_the_vendors_path_is_ours(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("2.2", b"version = 3\n")
    one.drop_in = _theirs(one, monkeypatch, "")
    one.drop_in.unlink()
    one.converge()
    assert one.converge(mode="cdi")[0] == f"write file: {one.drop_in}"


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_options_switched_off_go(host: t.Any, version: str) -> None:
    content = b'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true # for now\n'
    one = host(version, content)
    one.converge(set_as_default=False, cdi=False)
    plain = one.config.read_bytes()
    merged = effective(str(one.config), version)
    one.converge(set_as_default=True, mode="cdi", nri=True)
    assert one.converge(set_as_default=False, cdi=False) != []
    assert (one.config.read_bytes(), effective(str(one.config), version)) == (plain, merged)
    assert one.converge(set_as_default=False, cdi=False) == []
    one.converge("absent")
    assert one.config.read_bytes() == content


def test_a_default_that_the_user_set_by_hand_stays(host: t.Any) -> None:
    one = host("1.7", b'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'
                      b'default_runtime_name = "runc"\n')
    one.converge(set_as_default=False)
    one.config.write_text(one.config.read_text().replace('"runc"', '"nvidia"', 1))
    assert one.effective()["containerd"]["default_runtime_name"] == "nvidia"
    assert one.converge(set_as_default=False) == []


def test_a_stale_drop_in_of_the_vendors_is_told(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("2.2", b"version = 3\n")
    path = _theirs(one, monkeypatch, OPERATOR)
    assert one.converge()[-1] == "restart service: containerd.service"
    _steps, proposal = one.plan()
    assert f"{path} has no effect" in proposal.warnings[0]
    assert one.effective()["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == \
        "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize(("content", "version", "plugin"), [
    ("", 3, V3),
    ("version = 1\n", None, V3),
    ("version = 2\n", 2, V2),
    (f'version = 2\n[plugins."{V3}"]\nenable_selinux = false\n', 2, V3),
    (f'version = 3\n[plugins."{V3}"]\nenable_selinux = false\n', 3, V3),
    ("version = 4\n", 4, V3),
    (f'imports = ["own.toml"]\n#{V2} 2', 2, V2),
    (f'imports = ["own.toml"]\n#{V3} 3', 3, V3),
    (f'version = 2\nimports = ["own.toml"]\n#{V3} 2', 2, V3),
])
def test_a_drop_in_speaks_as_the_other_files_do(content: str, version: int | None, plugin: str) -> None:
    """With another version or plugin id, containerd 2.0 to 2.2 lose one side, and 2.3 does not start."""
    name, _hash, own = content.partition("#")
    files: dict[str, str | None] = {"/c/config.toml": content, "/c/conf.d/99.toml": None}
    imports = {}
    if own:
        files["/c/own.toml"] = 'version = {1}\n[plugins."{0}".cni]\nbin_dir = "/x"\n'.format(*own.split())
        imports = {"own.toml": ["/c/own.toml"]}
    seen = RuntimeState("containerd", "/c/config.toml", files=files, imports=imports)
    assert containerd._drop_in_format(seen, tomllib.loads(name), "/c/conf.d/99.toml") == (version, plugin)


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_nri_is_switched_on_and_back(host: t.Any, version: str) -> None:
    content = b'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true # for now\n'
    one = host(version, content)
    one.converge(nri=True)
    merged = effective(str(one.config), version)
    assert merged["plugins"]["io.containerd.nri.v1.nri"]["disable"] is False
    assert one.converge(nri=True) == []
    one.config.write_bytes(one.config.read_bytes() + b"# mine\n")
    one.converge("absent")
    assert one.config.read_bytes() == content + b"# mine\n"


def test_a_disabled_cri_plugin_is_told(host: t.Any) -> None:
    one = host("1.7", b'disabled_plugins = ["cri"]\n')
    _steps, proposal = one.plan()
    assert "CRI plugin is disabled (disabled_plugins: cri)" in proposal.warnings[0]


def test_link_stays(host: t.Any) -> None:
    one = host("1.7", b"version = 2\n")
    real = one.root / "real.toml"
    one.config.rename(real)
    one.config.symlink_to(real)
    one.converge()
    assert one.config.is_symlink()
    assert b"nvidia" in real.read_bytes()
    one.converge("absent")
    assert one.config.is_symlink()
    assert real.read_bytes() == b"version = 2\n"
