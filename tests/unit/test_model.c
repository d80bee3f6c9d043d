/* Inventories: expansion, totals, ties, aliases, flows, errors with positions; adapters; checkpoint headers. */
#include "model/model.h"

#include "base/vec.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ls_arena arena;
static struct ls_names *names;
static struct ls_error err;
static struct ls_model m;
static char folder[300];

static void setup(void)
{
    ls_arena_init(&arena, 0);
    names = ls_names_open();
    folder[0] = 0;
}

static void remove_folder(void)
{
    static const char *const files[] = { "model.safetensors", "model.safetensors.index.json", "config.json", "a.safetensors",
                                         "b.safetensors", "flow.yaml" };
    char path[400];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void teardown(void)
{
    ls_names_close(names);
    ls_arena_release(&arena);
    if (folder[0])
        remove_folder();
}

TestSuite(model, .init = setup, .fini = teardown);

static enum ls_code read_text(const char *text)
{
    const struct ls_yaml_node *node = NULL;
    err = (struct ls_error){ 0 };
    cr_assert_eq(ls_yaml_load_text(text, strlen(text), "m.yaml", &arena, &node, &err), LS_OK, "%s", err.text);
    return ls_model_read(node, &arena, names, &m, &err);
}

static void good(const char *text)
{
    enum ls_code rc = read_text(text);
    cr_assert_eq(rc, LS_OK, "%zu:%zu: %s", err.input.line, err.input.column, err.text);
}

static void bad(const char *text, size_t line, size_t column, const char *message, const char *hint)
{
    cr_assert_eq(read_text(text), LS_EINPUT, "accepted: %.100s", text);
    cr_assert(strstr(err.text, message), "'%s' is not in '%s'", message, err.text);
    cr_assert(err.input.line == line && err.input.column == column, "at %zu:%zu, not %zu:%zu: %s", err.input.line, err.input.column,
              line, column, err.text);
    if (hint)
        cr_assert_str_eq(err.hint, hint);
}

static const char *name_of(uint32_t id) { return ls_name_text(names, id); }

#define HEAD "lockstep_inventory: 1\nname: t\ndtype: f32\n"

Test(model, modules_are_in_pre_order_and_params_follow)
{
    good(HEAD "modules:\n"
              "  class: M\n"
              "  params: {z: [2]}\n"
              "  children:\n"
              "    b: {class: ModuleList, children: {\"0..1\": {class: L, params: {w: [3, 4], b: {shape: [3], dtype: bf16}}}, x: {class: L}}}\n"
              "    a: {class: N, params: {w: [5]}, buffers: {inv: {shape: [7], dtype: i64}}}\n");
    static const char *const module[] = { "", "b", "b.0", "b.1", "b.x", "a" };
    static const char *const param[] = { "z", "b.0.w", "b.0.b", "b.1.w", "b.1.b", "a.w" };
    cr_assert_eq(m.modules, 6);
    cr_assert_eq(m.params, 6);
    for (size_t i = 0; i < 6; i++) {
        cr_assert_str_eq(name_of(m.module[i].name), module[i]);
        cr_assert_str_eq(name_of(m.param[i].name), param[i]);
        cr_assert_eq(ls_model_module(&m, module[i]), i);
        cr_assert_eq(ls_model_param(&m, param[i]), i);
        cr_assert_eq(m.param[i].canonical, i);
    }
    cr_assert_eq(m.module[0].subtree, 6);
    cr_assert_eq(m.module[1].subtree, 4);
    cr_assert_eq(m.module[1].children, 3);
    cr_assert_eq(m.module[1].child[2], 4);
    cr_assert_eq(m.module[0].child[1], 5);
    cr_assert_eq(m.module[1].container, LS_MODULE_LIST);
    cr_assert_eq(m.param[2].dtype, LS_DTYPE_BF16);
    cr_assert_eq(m.param[1].elements, 12);
    cr_assert_eq(m.module[5].buffer[0].elements, 7);
    cr_assert_eq(ls_model_elements(&m), 2 + 12 + 3 + 12 + 3 + 5);
    cr_assert(ls_module_contains(&m, 1, 4) && !ls_module_contains(&m, 1, 5) && ls_module_contains(&m, 1, 1));
    cr_assert_eq(ls_model_module(&m, "b.2"), LS_NO_ID);
    cr_assert_eq(m.param[3].at.line, 8);
}

Test(model, ties_and_aliases)
{
    good(HEAD "parameters: 20\n"
              "modules: {class: M, children: {e: {class: E, params: {weight: [4, 5]}}, h: {class: H, params: {weight: [4, 5]}}}}\n"
              "aliases: {deep.e: e, other: deep.e}\n"
              "ties: [[h.weight, other.weight]]\n");
    cr_assert_eq(m.param[0].canonical, 1, "the first of a tie is canonical");
    cr_assert_eq(m.param[1].canonical, 1);
    cr_assert_eq(ls_model_module(&m, "deep.e"), 1);
    cr_assert_eq(ls_model_param(&m, "other.weight"), 0);
    cr_assert_eq(ls_model_elements(&m), 20);
}

Test(model, alias_of_the_root)
{
    good(HEAD "modules: {class: M, children: {e: {class: E, params: {w: [1]}}}}\naliases: {self: \"\"}\n");
    cr_assert_eq(ls_model_module(&m, "self"), 0);
    cr_assert_eq(ls_model_module(&m, "self.e"), 1);
    cr_assert_eq(ls_model_param(&m, "self.e.w"), 0);
}

Test(model, errors_have_positions)
{
    bad("name: t\nmodules: {class: M}\n", 1, 1, "lockstep_inventory: 1", NULL);
    bad("lockstep_inventory: 2\nname: t\nmodules: {class: M}\n", 1, 21, "lockstep_inventory", NULL);
    bad("lockstep_inventory: 1\nname: t\nmodlues: {class: M}\n", 3, 1, "unknown key 'modlues'", "did you mean 'modules'?");
    bad("lockstep_inventory: 1\nname: t\nmodules: {class: M, params: {w: [1]}}\n", 3, 33, "'w' has no dtype", NULL);
    bad(HEAD "modules: {class: M, params: {w: [1, -2]}}\n", 4, 37, "'w'", NULL);
    bad(HEAD "modules: {class: M, params: {w: [1048576, 1048576, 2]}}\n", 4, 33, "more than 2^40", NULL);
    bad(HEAD "modules: {class: M, params: {w: [0, 1048576, 1048576, 2]}}\n", 4, 33, "more than 2^40", NULL);
    bad(HEAD "modules: {class: M, params: {w: [1, 1, 1, 1, 1, 1, 1]}}\n", 4, 33, "7 dimensions", NULL);
    bad(HEAD "modules: {class: M, params: {w: {shape: [1], dtype: bf61}}}\n", 4, 53, "'dtype'", "did you mean 'bf16'?");
    bad(HEAD "modules: {class: M, params: {a.b: [1]}}\n", 4, 30, "holds a dot", NULL);
    bad(HEAD "modules: {class: M, children: {\"0..1\": {class: L}, \"1\": {class: L}}}\n", 4, 52, "two modules '1'", NULL);
    bad(HEAD "modules: {class: M, params: {a: [1]}, children: {a: {class: L}}}\n", 4, 50, "'a'", NULL);
    bad(HEAD "modules: {class: M, children: {\"3..1\": {class: L}}}\n", 4, 32, "not a range", NULL);
    bad(HEAD "modules: {class: M, children: {\"0..x\": {class: L}}}\n", 4, 32, "not a range", NULL);
    bad(HEAD "parameters: 5\nmodules: {class: M, params: {w: [4]}}\n", 4, 13, "'parameters' is 5, but the modules below have 4", NULL);
    bad(HEAD "modules: {class: M, params: {w: [4], v: [5]}}\nties: [[w, v]]\n", 5, 12, "differ in shape", NULL);
    bad(HEAD "modules: {class: M, params: {w: [4], v: [4]}}\nties: [[w, vv]]\n", 5, 12, "no such parameter", "did you mean 'v'?");
    bad(HEAD "modules: {class: M, params: {w: [4], v: [4]}}\nties: [[w, v], [v, w]]\n", 5, 17, "tied twice", NULL);
    bad(HEAD "modules: {class: M, children: {vision: {class: L, children: {blocks: {class: L}}}}}\naliases: {x: vision.blokcs}\n", 5, 14,
        "no such module", "did you mean 'vision.blocks'?");
    bad(HEAD "modules: {class: M, children: {a: {class: L}}}\naliases: {a: a}\n", 5, 11, "module of its own", NULL);
    bad(HEAD "modules: {class: M, children: {a: {class: L}}}\nmultimodal: [{path: b, modality: vision}]\n", 5, 21, "no such module", NULL);
    bad(HEAD "modules: {class: M}\nconditions: {image: {modlaity: vision}}\n", 5, 22, "unknown key", "did you mean 'modality'?");
}

Test(model, size_is_bounded)
{
    static char text[4096];
    /* 10^8 modules in 100 bytes, and parameters likewise: refused before memory is gone. */
    bad(HEAD "modules: {class: M, children: {\"0..9999\": {class: L, children: {\"0..9999\": {class: L}}}}}\n", 4, 65, "more than 524288 modules", NULL);
    snprintf(text, sizeof text, HEAD "modules: {class: M, children: {\"0..99999\": {class: L, params: {%s}}}}\n",
             "a: [1], b: [1], c: [1], d: [1], e: [1], f: [1], g: [1], h: [1], i: [1], j: [1], k: [1]");
    bad(text, 4, 112, "more than 524288 parameters", NULL);
    /* Statements: three nested each over 1000 items. */
    bad(HEAD "modules: {class: M, children: {l: {class: ModuleList, children: {\"0..999\": {class: L}}}}}\n"
             "flow:\n  inputs: []\n  outputs: []\n  body:\n"
             "    - each: l\n      body:\n        - each: l\n          body:\n            - each: l\n              body: [{call: $}]\n",
        14, 22, "more than 524288 statements", NULL);
    bad(HEAD "modules: {class: M, children: {l: {class: ModuleList, children: {\"0..999\": {class: L}}}}}\n"
             "flow:\n  inputs: []\n  outputs: []\n  body:\n"
             "    - each: l\n      body:\n        - each: l\n          body:\n            - each: l\n              body: [{each: l, body: []}]\n",
        14, 38, "too many statements", NULL);
}

#define VLM                                                                                                                      \
    HEAD "modules:\n"                                                                                                            \
         "  class: M\n"                                                                                                          \
         "  params: {scale: [4]}\n"                                                                                              \
         "  children:\n"                                                                                                         \
         "    t: {class: T, children: {l: {class: ModuleList, children: {\"0..3\": {class: L, params: {w: [2], b: [2]}}}}}}\n"   \
         "    h: {class: Linear, params: {weight: [4, 2]}}\n"                                                                    \
         "conditions: {image: {modality: vision}, video: {modality: vision}}\n"

Test(model, flow_is_expanded_and_resolved)
{
    good(VLM "flow:\n"
             "  inputs: [ids, px]\n"
             "  grad_inputs: [px]\n"
             "  body:\n"
             "    - when: image\n"
             "      body:\n"
             "        - call: t\n"
             "          in: [px]\n"
             "          out: [v, extra]\n"
             "          side: [extra]\n"
             "          pass: [ids]\n"
             "          checkpoint: true\n"
             "          body:\n"
             "            - {op: start, in: [px], out: [v, extra], detach: true}\n"
             "            - each: t.l\n"
             "              items: \"1..2\"\n"
             "              body: [{call: $, in: [v], out: [v], params: [w], entry: run}]\n"
             "    - {unless: [image, video], body: [{op: dummy, out: [v], params: [scale]}]}\n"
             "    - {when: [video], body: [{call: t.l.3, in: [v], out: [v], no_grad: true}]}\n"
             "    - {call: h, in: [v, ids], out: [y]}\n"
             "  outputs: [y, v]\n"
             "  loss: [y]\n");
    const struct ls_flow *f = &m.flow;
    cr_assert(m.has_flow);
    cr_assert_eq(f->count, 4);
    cr_assert_eq(f->body[0].kind, LS_FLOW_WHEN);
    cr_assert(f->body[0].when == 1 && f->body[0].unless == 0 && !f->body[0].once);
    const struct ls_flow *t = &f->body[0].body[0];
    cr_assert_eq(t->module, ls_model_module(&m, "t"));
    cr_assert(t->checkpoint && !t->leaf && t->sides == 1);
    cr_assert_eq(t->ins, 2, "what passes goes in");
    cr_assert_eq(t->outs, 3, "and comes out");
    cr_assert_str_eq(name_of(t->out[2]), "ids");
    cr_assert_eq(t->count, 3);
    cr_assert(t->body[0].kind == LS_FLOW_OP && t->body[0].module == t->module && t->body[0].detach);
    cr_assert_eq(t->body[1].module, ls_model_module(&m, "t.l.1"));
    cr_assert_eq(t->body[2].module, ls_model_module(&m, "t.l.2"));
    cr_assert_eq(t->body[2].params, 1, "params: restricts");
    cr_assert_eq(t->body[2].param[0], ls_model_param(&m, "t.l.2.w"));
    cr_assert_str_eq(name_of(t->body[2].entry), "run");
    cr_assert(f->body[1].unless == 3 && f->body[1].when == 0 && f->body[1].once);
    cr_assert_eq(f->body[1].body[0].param[0], ls_model_param(&m, "scale"), "parameters of an op are relative to the call");
    cr_assert(f->body[2].when == 2 && f->body[2].once, "a list runs once");
    cr_assert(f->body[2].body[0].no_grad);
    cr_assert_eq(f->body[2].body[0].params, 2, "a leaf uses its whole subtree");
    cr_assert_eq(m.grad_inputs, 1);
    cr_assert_eq(m.losses, 1);
    cr_assert_eq(f->outs, 2);
}

Test(model, tied_parameters_are_used_once)
{
    good(HEAD "modules: {class: M, children: {e: {class: E, params: {a: [4], b: [4], c: [4]}}}}\n"
              "ties: [[e.c, e.a]]\n"
              "flow: {inputs: [x], body: [{call: e, in: [x], out: [y]}], outputs: [y], loss: [y]}\n");
    const struct ls_flow *e = &m.flow.body[0];
    cr_assert_eq(e->params, 2);
    cr_assert_eq(e->param[0], 2, "canonical");
    cr_assert_eq(e->param[1], 1);
}

Test(model, flow_errors_have_positions)
{
#define FLOW VLM "flow:\n  inputs: [x]\n  outputs: [y]\n  body:\n"
    bad(FLOW "    - {call: t.m, in: [x], out: [y]}\n", 15, 14, "no such module", NULL);
    bad(FLOW "    - {call: t.l.4, in: [x], out: [y]}\n", 15, 14, "no such module", NULL);
    bad(FLOW "    - {call: $, in: [x], out: [y]}\n", 15, 14, "outside of 'each'", NULL);
    bad(FLOW "    - {calls: h, in: [x], out: [y]}\n", 15, 7, "a statement needs one of", "did you mean 'call'?");
    bad(FLOW "    - {call: h, in: [x], outs: [y]}\n", 15, 26, "unknown key", "did you mean 'out'?");
    bad(FLOW "    - {call: h, in: [pixels], out: [y]}\n", 15, 7, "input 'pixels' is not a value of the call of 'the root'", NULL);
    bad(FLOW "    - {call: h, in: [x], out: [hidden]}\n    - {op: o, in: [hiden], out: [y]}\n", 16, 7, "input 'hiden'", "did you mean 'hidden'?");
    bad(FLOW "    - {call: h, in: [x], out: [z]}\n", 12, 3, "output 'y' is not a value", NULL);
    bad(FLOW "    - {call: t, out: [y], body: [{op: o, in: [x], out: [y]}]}\n", 15, 34, "input 'x' is not a value of the call of 't'", NULL);
    bad(FLOW "    - {call: t, in: [x], out: [y], body: [{op: o, in: [x], out: [z]}]}\n", 15, 7, "output 'y' is not a value of the call of 't'", NULL);
    bad(FLOW "    - {call: t, in: [x], out: [y], params: [], body: []}\n", 15, 44, "'params' is for calls without 'body'", NULL);
    bad(FLOW "    - {call: h, in: [x], out: [y], checkpoint: true}\n", 15, 48, "'checkpoint' is for calls with 'body'", NULL);
    bad(FLOW "    - {call: h, in: [x], out: [y], params: [wieght]}\n", 15, 45, "no such parameter", "did you mean 'h.weight'?");
    bad(FLOW "    - {call: \"\", in: [x], out: [y]}\n", 15, 7, "root module already", NULL);
    bad(FLOW "    - {when: imgae, body: [{call: h, in: [x], out: [y]}]}\n", 15, 14, "not under 'conditions'", "did you mean 'image'?");
    bad(FLOW "    - {when: [], body: [{call: h, in: [x], out: [y]}]}\n", 15, 14, "names no condition", NULL);
    bad(FLOW "    - {when: image, unless: [video], body: []}\n", 15, 29, "two statements", NULL);
    bad(FLOW "    - {each: t.l, items: \"2..4\", body: [{call: $, in: [x], out: [y]}]}\n", 15, 26, "item 't.l.4'", NULL);
    bad(FLOW "    - {each: h, body: [{call: $, in: [x], out: [y]}]}\n", 15, 7, "has no items", NULL);
    bad(FLOW "    - {call: h, in: [x, x], out: [y]}\n", 15, 25, "twice in 'in'", NULL);
    bad(FLOW "    - {call: t, in: [x], out: [y], side: [q], body: [{op: o, in: [x], out: [y]}]}\n", 15, 42, "'side' names 'q'", NULL);
    bad(VLM "flow: {inputs: [x], grad_inputs: [z], body: [], outputs: [x]}\n", 11, 7, "'grad_inputs' names 'z'", NULL);
    bad(VLM "flow: {inputs: [x], body: [], outputs: [x], loss: [z]}\n", 11, 7, "'loss' names 'z'", NULL);
    bad(VLM "flow: {inputs: [x], outputs: [x]}\n", 11, 7, "'flow' has no 'body'", NULL);
}

Test(model, a_value_may_be_absent_on_one_path)
{
    good(VLM "flow: {inputs: [x], outputs: [x], body: [{when: image, body: [{op: o, out: [v]}]}, {call: h, in: [x, v], out: [x]}]}\n");
}

Test(model, real_inventories_load)
{
    static const char *const name[] = { "qwen3_vl_4b", "gemma3_4b", "ministral3_3b", "gemma4_e4b", "gemma4_31b", "qwen2_5_omni_3b" };
    /* Published totals; they are also in the files, where the loader compares them with the shapes. */
    static const uint64_t total[] = { 4437815808, 4300079472, 3849090048, 7941100832, 31273086512, 4703464448 };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/scenarios/models/%s.yaml", LS_SOURCE_DIR, name[i]);
        enum ls_code rc = ls_model_load(path, &arena, names, &m, &err);
        cr_assert_eq(rc, LS_OK, "%s:%zu:%zu: %s", name[i], err.input.line, err.input.column, err.text);
        cr_assert_eq(ls_model_elements(&m), total[i], "%s", name[i]);
        cr_assert(m.has_flow, "%s", name[i]);
    }
}

