/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * What modinfo reads of a kernel module, and nothing else: this can be built, installed, listed, never loaded. */
#define INFO(tag, value) \
    static const char tag##_info[] __attribute__((section(".modinfo"), used, aligned(1))) = #tag "=" value

INFO(name, NAME);
INFO(version, VERSION);
INFO(license, LICENSE);
INFO(description, "stand-in of the lab");
INFO(vermagic, "stand-in SMP mod_unload");
