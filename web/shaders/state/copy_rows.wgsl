// state[table[i].y] = state[table[i].x], rows of `width` words, bit for bit. No row may be both source and goal, none a goal twice.
override WG: u32 = 64u;

struct Params {
    count: u32,   // rows of the table
    width: u32,   // u32 words of a row
}
@group(0) @binding(0) var<storage, read> table: array<vec2u>;       // [count] (from, to)
@group(0) @binding(1) var<storage, read_write> state: array<u32>;   // [rows, width]
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let c = wg.x * WG + local;
    if (wg.y >= params.count || c >= params.width) {
        return;
    }
    state[table[wg.y].y * params.width + c] = state[table[wg.y].x * params.width + c];
}