/* ------------------------------------------------------------------------------------------------- experts */

#define MOE                                                                                                                      \
    HEAD "modules:\n"                                                                                                            \
         "  class: M\n"                                                                                                          \
         "  children:\n"                                                                                                         \
         "    layers:\n"                                                                                                         \
         "      class: ModuleList\n"                                                                                             \
         "      children:\n"                                                                                                     \
         "        \"0\": {class: B, children: {mlp: {class: Linear, params: {weight: [6, 4]}}}}\n"                                \
         "        \"1..2\":\n"                                                                                                   \
         "          class: B\n"                                                                                                  \
         "          children:\n"                                                                                                 \
         "            q_proj: {class: Linear, params: {weight: [4, 4]}}\n"                                                       \
         "            mlp:\n"                                                                                                    \
         "              class: MoE\n"                                                                                            \
         "              children:\n"                                                                                             \
         "                gate: {class: Gate, params: {weight: [4, 4]}, buffers: {bias: [4]}}\n"                                 \
         "                experts: {class: GroupedExperts, params: {up: [4, 4, 6], down: [4, 3, 4]}}\n"

Test(model, experts)
{
    good(MOE "moe: [{modules: layers.*.mlp, count: 4, top_k: 2, gate_bias: bias, bias_update: true}]\n");
    cr_assert_eq(m.moes, 2, "the first layer is dense");
    for (size_t i = 0; i < 2; i++) {
        char fqn[40];
        snprintf(fqn, sizeof fqn, "layers.%zu.mlp.experts", i + 1);
        cr_assert_eq(m.moe[i].experts, ls_model_module(&m, fqn));
        cr_assert_eq(ls_model_moe(&m, m.moe[i].experts), &m.moe[i]);
        cr_assert(m.moe[i].count == 4 && m.moe[i].top_k == 2 && m.moe[i].gate_bias && m.moe[i].bias_update);
    }
    cr_assert_null(ls_model_moe(&m, m.moe[0].gate));
    const char *const target[] = { "q_proj" };
    struct ls_peft peft = { target, 1, 3, LS_DTYPE_BF16, LS_NOWHERE, false };
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK, "%s", err.text);
    cr_assert_eq(m.moe[1].experts, ls_model_module(&m, "layers.2.mlp.experts"), "layers follow");
    cr_assert_eq(m.moe[1].gate, ls_model_module(&m, "layers.2.mlp.gate"));
}

