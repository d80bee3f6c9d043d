#include "spin.h"

#include "campaign.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool spin_installed(void)
{
    return spin_version()[0] != '\0';
}

const char *spin_version(void)
{
    static char text[128];
    FILE *p = text[0] ? NULL : popen("spin -V 2>/dev/null", "r");
    if (p) {
        if (!fgets(text, sizeof text, p))
            text[0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        (void)pclose(p);
    }
    return text;
}

static bool because(char *why, size_t room, const char *text)
{
    snprintf(why, room, "%s", text);
    return false;
}

static int shell(const char *format, ...)
{
    char command[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return n > 0 && (size_t)n < sizeof command ? system(command) : -1;
}

static bool write_model(const char *folder, const char *model)
{
    char path[256];
    snprintf(path, sizeof path, "%s/m.pml", folder);
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    bool fine = fputs(model, f) >= 0;
    return fclose(f) == 0 && fine;
}

static bool read_output(FILE *p, struct spin_result *out)
{
    char line[512];
    bool states = false, errors = false, complete = true;
    while (fgets(line, sizeof line, p)) {
        const char *at;
        double number;
        if (sscanf(line, "%lf states, stored", &number) == 1 && strstr(line, "states, stored")) {
            out->states = (size_t)number;
            states = true;
        } else if (sscanf(line, "%lf transitions", &number) == 1 && strstr(line, "transitions (")) {
            out->transitions = (size_t)number;
        } else if ((at = strstr(line, "errors: "))) {
            out->errors = (size_t)strtoull(at + strlen("errors: "), NULL, 10);
            errors = true;
            if ((at = strstr(line, "depth reached ")))
                out->depth = (size_t)strtoull(at + strlen("depth reached "), NULL, 10);
        } else if (strstr(line, "total actual memory usage")) {
            out->megabytes = strtod(line, NULL);
        }
        complete = complete && !strstr(line, "max search depth too small") && !strstr(line, "out of memory") && !strstr(line, "VECTORSZ");
    }
    return states && errors && complete;
}

bool spin_run(const char *model, const char *cflags, const char *pan, struct spin_result *out, char *why, size_t why_room)
{
    const char *base = getenv("TMPDIR");
    char folder[128], command[512];
    *out = (struct spin_result){ 0 };
    snprintf(folder, sizeof folder, "%s/lockstep-spin-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder))
        return because(why, why_room, "no temporary folder");
    bool fine = false;
    if (!write_model(folder, model))
        because(why, why_room, "the model could not be written");
    else if (shell("cd %s && spin -a m.pml > log 2>&1", folder) != 0)
        because(why, why_room, "spin -a failed");
    else if (shell("cd %s && cc -w %s -o pan pan.c > log 2>&1", folder, cflags) != 0)
        because(why, why_room, "pan.c did not compile");
    else {
        snprintf(command, sizeof command, "cd %s && ./pan %s 2>&1", folder, pan);
        double start = campaign_clock_s();
        FILE *p = popen(command, "r");
        fine = p && read_output(p, out);
        if (p)
            (void)pclose(p);
        out->seconds = campaign_clock_s() - start;
        if (!fine)
            because(why, why_room, "pan failed, or did not search everything");
    }
    (void)shell("rm -rf %s", folder);
    return fine;
}
