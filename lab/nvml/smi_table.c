/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi without arguments: the table that people know. */
#include "smi.h"
#include <string.h>
#include <time.h>

static void head(void) {
    char driver[80] = "N/A", when[64] = "";
    int cuda = 0;
    time_t now = time(NULL);
    nv.driver_version(driver, sizeof driver);
    nv.cuda_version(&cuda);
    strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime(&now));
    printf("%s       \n", when);
    puts("+-----------------------------------------------------------------------------------------+");
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %2d.%-5d |\n", driver, driver, cuda / 1000, cuda % 1000 / 10);
    puts("|-----------------------------------------+------------------------+----------------------+\n"
         "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
         "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
         "|                                         |                        |               MIG M. |\n"
         "|=========================================+========================+======================|");
}

/* A reading, or ERR! as the vendor's table shows for one that fails. */
static void reading(int rc, const char *format, const unsigned *value, unsigned scale, char out[16]) {
    snprintf(out, 16, rc == NOT_SUPPORTED ? "N/A" : rc ? "ERR!" : format, *value / scale);
}

static void one_gpu(const Selected *g) {
    unsigned persistence = 0, temperature = 0, power = 0, limit = 0, pstate = 0, mode = 0, pending = 0;
    unsigned long long ecc = 0;
    MemoryV2 m = {.version = VERSION_WORD(MemoryV2, 2)};
    Utilization u = {0, 0};
    char t[6][16], memory[48] = "N/A";
    nv.persistence(g->handle, &persistence);
    reading(nv.temperature(g->handle, 0, &temperature), "%uC", &temperature, 1, t[0]);
    reading(nv.pstate(g->handle, &pstate), "P%u", &pstate, 1, t[1]);
    reading(nv.power(g->handle, &power), "%uW", &power, 1000, t[2]);
    reading(nv.power_limit(g->handle, &limit), "%uW", &limit, 1000, t[3]);
    reading(nv.utilization(g->handle, &u), "%u%%", &u.gpu, 1, t[4]);
    int rc = nv.ecc_errors(g->handle, 1, 0, &ecc);
    reading(rc, "%u", &(unsigned){(unsigned)ecc}, 1, t[5]);
    if (!nv.memory(g->handle, &m)) snprintf(memory, sizeof memory, "%7lluMiB / %6lluMiB", m.used >> 20, m.total >> 20);
    const char *mig = nv.mig_mode(g->handle, &mode, &pending) ? "N/A" : mode != pending ? (pending ? "Disabled*" : "Enabled*") : mode ? "Enabled" : "Disabled";
    printf("| %3u  %-27.27s    %-3s | %18s %3s | %20s |\n", g->index, g->name, persistence ? "On" : "Off", g->pci.busId, "Off", t[5]);
    printf("| N/A  %5s  %4s %14s / %5s |%23s |%8s      Default |\n", t[0], t[1], t[2], t[3], memory, t[4]);
    printf("|                                         |                        | %20s |\n", mig);
    puts("+-----------------------------------------+------------------------+----------------------+");
}

static unsigned mig_rows(bool print) {
    unsigned found = 0;
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned max = 0;
        if (nv.mig_max(gpus[i].handle, &max)) continue;
        for (unsigned k = 0; k < max; k++) {
            Handle device;
            Attributes a;
            unsigned gi = 0, ci = 0;
            MemoryV2 m = {.version = VERSION_WORD(MemoryV2, 2)};
            if (nv.mig_by_index(gpus[i].handle, k, &device) || nv.attributes(device, &a)) continue;
            found++;
            if (!print) continue;
            nv.mig_gi(device, &gi);
            nv.mig_ci(device, &ci);
            nv.memory(device, &m);
            printf("| %2u   %2u  %2u  %2u   |      %9lluMiB / %5lluMiB    | %3u     0 | %2u  %2u  %3u  %3u  %3u |\n", gpus[i].index, gi, ci, k,
                   m.used >> 20, m.total >> 20, a.multiprocessorCount, a.sharedCopyEngineCount, a.sharedEncoderCount, a.sharedDecoderCount,
                   a.sharedOfaCount, a.sharedJpegCount);
            puts("+------------------+----------------------------------+-----------+-----------------------+");
        }
    }
    return found;
}

static void process_rows(void) {
    unsigned printed = 0;
    for (unsigned i = 0; i < gpu_count; i++) {
        for (int graphics = 0; graphics < 2; graphics++) {
            ProcessInfo rows[64];
            unsigned count = 64;
            if ((graphics ? nv.graphics : nv.compute)(gpus[i].handle, &count, rows)) continue;
            for (unsigned r = 0; r < count; r++, printed++) {
                char name[96] = "[Not Found]", gi[12] = "N/A", ci[12] = "N/A";
                nv.process_name(rows[r].pid, name, sizeof name);
                if (rows[r].gpuInstanceId != 0xffffffffu) snprintf(gi, sizeof gi, "%u", rows[r].gpuInstanceId);
                if (rows[r].computeInstanceId != 0xffffffffu) snprintf(ci, sizeof ci, "%u", rows[r].computeInstanceId);
                printf("| %4u  %3s  %3s %16u %6s   %-34.34s %8lluMiB |\n", gpus[i].index, gi, ci, rows[r].pid, graphics ? "G" : "C", name,
                       rows[r].usedGpuMemory >> 20);
            }
        }
    }
    if (!printed) puts("|  No running processes found                                                             |");
}

int print_table(void) {
    head();
    for (unsigned i = 0; i < gpu_count; i++) one_gpu(&gpus[i]);
    if (mig_rows(false)) {
        puts("\n+-----------------------------------------------------------------------------------------+\n"
             "| MIG devices:                                                                            |\n"
             "+------------------+----------------------------------+-----------+-----------------------+\n"
             "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
             "|      ID  ID  Dev |                                  | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
             "|                  |                                  |        ECC|                       |\n"
             "|==================+==================================+===========+=======================|");
        mig_rows(true);
    }
    puts("\n+-----------------------------------------------------------------------------------------+\n"
         "| Processes:                                                                              |\n"
         "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
         "|        ID   ID                                                               Usage      |\n"
         "|=========================================================================================|");
    process_rows();
    puts("+-----------------------------------------------------------------------------------------+");
    return 0;
}
