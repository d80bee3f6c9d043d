#include "check/certificate.h"

#include <inttypes.h>
#include <stdio.h>

static void words(struct ls_str *out, const char *keyword, const uint32_t *word, size_t count)
{
    ls_str_add(out, keyword);
    for (size_t i = 0; i < count; i++) {
        char digits[16];
        int n = word[i] == LS_NO_ID ? snprintf(digits, sizeof digits, " -") : snprintf(digits, sizeof digits, " %" PRIu32, word[i]);
        ls_str_addn(out, digits, (size_t)n);
    }
}

static const char *const header =
    "# The proof of a `safe: proved` of lockstep check; lockstep-verify accepts or rejects it.\n"
    "# It certifies the proof, not the translation: that the programs, letters, driver and contract below are those of the\n"
    "# scenario is not shown here. It speaks of collectives and of sends and receives inside a replica, at the level given;\n"
    "# gradients, buffers and kernel slots are checked by other means. Format: src/check/certificate.md.\n";

void ls_certificate_print(const struct ls_certificate *c, struct ls_str *out)
{
    static const char *const dims[] = { "one replica", "every dp_replicate >= 2", "every dp_shard >= 2",
                                        "every dp_replicate >= 2 and dp_shard >= 2" };
    static const char *const kind[] = {
#define KIND_NAME(id, name) name,
        LS_CERT_KINDS(KIND_NAME)
#undef KIND_NAME
    };
    ls_str_add(out, "lockstep-certificate 1\n");
    ls_str_add(out, header);
    ls_str_printf(out, "plan \"%s\"\nclaim \"%s, every number of rounds that the driver allows\"\n", c->name, dims[c->dims & 3]);
    ls_str_printf(out, "level %u\ndims %u\nroles %zu\n", c->level, c->dims, c->roles);
    for (size_t i = 0; i < c->letters; i++)
        ls_str_printf(out, "letter %zu \"%s\"\n", i, c->letter_name[i]);
    for (size_t i = 0; i < c->levels; i++) {
        ls_str_printf(out, "contract %zu %u", i, c->tier[i].dims);
        words(out, "", c->tier[i].class_of, c->letters);
        ls_str_add(out, "\n");
    }
    for (size_t i = 0; i < c->nodes; i++) {
        const struct ls_cert_node *n = &c->node[i];
        ls_str_printf(out, "node %zu %u \"%s\"\nnext %zu", i, n->round, n->name, i);
        words(out, "", n->next, n->nexts);
        ls_str_printf(out, "\nallow %zu", i);
        words(out, "", n->letter, n->letters);
        ls_str_add(out, "\n");
    }
    for (size_t i = 0; i < c->comms; i++) {
        ls_str_printf(out, "comm %zu %u", i, c->comm[i].dims);
        words(out, "", c->comm[i].part, c->roles);
        ls_str_printf(out, " \"%s\"\n", c->comm[i].name);
    }
    for (size_t i = 0; i < c->payloads; i++)
        ls_str_printf(out, "payload %zu \"%s\"\n", i, c->payload[i]);
    for (size_t i = 0; i < c->sigs; i++)
        ls_str_printf(out, "sig %zu \"%s\"\n", i, c->sig[i]);
    for (size_t i = 0; i < c->programs; i++) {
        ls_str_printf(out, "program %zu %zu\n", i, c->program[i].ops);
        for (size_t k = 0; k < c->program[i].ops; k++) {
            const struct ls_cert_op *o = &c->program[i].op[k];
            words(out, kind[o->kind], (const uint32_t[]){ o->stream, o->object, o->sig, o->peer, o->fused, o->blocking }, 6);
            ls_str_add(out, "\n");
        }
    }
    ls_str_printf(out, "start %u\n", c->start);
    for (size_t i = 0; i < c->steps; i++) {
        const struct ls_cert_step *s = &c->step[i];
        words(out, "step", (const uint32_t[]){ s->state, s->round, s->letter, s->next }, 4);
        words(out, "", s->program, c->roles);
        ls_str_add(out, "\n");
    }
    for (size_t l = c->levels - 1; l-- > 0;)
        for (size_t i = 0; i < c->sets[l]; i++) {
            ls_str_printf(out, "set%zu %zu", l, i);
            words(out, "", c->set[l][i].member, c->set[l][i].members);
            ls_str_add(out, "\n");
        }
    for (size_t i = 0; i < c->reaches; i++)
        ls_str_printf(out, "reach %u %u\n", c->reach[i].node, c->reach[i].macro);
    for (size_t i = 0; i < c->orders; i++) {
        ls_str_printf(out, "order %zu %u", i, c->order[i].program);
        if (c->order[i].program < c->programs)
            words(out, "", c->order[i].number, c->program[c->order[i].program].ops);
        ls_str_add(out, "\n");
    }
    for (size_t i = 0; i < c->rounds; i++) {
        const struct ls_cert_round *r = &c->round[i];
        words(out, "round", (const uint32_t[]){ r->node, r->macro, r->klass }, 3);
        words(out, "", r->order, r->orders);
        ls_str_add(out, "\n");
    }
    ls_str_add(out, "end\n");
}
