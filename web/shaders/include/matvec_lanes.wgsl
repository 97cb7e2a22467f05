// The body of the matvec family where LANES threads share a column: each takes every LANES-th unit of K, then the sums
// are reduced. All reads of weights of ROUNDS units are issued before the first is used (no branch between them: units
// past the end read the last one and count 0). A row's arithmetic and order are the same for every ROWS, so a row never
// depends on its neighbours.
override WG: u32 = 128u;
const LANES: u32 = 32u;    // threads a column, a power of two; WG is a multiple of it
const COLUMNS: u32 = 1u;   // weight rows a thread works on
const ROUNDS: u32 = 1u;    // units a thread reads at once
const ROWS: u32 = 1u;      // rows of x a thread works on

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let lane = local % LANES;
    let first = ((wg.y * groups.x + wg.x) * (WG / LANES) + local / LANES) * OUTPUTS;
    let units = params.K / (4u * UNIT);
    var sums: array<f32, ROWS * COLUMNS>;
    var squares: array<f32, ROWS>;
    for (var base = 0u; base < units; base += LANES * ROUNDS) {
        var q: array<Q, ROUNDS * COLUMNS>;
        var pair: array<vec2f, ROUNDS * COLUMNS>;
        for (var i = 0u; i < ROUNDS; i++) {
            let unit = min(base + i * LANES + lane, units - 1u);
            for (var c = 0u; c < COLUMNS; c++) {
                q[i * COLUMNS + c] = load_unit(weight_row(first, c), unit, units);
                pair[i * COLUMNS + c] = pair_of(weight_row(first, c), unit, units);
            }
        }
        for (var i = 0u; i < ROUNDS; i++) {
            let unit = min(base + i * LANES + lane, units - 1u);
            let counts = f32(base + i * LANES + lane < units);
            for (var r = 0u; r < ROWS; r++) {
                let t = min(wg.z * ROWS + r, params.T - 1u);
                let raw = read_unit((t * params.x_stride + params.x_offset) / 4u + unit * UNIT);
                let weighed = weigh_unit(raw, unit * UNIT);
                let total = sum_unit(weighed) * counts;
                let u = scale_unit(weighed, UNPACK * counts);
                if (NORMED) {
                    squares[r] += square_unit(raw) * counts;
                }
                for (var c = 0u; c < COLUMNS; c++) {
                    sums[r * COLUMNS + c] += meet(pair[i * COLUMNS + c], unpack(q[i * COLUMNS + c]), u, total);
                }
            }
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        var scale = 1.0;
        if (NORMED) {
            scale = norm_scale(reduce(squares[r], local));
        }
        for (var c = 0u; c < COLUMNS; c++) {
            sums[r * COLUMNS + c] = reduce(sums[r * COLUMNS + c], local) * scale;
        }
        let t = wg.z * ROWS + r;
        for (var o = 0u; o < OUTPUTS; o++) {
            let n = first + o;
            if (lane == o % LANES && n < params.N && t < params.T) {
                y[t * params.N + n] = finish(t, n, sums[r * COLUMNS + o], sums[r * COLUMNS + o + COLUMNS - OUTPUTS]);
            }
        }
    }
}
