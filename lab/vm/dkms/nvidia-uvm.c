/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * nvidia-uvm as it is seen from outside: a character device of a major number that the kernel chooses. */
#include "small.h"
#include <linux/export.h>
#include <linux/fs.h>

static int major;
static const struct file_operations devices = {.owner = THIS_MODULE};

int init_module(void) {
    if (!nvidia_add_client()) return -ENODEV;
    major = register_chrdev(0, "nvidia-uvm", &devices);
    return major < 0 ? major : 0;
}

void cleanup_module(void) { unregister_chrdev(major, "nvidia-uvm"); }

DESCRIBE;
