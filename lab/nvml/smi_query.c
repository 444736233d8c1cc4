/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi --query-gpu and --query-compute-apps. */
#include "smi.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { bool header, units; } Format;
typedef struct { const char *name, *alias, *unit; int (*read)(const Selected *g, char *out, size_t size); } Field;

#define NUMBER(name, type, expression, format)                          \
    static int name(const Selected *g, char *out, size_t size) {        \
        type v = {0};                                                   \
        int rc = (expression);                                          \
        if (!rc) snprintf(out, size, format, (v));                      \
        return rc;                                                      \
    }
#define TEXT(name, call)                                                \
    static int name(const Selected *g, char *out, size_t size) { return nv.call(g->handle, out, (unsigned)size); }

static int read_memory(const Selected *g, int what, char *out, size_t size) {
    MemoryV2 m = {.version = VERSION_WORD(MemoryV2, 2)};
    int rc = nv.memory(g->handle, &m);
    unsigned long long v[] = {m.total, m.used, m.free, m.reserved};
    if (!rc) snprintf(out, size, "%llu", v[what] >> 20);
    return rc;
}
static int memory_total(const Selected *g, char *out, size_t size) { return read_memory(g, 0, out, size); }
static int memory_used(const Selected *g, char *out, size_t size) { return read_memory(g, 1, out, size); }
static int memory_free(const Selected *g, char *out, size_t size) { return read_memory(g, 2, out, size); }
static int memory_reserved(const Selected *g, char *out, size_t size) { return read_memory(g, 3, out, size); }

static int pair(int (*call)(Handle, unsigned *, unsigned *), const Selected *g, int which, char *out, size_t size) {
    unsigned v[2] = {0, 0};
    int rc = call(g->handle, &v[0], &v[1]);
    if (!rc) snprintf(out, size, "%s", v[which] ? "Enabled" : "Disabled");
    return rc;
}
static int mig_current(const Selected *g, char *out, size_t size) { return pair(nv.mig_mode, g, 0, out, size); }
static int mig_pending(const Selected *g, char *out, size_t size) { return pair(nv.mig_mode, g, 1, out, size); }
static int ecc_current(const Selected *g, char *out, size_t size) { return pair(nv.ecc, g, 0, out, size); }
static int ecc_pending(const Selected *g, char *out, size_t size) { return pair(nv.ecc, g, 1, out, size); }

static int milliwatts(int (*call)(Handle, unsigned *), const Selected *g, char *out, size_t size) {
    unsigned v = 0;
    int rc = call(g->handle, &v);
    if (!rc) snprintf(out, size, "%u.%02u", v / 1000, v % 1000 / 10);
    return rc;
}
static int power_draw(const Selected *g, char *out, size_t size) { return milliwatts(nv.power, g, out, size); }
static int power_limit(const Selected *g, char *out, size_t size) { return milliwatts(nv.power_limit, g, out, size); }

