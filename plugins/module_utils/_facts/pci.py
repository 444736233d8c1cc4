# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the PCI bus in sysfs: GPUs, NVSwitches, Mellanox adapters, vGPU guests. Needs no driver. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

NVIDIA = "10de"
MELLANOX = "15b3"
# PCI classes (base class and subclass) of NVIDIA's functions.
GPU_CLASSES = ("0300", "0302")
SWITCH_CLASS = "0680"
_DEVICES = "/sys/bus/pci/devices"

# PCI Local Bus Specification: status register and its "capabilities list" bit, first pointer, vendor-specific id.
_STATUS, _HAS_LIST, _FIRST, _VENDOR_SPECIFIC = 0x06, 0x10, 0x34, 0x09


class Function(t.NamedTuple):
    """A PCI function. All ids have four lower-case hexadecimal digits; subsystem: C(vendor:device), None if unknown;
    pci_class: base class and subclass (C(0302)); driver: the bound kernel driver, None if there is none."""

    address: str
    vendor: str
    device: str
    subsystem: str | None
    pci_class: str
    driver: str | None


class Bus(t.NamedTuple):
    """NVIDIA's GPUs and NVSwitches on the PCI bus, sorted by address.

    mellanox: whether there is a Mellanox adapter. vgpu: C((version, branch)) of the host's driver in a vGPU guest,
    otherwise None.
    """

    gpus: t.Tuple[Function, ...]
    switches: t.Tuple[Function, ...]
    mellanox: bool
    vgpu: t.Tuple[str, str] | None


def read_bus(root: Root) -> Bus:
    """The devices on the PCI bus, without the virtual functions of a vGPU host, because these are parts of its GPUs."""
    gpus, switches, vgpu, mellanox = [], [], None, False
    for address in root.names(_DEVICES):
        folder = f"{_DEVICES}/{address}"
        vendor = _id(root, folder, "vendor")
        mellanox = mellanox or vendor == MELLANOX
        if vendor != NVIDIA or root.link(f"{folder}/physfn"):
            continue
        function = _function(root, folder, address, vendor)
        if function.pci_class in GPU_CLASSES:
            gpus.append(function)
            vgpu = vgpu or vgpu_host_driver(root.data(f"{folder}/config") or b"")
        elif function.pci_class == SWITCH_CLASS:
            switches.append(function)
    return Bus(tuple(gpus), tuple(switches), mellanox, vgpu)


def _function(root: Root, folder: str, address: str, vendor: str) -> Function:
    board_vendor, board = _id(root, folder, "subsystem_vendor"), _id(root, folder, "subsystem_device")
    driver = root.link(f"{folder}/driver")
    return Function(
        address=address.lower(),
        vendor=vendor,
        device=_id(root, folder, "device"),
        subsystem=f"{board_vendor}:{board}" if board_vendor and board else None,
        pci_class=(root.text(f"{folder}/class") or "0x000000").lower()[2:6],
        driver=driver.rpartition("/")[2] if driver else None,
    )


def _id(root: Root, folder: str, name: str) -> str:
    """Four hex digits of a sysfs id such as C(0x10de); empty if it cannot be read."""
    return (root.text(f"{folder}/{name}") or "").lower().replace("0x", "")


def vgpu_host_driver(config: bytes) -> t.Tuple[str, str] | None:
    """C((version, branch)) of the host's driver, from the configuration space of a vGPU; None for other GPUs.

    A vGPU has a vendor-specific capability with the signature C(VF) after its three header bytes, followed by records
    of (id, length, data). Record 0 has two strings of ten bytes (source: gpu-feature-discovery 0.20, package vgpu).
    """
    if len(config) < 64 or not config[_STATUS] & _HAS_LIST:
        return None
    position = config[_FIRST] & 0xFC
    for _hop in range(48):  # the most capabilities that fit; a damaged list may be a loop
        if position < 64 or position + 3 > len(config):
            return None
        if config[position] == _VENDOR_SPECIFIC:
            found = _vgpu_record(config[position:position + config[position + 2]])
            if found:
                return found
        position = config[position + 1] & 0xFC
    return None


def _vgpu_record(capability: bytes) -> t.Tuple[str, str] | None:
    if capability[3:5] != b"VF":
        return None
    position = 5
    while position + 1 < len(capability) and capability[position] != 0:
        if capability[position + 1] == 0:
            return None
        position += capability[position + 1]
    strings = capability[position + 2:position + 22]
    if len(strings) < 20:
        return None
    version, branch = (part.strip(b"\0").decode("ascii", "replace") for part in (strings[:10], strings[10:]))
    return version, branch
