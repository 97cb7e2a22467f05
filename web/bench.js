// The bench page: load, prefill and decode as figures, one report a leg, the last one with all of them.
//
// ?auto=1          run at once and report
// &model=M         a name in manifest.json or a url (with its parts M.00, M.01, ... where M itself is not there)
// &limits=default  WebGPU's default limits and no features
// &context=N       keys the model is loaded for (default 2048)
// &in_flight=N &window=N   instead of the measured policy
// &prefill=128,512 &decode=256 &at=32   prompt lengths, answer length, and the context before it (&at=32,1700 for two)
// &sweep=in_flight decode again with in_flight 1 to 8 and windows 1, 2, 4

import { asAppError, bundled, call, initArgs, loadArgs, on, start, AppError } from "./app.js";
import { progressReport } from "./job.js";
import { Reporter } from "./report.js";

const LEG_SECONDS = 20;
const SWEEP_SECONDS = 8;
const SWEEP_IN_FLIGHT = [1, 2, 3, 4, 6, 8];
const SWEEP_WINDOW = [1, 2, 4];

const query = new URLSearchParams(location.search);
const numbers = (key, standard) => (query.get(key) ?? standard).split(",").filter(Boolean).map(Number);
const $ = (id) => document.getElementById(id);
const reporter = new Reporter();
const figures = {};

async function main() {
  on("progress", (event) => {
    $("state").textContent = event.stage;
    if (query.has("auto")) reporter.add(progressReport(event));
  });
  $("start").addEventListener("click", () => run());
  if (query.has("auto")) await run();
}

async function run() {
  $("start").disabled = true;
  $("rows").replaceChildren();
  try {
    const model = await wantedModel();
    await load(model);
    for (const tokens of numbers("prefill", "128,512")) await prefill(tokens);
    for (const context of numbers("at", "32")) await decode(`decode_at_${context}`, context, {}, LEG_SECONDS);
    await profile();
    if (query.get("sweep") === "in_flight") await sweep();
    $("state").textContent = "done";
    if (query.has("auto")) await reporter.end({ ev: "result", ...figures, done: true });
  } catch (error) {
    const { code, message, hint } = asAppError(error);
    $("state").textContent = `${message} ${hint}`;
    if (query.has("auto")) await reporter.end({ ev: "error", error: code, code, message, hint, ...figures, done: true });
  }
}

/** The job's model where the server has a job, else that of ?model=. */
async function wantedModel() {
  const answer = await fetch(new URL("job", document.baseURI));
  const job = answer.ok ? await answer.json().catch(() => null) : null;
  const model = job?.model ?? (await bundled(query.get("model"))).model;
  if (!model) throw new AppError("bad_request", "No model: the manifest names none and ?model= is missing.");
  return model;
}

async function load(model) {
  start();
  const device = await call("init", initArgs());
  const boot_ms = performance.now();
  const engine = {};
  for (const key of ["context", "in_flight", "window"]) if (query.has(key)) engine[key] = Number(query.get(key));
  const loaded = await call("load", { ...loadArgs(model), ...engine });
  Object.assign(figures, { adapter: device.adapter, features: device.features, limits: query.get("limits") ?? "adapter", model: model.name });
  const { load_ms, bytes_loaded, dispatches_per_token, weight_bytes, gpu_bytes } = loaded;
  const stages = Object.fromEntries(Object.entries(loaded).filter(([key]) => /^(plan|selftest|weights|pipelines)_ms$/.test(key)));
  tell("load", { leg: "load", ms: load_ms, boot_ms, bytes: bytes_loaded, mb_s: bytes_loaded / 1e3 / load_ms, dispatches_per_token, weight_bytes, gpu_bytes, ...stages });
}

async function prefill(tokens) {
  const leg = await call("bench", { leg: "prefill", tokens, seconds: LEG_SECONDS });
  tell(`prefill_${tokens}`, { leg: "prefill", ...leg });
}

/** Decode with the wall clock of this thread, from the first token's arrival to the last one's. */
async function decode(name, context, policy, seconds) {
  const [tokens] = numbers("decode", "256");
  const at = [];
  const leg = await call("bench", { leg: "decode", tokens, context, seconds, ...policy }, (event) => event.ev === "token" && at.push(performance.now()));
  at.length = Math.min(at.length, leg.tokens);
  const ms = at.length > 1 ? at.at(-1) - at[0] : null;
  const gaps = at.slice(1).map((time, i) => time - at[i]).sort((a, b) => a - b);
  const gap = (part) => gaps[Math.min(gaps.length - 1, Math.floor(part * gaps.length))] ?? null;
  const page = { ms, tok_s: ms ? ((at.length - 1) / ms) * 1e3 : null, gap_ms: { p10: gap(0.1), p50: gap(0.5), p90: gap(0.9), p99: gap(0.99), max: gap(1) } };
  const result = { leg: "decode", ...leg, worker_tok_s: leg.tok_s, ...page };
  tell(name, result);
  return result;
}

async function profile() {
  const leg = await call("bench", { leg: "profile", seconds: LEG_SECONDS });
  tell("profile", { leg: "profile", tokens: null, ms: leg.has_timestamps ? leg.gpu_us / 1e3 : null, tok_s: null, ...leg });
}

async function sweep() {
  const rows = [];
  for (const window of SWEEP_WINDOW) {
    for (const in_flight of SWEEP_IN_FLIGHT) {
      const { tok_s, gap_ms } = await decode(`in_flight_${in_flight}_window_${window}`, numbers("at", "32")[0], { in_flight, window }, SWEEP_SECONDS);
      rows.push({ in_flight, window, tok_s, gap_p50_ms: gap_ms.p50 });
    }
  }
  figures.sweep = rows;
}

/** One leg into the report, the figures and the table. @param {string} name @param {object} leg */
function tell(name, leg) {
  figures[name] = leg;
  if (query.has("auto")) reporter.add({ ev: "leg", name, ...leg });
  const { tokens, ms, tok_s, leg: _, ...more } = leg;
  const row = document.createElement("tr");
  for (const value of [name, tokens ?? "", round(ms), round(tok_s), words(more)]) {
    row.insertCell().append(String(value));
  }
  $("rows").append(row);
}

/** Figures for a person: name value, name value. @param {object} figures */
function words(figures) {
  const one = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(4)));
    if (Array.isArray(value)) return value.map(one).join(" ");
    return value && typeof value === "object" ? `(${words(value)})` : String(value);
  };
  return Object.entries(figures).map(([key, value]) => `${key} ${one(value)}`).join(", ");
}

const round = (value) => (typeof value === "number" ? value.toFixed(1) : "");

main();