static int driver_version(const Selected *g, char *out, size_t size) {
    (void)g;
    return nv.driver_version(out, (unsigned)size);
}
static int compute_cap(const Selected *g, char *out, size_t size) {
    int major = 0, minor = 0, rc = nv.capability(g->handle, &major, &minor);
    if (!rc) snprintf(out, size, "%d.%d", major, minor);
    return rc;
}
static int persistence(const Selected *g, char *out, size_t size) {
    unsigned v = 0;
    int rc = nv.persistence(g->handle, &v);
    if (!rc) snprintf(out, size, "%s", v ? "Enabled" : "Disabled");
    return rc;
}
static int index_of(const Selected *g, char *out, size_t size) { return snprintf(out, size, "%u", g->index), 0; }
static int bus_id(const Selected *g, char *out, size_t size) { return snprintf(out, size, "%s", g->pci.busId), 0; }
static int pci_domain(const Selected *g, char *out, size_t size) { return snprintf(out, size, "0x%04X", g->pci.domain), 0; }
static int pci_bus(const Selected *g, char *out, size_t size) { return snprintf(out, size, "0x%02X", g->pci.bus), 0; }
static int pci_slot(const Selected *g, char *out, size_t size) { return snprintf(out, size, "0x%02X", g->pci.device), 0; }
static int pci_device(const Selected *g, char *out, size_t size) { return snprintf(out, size, "0x%08X", g->pci.pciDeviceId), 0; }
static int pci_subsystem(const Selected *g, char *out, size_t size) { return snprintf(out, size, "0x%08X", g->pci.pciSubSystemId), 0; }
static int no_reading(const Selected *g, char *out, size_t size) { return (void)g, (void)out, (void)size, NOT_SUPPORTED; }
static int compute_mode(const Selected *g, char *out, size_t size) {
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned v = 0;
    int rc = nv.compute_mode(g->handle, &v);
    if (!rc) snprintf(out, size, "%s", names[v & 3]);
    return rc;
}
static int count_all(const Selected *g, char *out, size_t size) {
    unsigned n = 0;
    (void)g;
    int rc = nv.count(&n);
    if (!rc) snprintf(out, size, "%u", n);
    return rc;
}
static int timestamp(const Selected *g, char *out, size_t size) {
    time_t now = time(NULL);
    (void)g;
    return strftime(out, size, "%Y/%m/%d %H:%M:%S.000", localtime(&now)) ? 0 : UNKNOWN;
}
TEXT(name_of, name)
TEXT(uuid_of, uuid)
TEXT(serial_of, serial)
TEXT(vbios_of, vbios)
NUMBER(temperature, unsigned, nv.temperature(g->handle, 0, &v), "%u")
NUMBER(pstate, unsigned, nv.pstate(g->handle, &v), "P%u")
NUMBER(ecc_bad, unsigned long long, nv.ecc_errors(g->handle, 1, 0, &v), "%llu")
NUMBER(ecc_mended, unsigned long long, nv.ecc_errors(g->handle, 0, 0, &v), "%llu")
static int utilization(const Selected *g, char *out, size_t size) {
    Utilization u;
    int rc = nv.utilization(g->handle, &u);
    if (!rc) snprintf(out, size, "%u", u.gpu);
    return rc;
}
static int utilization_memory(const Selected *g, char *out, size_t size) {
    Utilization u;
    int rc = nv.utilization(g->handle, &u);
    if (!rc) snprintf(out, size, "%u", u.memory);
    return rc;
}

static const Field gpu_fields[] = {
    {"timestamp", "", "", timestamp}, {"driver_version", "", "", driver_version}, {"count", "", "", count_all}, {"name", "gpu_name", "", name_of},
    {"serial", "gpu_serial", "", serial_of}, {"uuid", "gpu_uuid", "", uuid_of}, {"index", "", "", index_of},
    {"pci.bus_id", "gpu_bus_id", "", bus_id}, {"pci.domain", "", "", pci_domain}, {"pci.bus", "", "", pci_bus}, {"pci.device", "", "", pci_slot},
    {"pci.device_id", "", "", pci_device}, {"pci.sub_device_id", "", "", pci_subsystem}, {"vbios_version", "", "", vbios_of},
    {"persistence_mode", "", "", persistence}, {"compute_mode", "", "", compute_mode}, {"compute_cap", "", "", compute_cap},
    {"memory.total", "", "MiB", memory_total}, {"memory.used", "", "MiB", memory_used}, {"memory.free", "", "MiB", memory_free},
    {"memory.reserved", "", "MiB", memory_reserved}, {"utilization.gpu", "", "%", utilization}, {"utilization.memory", "", "%", utilization_memory},
    {"ecc.mode.current", "", "", ecc_current}, {"ecc.mode.pending", "", "", ecc_pending},
    {"ecc.errors.uncorrected.volatile.total", "", "", ecc_bad}, {"ecc.errors.corrected.volatile.total", "", "", ecc_mended},
    {"temperature.gpu", "", "", temperature}, {"power.draw", "", "W", power_draw}, {"power.limit", "enforced.power.limit", "W", power_limit},
    {"pstate", "", "", pstate}, {"fan.speed", "", "%", no_reading}, {"mig.mode.current", "", "", mig_current}, {"mig.mode.pending", "", "", mig_pending}};

static int read_format(const char *text, Format *out) {
    char copy[64];
    bool csv = false;
    *out = (Format){true, true};
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    for (char *save = NULL, *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        if (!strcmp(word, "noheader"))
            out->header = false;
        else if (!strcmp(word, "nounits"))
            out->units = false;
        else if (!strcmp(word, "csv"))
            csv = true;
    }
    if (!csv) puts("Missing --format switch. Please run 'nvidia-smi -h' for help.");
    return csv ? 0 : 2;
}