#define STACKED                                                                                                                 \
    HEAD "modules: {class: M, children: {layers: {class: ModuleList, children: {\"0..1\": {class: L, children: {mlp: {class: MoE, " \
         "children: {gate: {class: Gate, params: {weight: [4, 6]}, buffers: {bias: {shape: [4], dtype: f32}}}, "               \
         "experts: {class: GroupedExperts, params: {gate_and_up_projs: [4, 6, 16], down_projs: [4, 8, 6]}}}}}}}}}}\n"          \
         "moe: [{modules: layers.*.mlp, count: 4, top_k: 2, gate_bias: bias, bias_update: true}]\n"                            \
         "flow: {inputs: [x], outputs: [x], body: [{each: layers, body: [{call: $.mlp.gate, in: [x], out: [w]}, "              \
         "{call: $.mlp.experts, in: [x, w], out: [x]}]}]}\n"

/* AutoModel's GroupedExpertsLoRA: one adapter per expert, stacked, in the experts' own module. */
Test(model, adapters_of_experts)
{
    good(STACKED);
    const char *const target[] = { "layers.1.mlp.experts" };
    struct ls_peft peft = { target, 1, 6, LS_DTYPE_NONE, LS_NOWHERE, true };
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK, "%s", err.text);
    static const struct { const char *leaf; uint64_t rows, columns; } want[] = {
        { "gate_and_up_projs", 6, 16 }, { "down_projs", 8, 6 }, { "lora_gate_and_up_A", 6, 3 }, { "lora_gate_and_up_B", 3, 16 },
        { "lora_down_A", 8, 3 }, { "lora_down_B", 3, 6 } };
    const struct ls_module *experts = &m.module[ls_model_module(&m, "layers.1.mlp.experts")];
    cr_assert_eq(experts->params, 6);
    for (size_t i = 0; i < 6; i++) {
        const struct ls_param *p = &m.param[experts->first_param + i];
        cr_assert_str_eq(ls_name_text(names, p->leaf), want[i].leaf);
        cr_assert(p->dims == 3 && p->dim[0] == 4 && p->dim[1] == want[i].rows && p->dim[2] == want[i].columns && p->adapter == (i > 1),
                  "%s", want[i].leaf);
    }
    cr_assert_eq(m.module[ls_model_module(&m, "layers.0.mlp.experts")].params, 2);
    for (size_t i = 0; i < m.statements; i++)
        if (m.statement[i] && m.statement[i]->module == ls_model_module(&m, "layers.1.mlp.experts"))
            cr_assert_eq(m.statement[i]->params, 6, "the call uses its adapters");
    good(STACKED);
    peft.rank = 1;
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "which leaves none"), "%s", err.text);
}

