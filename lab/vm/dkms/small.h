/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * For modules that need little of the kernel: without <linux/module.h> the compiler is done in half the time, which
 * counts where a machine is emulated. */
#include <linux/errno.h>
#include <linux/moduleparam.h>
#include "nvidia.h"

int init_module(void);
void cleanup_module(void);

#define DESCRIBE \
    __MODULE_INFO(license, license, LICENSE); \
    __MODULE_INFO(version, version, RELEASE); \
    __MODULE_INFO(description, description, "stand-in of the lab")
