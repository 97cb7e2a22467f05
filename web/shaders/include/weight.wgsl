// How likely a logit is, in whole numbers, so that every device draws the same id from the same logits.

// No weight from here on: 32 octaves.
const BOTTOM = 0x1fffffu;

// How far a logit lies below the maximum, in 1/65536 octaves of probability: one subtraction, one product, both rounded alike
// everywhere. Logits closer than that tie.
fn depth_of(logit: f32, top: f32, scale: f32) -> u32 {
    return u32(min(min(top - logit, 1e20) * scale, 2097151.0));
}

// floor(r x / 2^16) for x < 2^16
fn scaled(r: u32, x: u32) -> u32 {
    return (r >> 16u) * x + (((r & 0xffffu) * x) >> 16u);
}

// 2^31 * 2^(-depth / 65536), error below 5e-7 of it, never rising; 2^-x = 1 - x (c1 - x (c2 - x (c3 - x (c4 - x c5)))).
fn weight_of(depth: u32) -> u32 {
    let x = depth & 0xffffu;
    var r = 0x00416965u;
    r = 0x0263c2eeu - scaled(r, x);
    r = 0x0e2eee3du - scaled(r, x);
    r = 0x3d7ea866u - scaled(r, x);
    r = 0xb17213b2u - scaled(r, x);
    return (0x80000000u - (scaled(r, x) >> 1u)) >> (depth >> 16u);
}
