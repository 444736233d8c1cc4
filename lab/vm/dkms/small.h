/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * For modules that need little of the kernel: without <linux/module.h> the compiler is done in half the time, which
 * counts where a machine is emulated. */
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/moduleparam.h>
#include "nvidia.h"

int init_module(void);
void cleanup_module(void);

#define DESCRIBE \
    MODULE_INFO(license, LICENSE); \
    MODULE_INFO(version, RELEASE); \
    MODULE_INFO(description, "stand-in of the lab")