Test(model, fake_gates)
{
    good(STACKED);
    const size_t before = m.params;
    ls_model_fake_gates(&m);
    cr_assert_eq(m.params, before - 2);
    cr_assert_eq(ls_model_param(&m, "layers.0.mlp.gate.weight"), LS_NO_ID);
    for (size_t i = 0; i < m.moes; i++)
        cr_assert(!m.moe[i].gate_bias && !m.moe[i].bias_update && m.module[m.moe[i].gate].params == 0);
    for (uint32_t i = 0; i < m.params; i++) {
        cr_assert_eq(m.param[i].canonical, i);
        cr_assert_eq(ls_model_param(&m, ls_name_text(names, m.param[i].name)), i);
        cr_assert(m.module[m.param[i].module].first_param <= i && i < m.module[m.param[i].module].first_param + m.module[m.param[i].module].params);
    }
    for (size_t i = 0; i < m.statements; i++) {
        const struct ls_flow *f = m.statement[i];
        if (!f || f->kind != LS_FLOW_CALL || !f->leaf)
            continue;
        const bool gate = f->module == m.moe[0].gate || f->module == m.moe[1].gate;
        cr_assert(f->detach == gate && f->params == (gate ? 0 : 2), "%s", ls_name_text(names, m.module[f->module].name));
    }
}