static const char *unit_text(const char *unit) { return *unit ? unit : NULL; }

int query_gpu(const char *list, const char *format_text) {
    const Field *chosen[64];
    unsigned n = 0;
    char copy[1024];
    Format format;
    int rc = read_format(format_text, &format);
    if (rc) return rc;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *save = NULL, *word = strtok_r(copy, ", ", &save); word && n < 64; word = strtok_r(NULL, ", ", &save)) {
        chosen[n] = NULL;
        for (unsigned i = 0; i < sizeof gpu_fields / sizeof *gpu_fields; i++)
            if (!strcmp(word, gpu_fields[i].name) || !strcmp(word, gpu_fields[i].alias)) chosen[n] = &gpu_fields[i];
        if (!chosen[n++]) return printf("Field \"%s\" is not a valid field to query.\n\n", word), 2;
    }
    for (unsigned i = 0; format.header && i < n; i++) {
        printf("%s%s", i ? ", " : "", chosen[i]->name);
        if (unit_text(chosen[i]->unit)) printf(" [%s]", chosen[i]->unit);
        if (i + 1 == n) putchar('\n');
    }
    for (unsigned g = 0; g < gpu_count; g++) {
        for (unsigned i = 0; i < n; i++) {
            char text[128] = "";
            int failed = chosen[i]->read(&gpus[g], text, sizeof text);
            if (failed == NOT_SUPPORTED)
                snprintf(text, sizeof text, "[N/A]");
            else if (failed)
                snprintf(text, sizeof text, failed == GPU_IS_LOST ? "[GPU is lost]" : failed == RESET_REQUIRED ? "[GPU requires reset]" : "[Unknown Error]");
            printf("%s%s", i ? ", " : "", text);
            if (!failed && format.units && unit_text(chosen[i]->unit)) printf(" %s", chosen[i]->unit);
        }
        putchar('\n');
    }
    return 0;
}

int query_apps(const char *list, const char *format_text) {
    static const char *const known[][2] = {{"gpu_name", ""}, {"gpu_bus_id", ""}, {"gpu_serial", ""}, {"gpu_uuid", ""}, {"pid", ""}, {"process_name", "name"},
                                           {"used_gpu_memory", "used_memory"}};
    unsigned chosen[16], n = 0;
    char copy[512];
    Format format;
    int rc = read_format(format_text, &format);
    if (rc) return rc;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *save = NULL, *word = strtok_r(copy, ", ", &save); word && n < 16; word = strtok_r(NULL, ", ", &save)) {
        unsigned i = 0;
        while (i < 7 && strcmp(word, known[i][0]) && strcmp(word, known[i][1])) i++;
        if (i == 7) return printf("Field \"%s\" is not a valid field to query.\n\n", word), 2;
        chosen[n++] = i;
    }
    for (unsigned i = 0; format.header && i < n; i++)
        printf("%s%s%s%s", i ? ", " : "", known[chosen[i]][0], chosen[i] == 6 ? " [MiB]" : "", i + 1 == n ? "\n" : "");
    for (unsigned g = 0; g < gpu_count; g++) {
        ProcessInfo rows[64];
        unsigned count = 64;
        if (nv.compute(gpus[g].handle, &count, rows)) continue;
        for (unsigned r = 0; r < count; r++) {
            char serial[32] = "[N/A]", name[96] = "[Not Found]";
            nv.serial(gpus[g].handle, serial, sizeof serial);
            nv.process_name(rows[r].pid, name, sizeof name);
            for (unsigned i = 0; i < n; i++) {
                if (i) fputs(", ", stdout);
                if (chosen[i] == 4)
                    printf("%u", rows[r].pid);
                else if (chosen[i] == 6)
                    printf("%llu%s", rows[r].usedGpuMemory >> 20, format.units ? " MiB" : "");
                else
                    fputs(chosen[i] == 0 ? gpus[g].name : chosen[i] == 1 ? gpus[g].pci.busId : chosen[i] == 2 ? serial : chosen[i] == 3 ? gpus[g].uuid : name, stdout);
            }
            putchar('\n');
        }
    }
    return 0;
}
