// The body of the matmul family with tiles in workgroup memory: a workgroup of 16 x 16 threads makes 16 EACH_T rows of
// 16 EACH_N columns, 16 of K at a time; weights are dequantised once a tile. The next tile is read while this one is used.
const EACH_T: u32 = 4u;   // rows a thread makes, 16 apart; at most 4
const EACH_N: u32 = 4u;   // columns a thread makes, 16 apart; at most 4
const SPAN = 65u;         // vec4f from one K quad to the next: 64, and one against bank conflicts
var<workgroup> tile_x: array<vec4f, 4u * SPAN>;   // [K quad][row]
var<workgroup> tile_w: array<vec4f, 4u * SPAN>;   // [K quad][column]

fn x_at(t: u32, i: u32, quads: u32) -> vec4f {
    if (t < params.T && i < quads) {
        return x[(t * params.x_stride + params.x_offset) / 4u + i];
    }
    return vec4f(0.0);
}

fn w_at(n: u32, i: u32, quads: u32) -> vec4f {
    if (n < params.N && i < quads) {
        return weights_at(n, i, quads);
    }
    return vec4f(0.0);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let first_n = wg.x * 16u * EACH_N;
    let first_t = wg.y * 16u * EACH_T;
    let quads = params.K / 4u;
    let quad = local % 4u;   // what this thread loads: one vec4f of each tile
    let line = local / 4u;
    var next_x = x_at(first_t + line, quad, quads);
    var next_w = w_at(first_n + line, quad, quads);
    var sums: array<array<f32, EACH_N>, EACH_T>;
    for (var i = 0u; i < quads; i += 4u) {
        workgroupBarrier();
        tile_x[quad * SPAN + line] = next_x;
        tile_w[quad * SPAN + line] = next_w;
        workgroupBarrier();
        next_x = x_at(first_t + line, i + 4u + quad, quads);
        next_w = w_at(first_n + line, i + 4u + quad, quads);
        for (var k = 0u; k < 4u; k++) {
            var b: array<vec4f, EACH_N>;
            for (var j = 0u; j < EACH_N; j++) {
                b[j] = tile_w[k * SPAN + local % 16u + 16u * j];
            }
            for (var r = 0u; r < EACH_T; r++) {
                let a = tile_x[k * SPAN + local / 16u + 16u * r];
                for (var j = 0u; j < EACH_N; j++) {
                    sums[r][j] += dot(a, b[j]);
                }
            }
        }
    }
    for (var r = 0u; r < EACH_T; r++) {
        let t = first_t + local / 16u + 16u * r;
        for (var j = 0u; j < EACH_N; j++) {
            let n = first_n + local % 16u + 16u * j;
            if (t < params.T && n < params.N) {
                y[t * params.N + n] = finish(t, n, sums[r][j]);
            }
        }
    }
}