Test(model, experts_that_do_not_fit)
{
    bad(MOE "moe: [{modules: layers.*.mlp, count: 3}]\n", 19, 59, "must be [3, ...]", NULL);
    bad(MOE "moe: [{modules: layers.*.moe, count: 4}]\n", 20, 17, "matches no module that has experts", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4, experts: router}]\n", 20, 17, "matches no module that has experts", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4, gate: router}]\n", 20, 7, "has no gate", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4, gate_bias: b}]\n", 20, 52, "has no buffer 'b'", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4, bias_update: true}]\n", 20, 54, "needs 'gate_bias'", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4, top_k: 5}]\n", 20, 48, "top_k", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp, count: 4}, {modules: layers.1.mlp, count: 4}]\n", 20, 42, "twice", NULL);
    bad(MOE "moe: [{modules: layers.*.mlp}]\n", 20, 7, "has no 'count'", NULL);
    bad(MOE "moe: [{count: 4}]\n", 20, 7, "has no 'modules'", NULL);
}

/* ------------------------------------------------------------------------------------------------- adapters */

#define LORA                                                                                                                     \
    HEAD "modules:\n"                                                                                                            \
         "  class: M\n"                                                                                                          \
         "  children:\n"                                                                                                         \
         "    l: {class: ModuleList, children: {\"0..1\": {class: L, children: {q_proj: {class: Linear, params: {weight: [6, 4], bias: [6]}}, "    \
         "n: {class: Norm, params: {weight: [4]}}}}}}\n"                                                                         \
         "    v: {class: Linear, params: {weight: [6, 4]}}\n"                                                                    \
         "ties: [[l.1.n.weight, l.0.n.weight]]\n"                                                                                \
         "multimodal: [{path: v, modality: vision, role: projector}]\n"                                                          \
         "flow: {inputs: [x], outputs: [x], body: [{each: l, body: [{call: $, in: [x], out: [x]}, {call: $.n, in: [x], out: [x]}]}, "           \
         "{call: l.0.q_proj, in: [x], out: [x], params: [bias]}, {call: v, in: [x], out: [x]}]}\n"

