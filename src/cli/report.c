/* Errors as people and as programs read them. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LINE_MAX_BYTES = 4096, WINDOW = 100 };

const char *ls_style(bool on, enum ls_style style)
{
    static const char *const code[] = {
        "\033[0m", "\033[1m", "\033[31m", "\033[32m", "\033[33m", "\033[36m", "\033[2m"
    };
    return on ? code[style] : "";
}

void ls_print_clean(FILE *out, const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < length;) {
        size_t n = ls_utf8_length((const char *)s + i, length - i);
        /* U+0080 to U+009F are control characters too: some terminals obey them. */
        bool control = n == 1 ? (s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f
                              : n == 2 && s[i] == 0xc2 && s[i + 1] < 0xa0;
        if (n == 0 || control)
            fputc('?', out);
        else
            fwrite(s + i, 1, n, out);
        i += n ? n : 1;
    }
}

/* Line `number` of the file, without its end. False: there is no such line, or reading it could block or surprise. */
static bool read_line(const char *path, size_t number, char *line, size_t room)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    size_t at = 1, length = 0;
    int c;
    while (at < number && (c = getc(f)) != EOF)
        at += c == '\n';
    bool found = false;
    while (at == number && (c = getc(f)) != EOF && c != '\n' && length + 1 < room) {
        line[length++] = c ? (char)c : '?';
        found = true;
    }
    while (length && line[length - 1] == '\r')
        length--;
    line[length] = 0;
    fclose(f);
    return found;
}

/* The line and a caret under the column; long lines are cut around it. */
static void print_excerpt(const struct ls_cli *cli, FILE *out, struct ls_loc at)
{
    char line[LINE_MAX_BYTES];
    if (!read_line(at.file, at.line, line, sizeof line))
        return;
    size_t length = strlen(line), from = 0, caret = 0, column = 1;
    while (caret < length && column < at.column) {
        size_t n = ls_utf8_length(line + caret, length - caret);
        caret += n ? n : 1;
        column++;
    }
    if (length == LINE_MAX_BYTES - 1 && length - caret < WINDOW)
        return; /* the line goes on beyond what was read, perhaps in the middle of a character */
    if (caret > WINDOW * 3 / 4) {
        from = caret - WINDOW / 2;
        while (from < caret && ((unsigned char)line[from] & 0xc0) == 0x80)
            from++;
    }
    size_t shown = length - from > WINDOW ? WINDOW : length - from;
    while (shown && from + shown < length && ((unsigned char)line[from + shown] & 0xc0) == 0x80)
        shown--;
    fprintf(out, "  %s", from ? "..." : "");
    ls_print_clean(out, line + from, shown);
    fprintf(out, "%s\n", from + shown < length ? "..." : "");
    fprintf(out, "  %s", from ? "   " : "");
    for (size_t i = from; i < caret;) {
        size_t n = ls_utf8_length(line + i, length - i);
        fputc(line[i] == '\t' ? '\t' : ' ', out);
        i += n ? n : 1;
    }
    fprintf(out, "%s^%s\n", ls_style(cli->colour_err, LS_GREEN), ls_style(cli->colour_err, LS_PLAIN));
}

void ls_report_text(const struct ls_cli *cli, FILE *out, const struct ls_error *err)
{
    bool colour = cli->colour_err;
    fputs(ls_style(colour, LS_BOLD), out);
    if (err->input.file) {
        ls_print_clean(out, err->input.file, strlen(err->input.file));
        if (err->input.line)
            fprintf(out, ":%zu:%zu", err->input.line, err->input.column);
    } else {
        fprintf(out, "lockstep%s%s", cli->command ? " " : "", cli->command ? cli->command->name : "");
    }
    fprintf(out, ": %serror:%s ", ls_style(colour, LS_RED), ls_style(colour, LS_PLAIN));
    ls_print_clean(out, err->text, strlen(err->text));
    fputc('\n', out);
    if (err->input.file && err->input.line)
        print_excerpt(cli, out, err->input);
    if (err->hint[0]) {
        fprintf(out, "  %shint:%s ", ls_style(colour, LS_CYAN), ls_style(colour, LS_PLAIN));
        ls_print_clean(out, err->hint, strlen(err->hint));
        fputc('\n', out);
    }
}

void ls_report_json(struct ls_json *j, const struct ls_error *err)
{
    ls_json_object(j);
    ls_json_key(j, "code");
    ls_json_int(j, err->code);
    ls_json_add_text(j, "kind", ls_code_text(err->code));
    ls_json_add_text(j, "file", err->input.file);
    ls_json_key(j, "line");
    if (err->input.line)
        ls_json_uint(j, err->input.line);
    else
        ls_json_null(j);
    ls_json_key(j, "column");
    if (err->input.line)
        ls_json_uint(j, err->input.column);
    else
        ls_json_null(j);
    ls_json_add_text(j, "text", err->text);
    ls_json_add_text(j, "hint", err->hint[0] ? err->hint : NULL);
    ls_json_key(j, "source");
    if (err->source.file) {
        struct ls_str source = { 0 };
        ls_str_printf(&source, "%s:%zu", err->source.file, err->source.line);
        ls_json_text(j, ls_str_text(&source));
        ls_str_release(&source);
    } else {
        ls_json_null(j);
    }
    ls_json_end_object(j);
}

void ls_cli_json_open(const struct ls_cli *cli, struct ls_json *j, struct ls_str *text)
{
    ls_json_init(j, text, true);
    ls_json_object(j);
    ls_json_add_uint(j, "version", LS_JSON_VERSION);
    ls_json_add_text(j, "command", cli->command ? cli->command->name : NULL);
}

void ls_cli_json_close(struct ls_json *j)
{
    ls_json_end_object(j);
    ls_str_add(j->out, "\n");
    fwrite(j->out->text, 1, j->out->length, stdout);
    ls_str_release(j->out);
}

int ls_report(const struct ls_cli *cli, const struct ls_error *err)
{
    if (cli->json) {
        struct ls_str text = { 0 };
        struct ls_json j;
        ls_cli_json_open(cli, &j, &text);
        ls_json_key(&j, "error");
        ls_report_json(&j, err);
        ls_cli_json_close(&j);
    } else {
        fflush(stdout); /* what was found before the error comes first on a terminal */
        ls_report_text(cli, stderr, err);
        if (err->code == LS_EUSAGE && cli->command)
            fprintf(stderr, "  usage: lockstep %s%s%s%s\n", cli->command->name,
                    cli->command->options ? " [OPTION...]" : "", cli->command->operands[0] ? " " : "",
                    cli->command->operands);
    }
    return (int)err->code;
}

int ls_usage(const struct ls_cli *cli, const char *format, ...)
{
    struct ls_error err = { 0 };
    char text[sizeof err.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ls_fail(&err, LS_EUSAGE, LS_NOWHERE, "%s", text);
    return ls_report(cli, &err);
}
