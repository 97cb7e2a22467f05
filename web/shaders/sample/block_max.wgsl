//!include step
//!include sampling
//!include partial_{REDUCE=tree}
// partials[t, b] = (max, lowest id of it, sum exp(logit - max), count not finite) over logits[t, 1024 b .. 1024 b + 1023],
// ids below the slot's vocab only; nothing for idle rows.
// LANES threads share a block, a workgroup does WG / LANES blocks of one row.
override WG: u32 = 256u;
const LANES: u32 = 256u;
const ROWS: u32 = 1u;
const BLOCK: u32 = 1024u;

struct Params {
    T: u32,
    V: u32,
    blocks: u32,
}
@group(0) @binding(0) var<storage, read> logits: array<f32>;             // [T, V]
@group(0) @binding(1) var<storage, read> sampling: array<Sampling>;      // [B]
@group(0) @binding(2) var<storage, read_write> partials: array<Partial>; // [T, blocks]
@group(0) @binding(3) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    if (is_idle(row.flags)) {
        return;
    }
    let block = wg.x * (WG / LANES) + local / LANES;
    let end = min(choices(sampling[row.slot].vocab, params.V), (block + 1u) * BLOCK);
    var part = empty_part();
    for (var id = block * BLOCK + local % LANES; id < end; id += LANES) {
        part = add_logit(part, id, logits[wg.y * params.V + id]);
    }
    let whole = reduce_part(part, local);
    if (local % LANES == 0u && block < params.blocks) {
        partials[wg.y * params.blocks + block] = whole;
    }
}