Test(model, adapters)
{
    const char *const target[] = { "q_proj" };
    struct ls_peft peft = { target, 1, 3, LS_DTYPE_BF16, LS_NOWHERE, false };
    good(LORA);
    uint64_t before = ls_model_elements(&m);
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK, "%s", err.text);
    uint32_t a = ls_model_param(&m, "l.0.q_proj.lora_A.weight"), b = ls_model_param(&m, "l.0.q_proj.lora_B.weight");
    cr_assert(a != LS_NO_ID && b == a + 1);
    cr_assert_eq(a, ls_model_param(&m, "l.0.q_proj.bias") + 1, "after the module's own parameters");
    cr_assert(m.param[a].dim[0] == 3 && m.param[a].dim[1] == 4 && m.param[b].dim[0] == 6 && m.param[b].dim[1] == 3);
    cr_assert(m.param[a].adapter && m.param[a].dtype == LS_DTYPE_BF16 && !m.param[0].adapter);
    cr_assert_eq(ls_model_elements(&m), before + 2 * (12 + 18));
    cr_assert_eq(m.param[ls_model_param(&m, "l.0.n.weight")].canonical, ls_model_param(&m, "l.1.n.weight"), "ties follow");
    cr_assert_eq(m.declared[0].module, ls_model_module(&m, "v"), "declarations follow");
    const struct ls_flow *l0 = &m.flow.body[0];
    cr_assert_eq(l0->module, ls_model_module(&m, "l.0"));
    cr_assert_eq(l0->params, 5, "weight, bias, norm and two adapters");
    cr_assert(l0->param[3] == a && l0->param[4] == b);
    cr_assert_eq(m.flow.body[1].params, 1, "the norm has none");
    cr_assert_eq(m.flow.body[4].params, 1, "a leaf that does not use the weight does not use its adapter");
    cr_assert_eq(m.flow.body[5].params, 1);
}

