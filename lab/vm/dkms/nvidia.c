/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * What users and tools see of nvidia.ko: character devices, /proc/driver/nvidia, parameters, references. The GPUs are
 * those that the lab lists in GPUS, in the place of the PCI bus. */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include "nvidia.h"

#define GPUS "/run/gpulab/gpus" /* a line each: minor, address, UUID, VBIOS, model, with tabs between */
#define MAJOR_NUMBER 195        /* Linux kernel, Documentation/admin-guide/devices.txt */
#define CONTROL_MINOR 255
#define MOST 16

struct gpu {
    char *minor, *address, *uuid, *vbios, *model;
};

static struct gpu gpus[MOST];
static int count;
static char list[4096];
static struct proc_dir_entry *folder;

/* As the vendor's, parameters are shown in /proc/driver/nvidia/params and not in /sys/module. */
#define PARAMETERS(X) \
    X(ModifyDeviceFiles, ModifyDeviceFiles, 1) \
    X(DeviceFileUID, DeviceFileUID, 0) \
    X(DeviceFileGID, DeviceFileGID, 0) \
    X(DeviceFileMode, DeviceFileMode, 438) \
    X(EnableMSI, EnableMSI, 1) \
    X(PreserveVideoMemoryAllocations, PreserveVideoMemoryAllocations, 0) \
    X(RestrictProfilingToAdminUsers, RmProfilingAdminOnly, 1) \
    X(EnableGpuFirmware, EnableGpuFirmware, 18) \
    X(CreateImexChannel0, CreateImexChannel0, 0)
#define DEFINE(name, shown, value) \
    static uint NVreg_##name = value; \
    module_param(NVreg_##name, uint, 0);
PARAMETERS(DEFINE)

static int show_params(struct seq_file *out, void *unused) {
#define SHOW(name, shown, value) seq_printf(out, #shown ": %u\n", NVreg_##name);
    PARAMETERS(SHOW)
    return 0;
}

static int show_version(struct seq_file *out, void *unused) {
    seq_printf(out, "NVRM version: NVIDIA UNIX %s  " RELEASE "  Release Build  (lab@gpuops)\n",
               strcmp(LICENSE, "NVIDIA") ? "Open Kernel Module for x86_64" : "x86_64 Kernel Module");
    seq_puts(out, "GCC version:  gcc version " __VERSION__ "\n");
    return 0;
}

static int show_gpu(struct seq_file *out, void *unused) {
    const struct gpu *gpu = out->private;

    seq_printf(out, "Model: \t\t %s\nIRQ:   \t\t 0\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\n", gpu->model,
               gpu->uuid, gpu->vbios);
    seq_printf(out, "Bus Location: \t %s\nDevice Minor: \t %s\n", gpu->address, gpu->minor);
    return 0;
}

/* The module is held by the file's owner; there is a device for each GPU and the one that controls all. */
static int open_device(struct inode *inode, struct file *file) {
    return iminor(inode) < count || iminor(inode) == CONTROL_MINOR ? 0 : -ENODEV;
}

static const struct file_operations devices = {.owner = THIS_MODULE, .open = open_device};

static const struct pci_device_id ids[] = {
    {PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0},
    {PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0},
    {},
};
MODULE_DEVICE_TABLE(pci, ids);
static struct pci_driver driver = {.name = "nvidia", .id_table = ids};

static int read_gpus(void) {
    struct file *file = filp_open(GPUS, O_RDONLY, 0);
    char *rest = list, *line;
    loff_t start = 0;

    if (IS_ERR(file)) return PTR_ERR(file);
    kernel_read(file, list, sizeof list - 1, &start);
    filp_close(file, NULL);
    while (count < MOST && (line = strsep(&rest, "\n")) && *line) {
        struct gpu *gpu = &gpus[count++];

        gpu->minor = strsep(&line, "\t");
        gpu->address = strsep(&line, "\t");
        gpu->uuid = strsep(&line, "\t");
        gpu->vbios = strsep(&line, "\t");
        gpu->model = line;
    }
    return count ? 0 : -ENODEV;
}

static int make_proc(void) {
    char path[64];
    int i;

    folder = proc_mkdir("driver/nvidia", NULL);
    if (!folder || !proc_create_single("version", 0444, folder, show_version)
        || !proc_create_single("params", 0444, folder, show_params) || !proc_mkdir("gpus", folder))
        return -ENOMEM;
    for (i = 0; i < count; i++) {
        snprintf(path, sizeof path, "gpus/%s", gpus[i].address);
        if (!proc_mkdir(path, folder)) return -ENOMEM;
        snprintf(path, sizeof path, "gpus/%s/information", gpus[i].address);
        if (!proc_create_single_data(path, 0444, folder, show_gpu, &gpus[i])) return -ENOMEM;
    }
    return 0;
}

int nvidia_add_client(void) { return count; }
EXPORT_SYMBOL(nvidia_add_client);

static int __init start(void) {
    int problem = read_gpus();

    if (problem) {
        pr_err("NVRM: No NVIDIA GPU found.\n");
        return -ENODEV;
    }
    problem = register_chrdev(MAJOR_NUMBER, "nvidia-frontend", &devices);
    if (problem < 0) return problem;
    problem = make_proc();
    if (!problem) problem = pci_register_driver(&driver);
    if (!problem) {
        pr_info("NVRM: loading NVIDIA UNIX Kernel Module  " RELEASE "\n");
        return 0;
    }
    proc_remove(folder);
    unregister_chrdev(MAJOR_NUMBER, "nvidia-frontend");
    return problem;
}

static void __exit stop(void) {
    pci_unregister_driver(&driver);
    proc_remove(folder);
    unregister_chrdev(MAJOR_NUMBER, "nvidia-frontend");
}

module_init(start);
module_exit(stop);
MODULE_LICENSE(LICENSE);
MODULE_VERSION(RELEASE);
MODULE_DESCRIPTION("stand-in of the lab");
