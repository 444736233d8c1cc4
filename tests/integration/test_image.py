# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image: the driver is installed on a host without a GPU, and works when the host boots with GPUs, without another
run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab import cli
from lab.host import lab as labs
from tests.integration import user
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost
from tests.integration.series import Done, Play

NEW, OLD = "595.91.07", "580.126.20"
MODEL = "NVIDIA A100-SXM4-80GB"
OPTIONS = {"driver_branch": "595", "driver_hold_kernel": True,
           "driver_module_parameters": {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}}
IMAGE = {**OPTIONS, "driver_image": True, "driver_image_gpus": [MODEL]}
TOOLKIT = {"container_toolkit_disruption": "idle"}
UNITS = "nvidia-persistenced nvidia-fabricmanager"
# The versions that DKMS, the module file and the packages have, without repetitions; what is loaded; the services.
LOOK = f"""{{ dkms status -k $(uname -r) | grep -w installed | sed 's,nvidia/,,;s/[,:].*//'
modinfo -k $(uname -r) -F version nvidia
dpkg-query -W -f '${{Version}}\\n' nvidia-driver-cuda libnvidia-ml1 nvidia-fabricmanager | sed s/-1$//; }} | sort -u
echo ======
ls -d /sys/module/nvidia* 2>/dev/null
echo ======
systemctl is-active {UNITS}
echo ======
systemctl is-enabled {UNITS}
true"""


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A host in a separate lab. It has no GPU while its fault no-gpus is on."""
    with own_lab("image", "gpu-p1=a100-80:8") as lab:
        yield DriverHost(lab, "gpu-p1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The initial state of the host without a GPU, which is saved as C(bare)."""
    host.start()
    cli.fault(labs.load(host.lab.name), host.name, "no-gpus", "on")
    host.save("bare")
    return host.state()


@pytest.fixture(scope="module")
def built(host: DriverHost, clean: list[str]) -> list[Done]:
    """The state C(image), which a host with GPUs boots: check mode, the run and one more on the host without a GPU, and
    the container toolkit."""
    host.start("bare")
    runs = host.run(Play(IMAGE, "main", check=True, then=host.state_script), Play(IMAGE, "main", then=LOOK),
                    Play(IMAGE, "main"), Play(TOOLKIT, role="container_toolkit"))
    cli.fault(labs.load(host.lab.name), host.name, "no-gpus", "off")
    host.save("image")
    host.left("off")
    return runs


def parts(text: str) -> list[list[str]]:
    return [part.split() for part in text.split("======")]


def result(host: DriverHost, run: user.Run) -> dict[str, Any]:
    assert run.rc == 0, run.output
    return run.result(host.name, "nvidia_driver")


def test_everything_is_installed_and_nothing_loaded(host: DriverHost, built: list[Done], clean: list[str]) -> None:
    check, run, again, toolkit = built
    done = result(host, run)
    steps = [step["id"] for step in done["plan"]]
    assert steps == [step["id"] for step in result(host, check)["plan"]] and check.said.splitlines() == clean
    assert f"build modules: {NEW}" in " ".join(steps) and "enable service: nvidia-fabricmanager.service" in steps
    assert not any(step.startswith(("load", "enable and start", "unload")) for step in steps)
    assert (done["pending"], done["reasons"], done["reboot_required"]) == ([], [], False)
    versions, loaded, active, enabled = parts(run.said)
    assert (versions, loaded, enabled) == ([NEW], [], ["enabled"] * 2) and "active" not in active
    host.untouched(again)
    assert toolkit.rc == 0, toolkit.output


def test_a_boot_with_gpus_completes_it(host: DriverHost, built: list[Done]) -> None:
    host.start("image")
    versions, loaded, active, enabled = parts(host.sh(LOOK))
    assert (versions, active, enabled) == ([NEW], ["active"] * 2, ["enabled"] * 2)
    assert "/sys/module/nvidia_uvm" in loaded
    assert "nvidia.com/gpu=all" in host.sh("nvidia-ctk cdi list 2>/dev/null")
    run, refused = host.run(Play(OPTIONS, "main"), Play(IMAGE, "main"))
    host.untouched(run)
    assert "An image is built on a host on which no module of the driver is loaded, but" in host.refused(refused)
    site = user.playbook("site", host.lab.hosts, "--limit", host.name, "--tags",
                         "driver,container_toolkit", gpu_disruption="never", **OPTIONS)
    assert site.rc == 0 and site.changed(host.name) == [], site.output


def test_another_version_and_back(host: DriverHost, clean: list[str]) -> None:
    host.start("bare")
    other = {**IMAGE, "driver_branch": "580"}
    back = {**IMAGE, "driver_branch": "", "driver_state": "rolled_back"}
    fails = f"echo 'MAKE[0]=\"echo nv.c: error: no such thing; false\"' > /etc/dkms/nvidia-{OLD}.conf"
    first, broken, switch, again, returned, gone = host.run(
        Play(IMAGE, "main"), Play(other, "main", first=fails, then=f"{LOOK}; rm /etc/dkms/nvidia-{OLD}.conf"),
        Play(other, "main", then=LOOK), Play(other, "main"), Play(back, "main", then=LOOK), Play({}, "remove"))
    result(host, first)
    assert f"The former driver {NEW} is restored." in host.refused(broken) and parts(broken.said)[0] == [NEW]
    assert result(host, switch)["former"]["version"] == NEW and parts(switch.said)[0] == [OLD]
    host.untouched(again)
    assert result(host, returned)["version"] == NEW and parts(returned.said)[0] == [NEW]
    assert all(parts(run.said)[1] == [] for run in (broken, switch, returned))
    assert gone.rc == 0 and host.state() == clean, gone.output


def test_a_failed_build_leaves_nothing(host: DriverHost, clean: list[str]) -> None:
    host.start("bare")
    with host.fault("build-fails", host.name):
        run, = host.run(Play(IMAGE, "main"))
    assert "is removed again" in host.refused(run) and host.state() == clean


def test_a_builder_is_told_what_is_wrong(host: DriverHost, clean: list[str]) -> None:
    host.start("bare")
    runs = host.run_each({"no image": Play(OPTIONS), "model": Play({**IMAGE, "driver_image_gpus": ["H100"]}),
                          "nothing": Play({"driver_image": True}),
                          "token": Play({**IMAGE, "driver_licence_token": "eyJ"})})
    assert "set image (role driver: driver_image) to true" in host.refused(runs["no image"])
    assert "image_gpus[0]: 'H100' is not a known model of a GPU. Similar ones are NVIDIA H100," in host.refused(
        runs["model"])
    assert "image_gpus: nothing determines the driver of the image." in host.refused(runs["nothing"])
    assert "licence.token: an image must not contain a secret." in host.refused(runs["token"])
    site = user.playbook("site", host.lab.hosts, "--limit", host.name, gpu_disruption="never")
    assert site.rc != 0 and "use the role driver with driver_image: true" in site.output
    assert host.state() == clean
    host.left("bare")
