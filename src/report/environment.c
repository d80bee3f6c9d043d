#define _GNU_SOURCE /* sched_getaffinity, getloadavg */
#include "report/compare.h"

#include <cblas.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *processor(struct ls_arena *arena)
{
    char line[512];
    const char *name = NULL;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !name && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (colon && strncmp(line, "model name", 10) == 0)
            name = ls_arena_strn(arena, colon + 1 + strspn(colon + 1, " "), strcspn(colon + 1 + strspn(colon + 1, " "), "\n"));
    }
    if (f)
        fclose(f);
    return name ? name : "unknown processor";
}

void ls_compare_environment(struct ls_arena *arena, struct ls_result *out)
{
    cpu_set_t set;
    struct utsname name;
    CPU_ZERO(&set);
    out->cpu = processor(arena);
    out->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint64_t)CPU_COUNT(&set) : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&out->load, 1) != 1)
        out->load = 0;
    out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->system = uname(&name) == 0 ? ls_arena_printf(arena, "%s %s %s", name.sysname, name.release, name.machine) : "unknown system";
    out->blas = ls_arena_printf(arena, "%s", openblas_get_config());
}
