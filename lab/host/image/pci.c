/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gpusim pci | pci [DRIVER]: writes the folder of each device below the current one, which is a stand-in for
 * /sys/bus/pci/devices. DRIVER is what drives the GPUs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct device {
    char address[32], kind[16];
    unsigned vendor, device, class, subvendor, subdevice;
};

static void write_file(const char *folder, const char *name, const void *data, size_t size) {
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) {
        perror(path);
        exit(1);
    }
}

static void write_text(const char *folder, const char *name, const char *text) {
    write_file(folder, name, text, strlen(text));
}

static void write_hex(const char *folder, const char *name, int digits, unsigned value) {
    char text[16];
    snprintf(text, sizeof text, "0x%0*x\n", digits, value);
    write_text(folder, name, text);
}

/* The first 64 bytes of a configuration space, little endian, in a space of 256 (PCI Local Bus Specification, 6.1). */
static void write_config(const struct device *d) {
    uint8_t config[256] = {[4] = 0x06, [5] = 0x04, [6] = 0x10, [8] = 0xa1};
    const struct { int at; unsigned value; } words[] = {{0, d->vendor}, {2, d->device}, {44, d->subvendor}, {46, d->subdevice}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        config[words[i].at] = words[i].value & 0xff;
        config[words[i].at + 1] = words[i].value >> 8;
    }
    for (int i = 0; i < 3; i++) config[9 + i] = d->class >> (8 * i) & 0xff;
    write_file(d->address, "config", config, sizeof config);
}

static void write_device(const struct device *d, const char *driver) {
    char text[256], link[128];
    unsigned bus = strtoul(strchr(d->address, ':') + 1, NULL, 16);
    unsigned long start = (unsigned long)bus << 24;
    mkdir(d->address, 0755);
    write_hex(d->address, "vendor", 4, d->vendor);
    write_hex(d->address, "device", 4, d->device);
    write_hex(d->address, "class", 6, d->class);
    write_hex(d->address, "subsystem_vendor", 4, d->subvendor);
    write_hex(d->address, "subsystem_device", 4, d->subdevice);
    write_text(d->address, "revision", "0xa1\n");
    write_text(d->address, "enable", "1\n");
    write_text(d->address, "numa_node", bus >= 128 ? "1\n" : "0\n");
    write_text(d->address, "current_link_speed", "16.0 GT/s PCIe\n");
    write_text(d->address, "current_link_width", "16\n");
    snprintf(text, sizeof text, "0x%016lx 0x%016lx 0x%016x\n", start, start + 0xffffff, 0x40200u);
    write_text(d->address, "resource", text);
    write_config(d);
    char modalias[96];
    snprintf(modalias, sizeof modalias, "pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X\n", d->vendor, d->device,
             d->subvendor, d->subdevice, d->class >> 16 & 0xff, d->class >> 8 & 0xff, d->class & 0xff);
    write_text(d->address, "modalias", modalias);
    if (*driver) {
        snprintf(text, sizeof text, "../../../../bus/pci/drivers/%s", driver);
        snprintf(link, sizeof link, "%s/driver", d->address);
        if (symlink(text, link)) perror(link);
    }
    snprintf(text, sizeof text, "%s%s%sPCI_SLOT_NAME=%s\nMODALIAS=%s", *driver ? "DRIVER=" : "", driver,
             *driver ? "\n" : "", d->address, modalias);
    write_text(d->address, "uevent", text);
}

int main(int argc, char **argv) {
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        struct device d = {0};
        if (sscanf(line, "%31[^\t]\t%x\t%x\t%x\t%x\t%x\t%15[^\t\n]", d.address, &d.vendor, &d.device, &d.class,
                   &d.subvendor, &d.subdevice, d.kind) != 7) {
            fprintf(stderr, "pci: %s", line);
            return 1;
        }
        write_device(&d, argc > 1 && !strcmp(d.kind, "gpu") ? argv[1] : "");
    }
    return 0;
}