Test(model, adapter_targets)
{
    static const struct { const char *target; size_t adapters; } rows[] = {
        { "q_proj", 4 }, { "l.0.q_proj", 2 }, { "l.*.q_proj", 4 }, { "*_proj", 4 }, { "*.q_proj", 4 }, { "*.1.*", 2 }, { "l.*", 4 }, { "*0*", 2 }, { "*_prox", 0 }, { "v", 2 }, { "0.q_proj", 2 }, { "proj", 0 }, { "n", 0 }, { "*", 6 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ls_peft peft = { &rows[i].target, 1, 3, LS_DTYPE_NONE, LS_NOWHERE, false };
        good(LORA);
        enum ls_code rc = ls_model_add_lora(&m, &peft, &err);
        cr_assert_eq(rc, rows[i].adapters ? LS_OK : LS_EINPUT, "%s", rows[i].target);
        size_t adapters = 0;
        for (size_t k = 0; k < m.params; k++)
            adapters += m.param[k].adapter;
        cr_assert_eq(adapters, rows[i].adapters, "%s: %zu", rows[i].target, adapters);
    }
    const char *const target[] = { "q_porj" };
    struct ls_peft peft = { target, 1, 3, LS_DTYPE_NONE, LS_NOWHERE, false };
    good(LORA);
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_EINPUT);
    cr_assert_str_eq(err.hint, "did you mean 'q_proj'?");
}

/* ------------------------------------------------------------------------------------------------- checkpoints */

static void put(const char *name, const void *data, size_t bytes)
{
    char path[400];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/checkpoint-XXXXXX", LS_BINARY_DIR);
        cr_assert(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, bytes, f) == bytes);
    cr_assert_eq(fclose(f), 0);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A file with this header and so many bytes of data; `claim` replaces the header's length unless it is 0. */
static void put_tensors(const char *name, const char *header, size_t data, uint64_t claim)
{
    struct ls_str s = { 0 };
    uint64_t n = claim ? claim : strlen(header);
    for (int i = 0; i < 8; i++, n >>= 8)
        ls_str_addn(&s, &(char){ (char)(n & 255) }, 1);
    ls_str_add(&s, header);
    for (size_t i = 0; i < data; i++)
        ls_str_addn(&s, "\0", 1);
    put(name, s.text, s.length);
    ls_str_release(&s);
}

static enum ls_code load(const char *flow) { return ls_model_load_checkpoint(folder, flow, &arena, names, &m, &err); }

Test(model, checkpoint_of_one_file)
{
    put_tensors("model.safetensors",
                "{\"__metadata__\":{\"format\":\"pt\"},"
                "\"layers.10.w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                "\"layers.9.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]},"
                "\"layers.9.sub.x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]},"
                "\"layers.9.pos\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[20,28]},"
                "\"embed.weight\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[28,28]},"
                "\"scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[28,32]}}   ",
                32, 0);
    put_text("config.json", "{\"architectures\": [\"ToyForCausalLM\"], \"other\": 1}");
    cr_assert_eq(load(NULL), LS_OK, "%s", err.text);
    static const char *const module[] = { "", "embed", "layers", "layers.9", "layers.9.sub", "layers.10" };
    static const char *const param[] = { "scale", "embed.weight", "layers.9.w", "layers.9.sub.x", "layers.10.w" };
    cr_assert_eq(m.modules, 6);
    cr_assert_eq(m.params, 5);
    for (size_t i = 0; i < 6; i++)
        cr_assert_str_eq(name_of(m.module[i].name), module[i]);
    for (size_t i = 0; i < 5; i++)
        cr_assert_str_eq(name_of(m.param[i].name), param[i]);
    cr_assert_eq(m.module[2].container, LS_MODULE_LIST);
    cr_assert_eq(m.module[3].buffers, 1);
    cr_assert_eq(m.param[4].dtype, LS_DTYPE_BF16);
    cr_assert_eq(m.param[4].dim[1], 3);
    cr_assert_str_eq(name_of(m.architecture), "ToyForCausalLM");
    cr_assert(!m.has_flow);
}

