//!include quant_source
//!include quant_store
// Q8_0: w = d * x with signed x = q - 128, block {d f16, 32 signed bytes}.
const BLOCK: u32 = 32u;
const BYTES: u32 = 34u;
override WG: u32 = 64u;

struct Params {
    src: u32,       // byte offset of the first block in the staging buffer
    rows: u32,
    columns: u32,
    dst_row: u32,   // destination row of row 0 of the tensor
    first: u32,     // row of the tensor that stands at src
    head_dim: u32,  // 0: rows keep their order
}
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> q: array<u32>;   // [dst rows, columns * BITS / 32]
@group(0) @binding(2) var<storage, read_write> sb: array<u32>;  // [dst rows, columns / GROUP], f32 pairs two words each
@group(0) @binding(3) var<uniform> params: Params;

fn store_pair(group: u32, block: u32, k: u32) {
    store_centred_pair(group, half_at(block), 7u);
}

// codes of weights e .. e + 3 of a block
fn codes(block: u32, e: u32) -> u32 {
    return word_at(block + 2u + e) ^ 0x80808080u;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    convert((wg.y * grid.x + wg.x) * WG + local);
}
