/* Help texts and the man page, from the same tables. */
#include "cli/cli.h"

#include <string.h>

static const char about[] =
    "Lockstep checks, before launch, whether every rank of a sharded training run issues the same collectives in the "
    "same order, whatever each rank's batch holds.";

static const struct ls_example first_steps[] = {
    { "help COMMAND", "what a command does, with examples" },
    { "--version", "the version" },
    { 0 },
};

enum { WIDTH = 100 };

/* Words of `text` from column `at` on, in lines of WIDTH columns that start at column `indent`. */
static void wrap(FILE *out, const char *text, size_t at, size_t indent)
{
    bool first = true;
    while (*text) {
        if (*text == '\n') {
            fputc('\n', out);
            at = 0, first = true;
            text++;
            continue;
        }
        size_t word = strcspn(text, " \n"), spaces = strspn(text + word, " ");
        if (!first && at + 1 + word > WIDTH) {
            fputc('\n', out);
            at = 0, first = true;
        }
        if (first)
            for (; at < indent; at++)
                fputc(' ', out);
        else
            fputc(' ', out), at++;
        fwrite(text, 1, word, out);
        at += word;
        first = false;
        text += word + spaces;
    }
    fputc('\n', out);
}

static void row(FILE *out, const char *left, const char *right, size_t indent)
{
    size_t at = (size_t)fprintf(out, "  %s  ", left);
    wrap(out, right, at, indent);
}

static void print_options(FILE *out, const struct ls_option *o, size_t indent)
{
    for (; o && o->name; o++) {
        struct ls_str left = { 0 };
        ls_str_printf(&left, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        row(out, ls_str_text(&left), o->help, indent);
        ls_str_release(&left);
    }
}

static void print_examples(FILE *out, const struct ls_example *e)
{
    if (e && e->args)
        fputs("\nExamples:\n", out);
    for (; e && e->args; e++)
        fprintf(out, "  lockstep %s\n      %s\n", e->args, e->what);
}

static const struct {
    enum ls_code code;
    const char *text;
} exit_codes[] = {
#define EXIT_ROW(id, value, text) { id, text },
    LS_CODES(EXIT_ROW)
#undef EXIT_ROW
};

/* Summaries carry no full stop in lists; as a sentence they need one, unless they ask. */
static const char *summary_end(const struct ls_command *c)
{
    return c->summary[strlen(c->summary) - 1] == '?' ? "" : ".";
}

static void print_program(FILE *out)
{
    fputs("Usage: lockstep COMMAND [OPTION...] [ARGUMENT...]\n\n", out);
    wrap(out, about, 0, 0);
    fputs("\nCommands:\n", out);
    for (size_t i = 0; ls_commands[i]; i++)
        row(out, ls_commands[i]->name, ls_commands[i]->summary, 14);
    fputs("\nOptions of every command:\n", out);
    print_options(out, ls_global_options, 20);
    fputs("\nExit status:\n", out);
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++)
        fprintf(out, "  %d  %s\n", (int)exit_codes[i].code, exit_codes[i].text);
    print_examples(out, first_steps);
}

void ls_help_print(const struct ls_cli *cli, FILE *out)
{
    const struct ls_command *c = cli->command;
    if (!c) {
        print_program(out);
        return;
    }
    fprintf(out, "Usage: lockstep %s%s%s%s\n\n", c->name, c->options ? " [OPTION...]" : "", c->operands[0] ? " " : "",
            c->operands);
    struct ls_str text = { 0 };
    ls_str_add(&text, c->summary);
    text.text[0] = (char)(text.text[0] >= 'a' && text.text[0] <= 'z' ? text.text[0] - 'a' + 'A' : text.text[0]);
    ls_str_add(&text, summary_end(c));
    wrap(out, ls_str_text(&text), 0, 0);
    ls_str_release(&text);
    if (c->text) {
        fputc('\n', out);
        wrap(out, c->text, 0, 0);
    }
    if (c->options) {
        fputs("\nOptions:\n", out);
        print_options(out, c->options, 20);
    }
    fputs("\nOptions of every command:\n", out);
    print_options(out, ls_global_options, 20);
    print_examples(out, c->examples);
}

/* Text as troff takes it literally. */
static void roff(FILE *out, const char *text)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        start = *text == '\n';
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else
            fputc(*text, out);
    }
}

static void roff_options(FILE *out, const struct ls_option *o)
{
    for (; o && o->name; o++) {
        fputs(".TP\n\\fB\\-\\-", out);
        roff(out, o->name);
        fputs("\\fR", out);
        if (o->value)
            fprintf(out, " \\fI%s\\fR", o->value);
        fputc('\n', out);
        roff(out, o->help);
        fputc('\n', out);
    }
}

static void roff_examples(FILE *out, const struct ls_example *e)
{
    for (; e && e->args; e++) {
        fputs(".TP\n\\fBlockstep ", out);
        roff(out, e->args);
        fputs("\\fR\n", out);
        roff(out, e->what);
        fputc('\n', out);
    }
}

void ls_man_print(FILE *out)
{
    fputs(".\\\" Made by `lockstep help --man`; a test compares the two.\n", out);
    fprintf(out, ".TH LOCKSTEP 1 \"\" \"lockstep %s\" \"User Commands\"\n", LS_VERSION);
    fputs(".SH NAME\nlockstep \\- find collective divergence in sharded multimodal training\n", out);
    fputs(".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n[\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n.SH DESCRIPTION\n", out);
    roff(out, about);
    fputs("\n.SH COMMANDS\n", out);
    for (size_t i = 0; ls_commands[i]; i++) {
        const struct ls_command *c = ls_commands[i];
        fputs(".SS lockstep ", out);
        roff(out, c->name);
        fprintf(out, "%s%s", c->options ? " [OPTION...]" : "", c->operands[0] ? " " : "");
        roff(out, c->operands);
        fputc('\n', out);
        fputc(c->summary[0] >= 'a' && c->summary[0] <= 'z' ? c->summary[0] - 'a' + 'A' : c->summary[0], out);
        roff(out, c->summary + 1);
        fprintf(out, "%s\n", summary_end(c));
        if (c->text) {
            fputs(".PP\n", out);
            for (const char *t = c->text; *t;) { /* an empty line starts a paragraph */
                size_t line = strcspn(t, "\n");
                struct ls_str text = { 0 };
                ls_str_addn(&text, t, line);
                if (line)
                    roff(out, ls_str_text(&text));
                fputs(line ? "\n" : ".PP\n", out);
                ls_str_release(&text);
                t += line + (t[line] == '\n');
            }
        }
        roff_options(out, c->options);
        roff_examples(out, c->examples);
    }
    fputs(".SH OPTIONS OF EVERY COMMAND\n", out);
    roff_options(out, ls_global_options);
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++)
        fprintf(out, ".TP\n%d\n%s\n", (int)exit_codes[i].code, exit_codes[i].text);
    fputs(".SH ENVIRONMENT\n.TP\n\\fBNO_COLOR\\fR\nif set and not empty, no colour unless \\-\\-color asks for it\n",
          out);
}