Test(model, checkpoint_with_index_and_flow)
{
    char path[400];
    put_tensors("a.safetensors", "{\"e.w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                                 "\"unused\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]}}", 8, 0);
    put_tensors("b.safetensors", "{\"h.w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, 0);
    put_text("model.safetensors.index.json",
             "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"h.w\":\"b.safetensors\",\"e.w\":\"a.safetensors\"}}");
    put_text("flow.yaml", "ties: [[e.w, h.w]]\nflow: {inputs: [x], body: [{call: e, in: [x], out: [y]}, {call: h, in: [y], out: [y]}], outputs: [y]}\n");
    snprintf(path, sizeof path, "%s/flow.yaml", folder);
    cr_assert_eq(load(path), LS_OK, "%s", err.text);
    cr_assert_eq(m.params, 2);
    cr_assert_eq(m.param[1].canonical, 0);
    cr_assert(m.has_flow && m.losses == 1 && m.flow.body[1].param[0] == 0);
    put_text("flow.yaml", "modules: {class: M}\n");
    cr_assert_eq(load(path), LS_EINPUT);
    cr_assert(strstr(err.text, "unknown key 'modules'"), "%s", err.text);
}

Test(model, damaged_headers)
{
#define T(name, rest) "\"" name "\":{\"dtype\":\"F32\"," rest "}"
    static const struct { const char *header; size_t data; uint64_t claim; const char *message; } rows[] = {
        { "{" T("a", "\"shape\":[2],\"data_offsets\":[0,8]") "," T("b", "\"shape\":[2],\"data_offsets\":[4,12]") "}", 12, 0, "overlap" },
        { "{" T("a", "\"shape\":[2],\"data_offsets\":[0,8]") "," T("b", "\"shape\":[2],\"data_offsets\":[0,8]") "}", 8, 0, "overlap" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[4,8]") "}", 8, 0, "4 bytes before tensor 'a' belong to no tensor" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 8, 0, "4 bytes at the end belong to no tensor" },
        { "{" T("a", "\"shape\":[2],\"data_offsets\":[0,8]") "}", 7, 0, "ends at byte 8 of the data, but the file has 7" },
        { "{" T("a", "\"shape\":[2],\"data_offsets\":[0,4]") "}", 4, 0, "4 bytes of data where its dtype and shape need 8" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[4,0]") "}", 4, 0, "are no range" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[-4,0]") "}", 4, 0, "are no range" },
        { "{" T("a", "\"shape\":[-1],\"data_offsets\":[0,4]") "}", 4, 0, "a dimension" },
        { "{" T("a", "\"shape\":[1.5],\"data_offsets\":[0,4]") "}", 4, 0, "a dimension" },
        { "{" T("a", "\"shape\":[1099511627776,1099511627776],\"data_offsets\":[0,4]") "}", 4, 0, "more than 2^40" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,18446744073709551616]") "}", 4, 0, "not JSON" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4],\"x\":1") "}", 4, 0, "unknown key 'x'" },
        { "{" T("a", "\"shape\":[1]") "}", 4, 0, "needs a dtype, a shape and two data_offsets" },
        { "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, "'F33'" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "," T("a", "\"shape\":[1],\"data_offsets\":[4,8]") "}", 8, 0, "not JSON: duplicate" },
        { "{\"a\": 1}", 0, 0, "is not an object" },
        { "[]", 0, 0, "not a JSON object" },
        { "{", 0, 0, "not JSON" },
        { "{}", 0, 0, "no tensors" },
        { "{}", 0, 3, "the header says it has 3 bytes, but the file has 10" },
        { "{}", 0, UINT64_MAX, "more than 100000000" },
        { "{" T("a..b", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, 0, "empty or too long part" },
        { "{" T("", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, 0, "1 to 255 characters" },
        { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "," T("a.b", "\"shape\":[1],\"data_offsets\":[4,8]") "}", 8, 0, "'a'" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_tensors("model.safetensors", rows[i].header, rows[i].data, rows[i].claim);
        cr_assert_eq(load(NULL), LS_EINPUT, "accepted: %s", rows[i].header);
        cr_assert(strstr(err.text, rows[i].message), "%s: '%s' is not in '%s'", rows[i].header, rows[i].message, err.text);
        cr_assert(strncmp(err.input.file, folder, strlen(folder)) == 0);
    }
    put("model.safetensors", "1234567", 7);
    cr_assert_eq(load(NULL), LS_EINPUT);
    cr_assert(strstr(err.text, "shorter than the 8 bytes"));
}

Test(model, damaged_indices)
{
    static const struct { const char *text, *message; } rows[] = {
        { "{\"weight_map\":{\"a\":\"../a.safetensors\"}}", "not a plain one" },
        { "{\"weight_map\":{\"a\":\".hidden\"}}", "not a plain one" },
        { "{\"weight_map\":{\"a\":7}}", "not a plain one" },
        { "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}}", "places 2 tensors in 'a.safetensors', which has 1 of them" },
        { "{\"weight_map\":{\"a\":\"b.safetensors\"}}", "cannot open the file" },
        { "{\"weight_map\":{}}", "no 'weight_map'" },
        { "{\"weight_map\":[]}", "no 'weight_map'" },
        { "[1]", "no 'weight_map'" },
        { "{", "not JSON" },
        { "{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"a.safetensors\"}}", "not JSON: duplicate" },
    };
    put_tensors("a.safetensors", "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text("model.safetensors.index.json", rows[i].text);
        cr_assert_eq(load(NULL), LS_EINPUT, "accepted: %s", rows[i].text);
        cr_assert(strstr(err.text, rows[i].message), "%s: '%s' is not in '%s'", rows[i].text, rows[i].message, err.text);
    }
    unlink(ls_arena_printf(&arena, "%s/model.safetensors.index.json", folder));
    cr_assert_eq(load(NULL), LS_EINPUT);
    cr_assert(strstr(err.text, "neither model.safetensors.index.json nor model.safetensors"), "%s", err.text);
}
