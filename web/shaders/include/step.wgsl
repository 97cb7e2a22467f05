// One row of the step buffer (py/jird/kernels/core.py STEP_DTYPE). Bound as `var<uniform> step: array<StepRow, ROWS>`
// where it is read (uniform reads keep control flow uniform), as storage only where it is written.
struct StepRow {
    token: u32,
    position: u32,
    kv_len: u32,   // keys this row sees, its own included
    slot: u32,
    adapter: u32,
    flags: u32,
    draw: u32,     // counter of the random generator
    limit: u32,    // kv_len at which the GPU sets DONE
}
const DONE = 1u;
const MASKED = 2u;
const WANTS_LOGITS = 4u;
const SPLICED = 8u;
const BAD = 16u;

// A row that must write no state.
fn is_idle(flags: u32) -> bool {
    return (flags & (DONE | MASKED)) != 0u;
}
