/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * nvidia-uvm as it is seen from outside: a character device of a major number that the kernel chooses. */
#include <linux/fs.h>
#include <linux/module.h>
#include "nvidia.h"

static int major;
static const struct file_operations devices = {.owner = THIS_MODULE};

static int __init start(void) {
    if (!nvidia_add_client()) return -ENODEV;
    major = register_chrdev(0, "nvidia-uvm", &devices);
    return major < 0 ? major : 0;
}

static void __exit stop(void) { unregister_chrdev(major, "nvidia-uvm"); }

module_init(start);
module_exit(stop);
MODULE_LICENSE(LICENSE);
MODULE_VERSION(RELEASE);
MODULE_DESCRIPTION("stand-in of the lab");
