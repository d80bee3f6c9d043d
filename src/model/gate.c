/* AutoModel's FakeBalancedGate in place of every gate: no parameters, and weights that carry no gradient. */
#include "model/model.h"

#include <string.h>

static bool in_gate(const struct ls_model *m, uint32_t module)
{
    for (size_t i = 0; i < m->moes; i++)
        if (ls_module_contains(m, m->moe[i].gate, module))
            return true;
    return false;
}

static void map_flow(struct ls_model *m, const uint32_t *to, struct ls_flow *f)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->params; i++)
        if (to[f->param[i]] != LS_NO_ID)
            f->param[kept++] = to[f->param[i]];
    f->params = kept;
    for (size_t i = 0; f->kind == LS_FLOW_CALL && i < m->moes; i++)
        f->detach |= f->module == m->moe[i].gate;
    for (size_t i = 0; i < f->count; i++)
        map_flow(m, to, &f->body[i]);
}

void ls_model_fake_gates(struct ls_model *m)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    uint32_t *to = LS_NEW(&scratch, uint32_t, m->params + 1), kept = 0;
    for (uint32_t i = 0, module = 0; module < m->modules; module++) {
        const bool gone = in_gate(m, module);
        struct ls_module *at = &m->module[module];
        at->first_param = kept;
        for (const uint32_t end = i + at->params; i < end; i++)
            to[i] = gone ? LS_NO_ID : kept++;
        if (gone)
            at->params = 0, at->buffers = 0;
    }
    for (uint32_t i = 0; i < m->params; i++)
        if (to[i] != LS_NO_ID) {
            m->param[to[i]] = m->param[i];
            m->param[to[i]].canonical = to[m->param[i].canonical] == LS_NO_ID ? to[i] : to[m->param[i].canonical];
        }
    for (size_t i = 0; i < m->known_names; i++)
        if (m->param_of_name[i] != LS_NO_ID)
            m->param_of_name[i] = to[m->param_of_name[i]];
    m->params = kept;
    for (size_t i = 0; i < m->moes; i++)
        m->moe[i].gate_bias = m->moe[i].bias_update = false;
    if (m->has_flow)
        map_flow(m, to, &m->flow);
    ls_arena_release(&scratch);
}
