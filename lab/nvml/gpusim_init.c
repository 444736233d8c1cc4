/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gpusim: making a machine, and what its PCI bus shows. */
#include "gpusim.h"
#include "mig.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool bus_taken(const State *s, unsigned bus) {
    char pci[32];
    snprintf(pci, sizeof pci, "00000000:%02X:00.0", bus);
    for (unsigned i = 0; i < s->gpu_count; i++)
        if (!strcmp(s->gpus[i].pci, pci)) return true;
    for (unsigned i = 0; i < s->nvswitch_count; i++)
        if (!strcmp(s->nvswitches[i].pci, pci)) return true;
    return false;
}

static unsigned take_bus(const State *s, unsigned bus) {
    while (bus_taken(s, bus)) bus = (bus + 1) & 0xff;
    return bus;
}

static void add_gpus(State *s, const char *model, unsigned count, bool swapped, const char *seed) {
    const Board *b = board_by_model(model);
    if (!b) {
        char known[256] = "";
        for (unsigned i = 0; i < board_count; i++) {
            strcat(known, " ");
            strcat(known, boards[i].model);
        }
        fail("there is no board \"%s\"; known:%s", model, known);
    }
    for (unsigned i = 0; i < count; i++) {
        if (s->gpu_count == MAX_GPUS) fail("more than %d GPUs on one host", MAX_GPUS);
        Gpu *g = &s->gpus[s->gpu_count];
        char text[128], uuid[37];
        *g = (Gpu){.memory_mib = b->memory_mib, .mig_capable = b->units > 0, .swapped = swapped || b->swapped, .board = b};
        gpu_default_settings(g);
        g->ecc_current = g->ecc_pending = 1;   /* data centre boards are shipped with ECC on */
        snprintf(text, sizeof text, "%s/%s/%u", seed, model, i);
        uuid_from(text, '4', uuid);
        snprintf(g->name, sizeof g->name, "%s", b->name);
        snprintf(g->uuid, sizeof g->uuid, "GPU-%s", uuid);
        snprintf(g->serial, sizeof g->serial, "165%010llu", strtoull(uuid + 24, NULL, 16) % 10000000000ull);
        snprintf(g->pci, sizeof g->pci, "00000000:%02X:00.0", take_bus(s, b->buses[i % 8]));
        s->gpu_count++;
    }
    /* Baseboards with eight GPUs carry the switches; smaller hosts have bridges or nothing. */
    for (unsigned i = 0; count >= 8 && i < b->nvswitch_count && s->nvswitch_count < MAX_NVSWITCHES; i++) {
        NvSwitch *n = &s->nvswitches[s->nvswitch_count];
        snprintf(n->pci, sizeof n->pci, "00000000:%02X:00.0", take_bus(s, b->nvswitch_buses[i]));
        n->device = b->nvswitch_device;
        s->nvswitch_count++;
    }
}

static int by_address(const void *a, const void *b) { return strcmp(((const Gpu *)a)->pci, ((const Gpu *)b)->pci); }

void command_init(int argc, char **argv) {
    static State s;
    const char *seed = "gpusim";
    snprintf(s.driver, sizeof s.driver, "595.91.07");
    s.fabric = 3;
    for (int i = 0; i < argc; i++) {
        char model[32] = "", option[16] = "";
        unsigned count = 0;
        if (!strcmp(argv[i], "--driver") && i + 1 < argc) {
            i++;
            snprintf(s.driver, sizeof s.driver, "%s", strcmp(argv[i], "none") ? argv[i] : "");
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            seed = argv[++i];
        } else if (sscanf(argv[i], "%31[^=:]:%15[^=]=%u", model, option, &count) == 3 && !strcmp(option, "swapped")) {
            add_gpus(&s, model, count, true, seed);
        } else if (sscanf(argv[i], "%31[^=:]=%u", model, &count) == 2) {
            add_gpus(&s, model, count, false, seed);
        } else {
            fail("\"%s\" is not MODEL[:swapped]=COUNT, --driver VERSION|none or --seed TEXT", argv[i]);
        }
    }
    qsort(s.gpus, s.gpu_count, sizeof *s.gpus, by_address);   /* NVML's and the module's order */
    for (unsigned i = 0; i < s.gpu_count; i++) s.gpus[i].minor = i;
    check(state_create(&s));
}

void command_load(const char *path) {
    static State s;
    FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
    if (!f) fail("%s: %s", path, strerror(errno));
    static char text[1 << 18];
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    check(state_parse(&s, text));
    check(state_create(&s));
}

static void pci_line(const char *pci, unsigned device, unsigned class, unsigned sub_vendor, unsigned sub_device) {
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(pci, "%x:%x:%x", &domain, &bus, &slot);
    printf("%04x:%02x:%02x.0\t0x10de\t0x%04x\t0x%06x\t0x%04x\t0x%04x", domain, bus, slot, device, class, sub_vendor, sub_device);
}

/* A GPU that has fallen off the bus is not listed. */
void command_pci(const State *s) {
    for (unsigned i = 0; i < s->gpu_count; i++) {
        const Gpu *g = &s->gpus[i];
        if (fault_find(s, "off-bus", (int)i)) continue;
        pci_line(g->pci, g->board->device, 0x030200, g->board->subsystem_vendor, g->board->subsystem_device);
        printf("\tgpu\t%u\t%s\t%s\t%s\n", g->minor, g->uuid, g->board->vbios, g->name);
    }
    for (unsigned i = 0; i < s->nvswitch_count; i++) {
        pci_line(s->nvswitches[i].pci, s->nvswitches[i].device, 0x068000, 0x10de, 0x10de);
        printf("\tnvswitch\t%u\t-\t-\t-\n", i);
    }
}

/* The whole of /proc/driver/nvidia-caps/mig-minors: the same on every host, whatever GPUs it has (32 GPUs, 15 GPU
 * instance ids, 8 compute instances each; NVIDIA MIG User Guide, "Device nodes and capabilities"). */
void command_caps(void) {
    unsigned minor = 3;
    puts("config 1\nmonitor 2");
    for (unsigned gpu = 0; gpu < 32; gpu++)
        for (unsigned gi = 0; gi < 15; gi++) {
            printf("gpu%u/gi%u/access %u\n", gpu, gi, minor++);
            for (unsigned ci = 0; ci < 8; ci++) printf("gpu%u/gi%u/ci%u/access %u\n", gpu, gi, ci, minor++);
        }
}

/* Kernel documentation, ABI/testing/dev-kmsg: priority,sequence,microseconds since boot,flag;text. One record a second. */
void command_kmsg(const State *s) {
    unsigned record = 0;
    for (unsigned i = 0; i < s->fault_count; i++) {
        const Fault *f = &s->faults[i];
        if (strcmp(f->name, "xid")) continue;
        for (unsigned gpu = 0; gpu < s->gpu_count; gpu++) {
            unsigned domain = 0, bus = 0, slot = 0;
            sscanf(s->gpus[gpu].pci, "%x:%x:%x", &domain, &bus, &slot);
            for (long n = 0; (f->gpu == ALL_GPUS || f->gpu == (int)gpu) && n < (f->code ? f->code : 1); n++, record++)
                printf("3,%u,%u,-;NVRM: Xid (PCI:%04x:%02x:%02x): %ld, pid=4711, name=python3\n", record, (record + 1) * 1000000,
                       domain, bus, slot, f->value);
        }
    }
}
