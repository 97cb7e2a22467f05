// The page: one conversation, its composer, the model's progress, errors. Everything shown is a text node.

import { abort, asAppError, bundled, call, initArgs, isAlive, loadArgs, on, restart, start } from "./app.js";
import { progressReport, runJob } from "./job.js";

const STAGES = {
  header: "Reading the model's header",
  plan: "Planning",
  weights: "Loading weights",
  pipelines: "Building kernels",
  selftest: "Checking kernels",
  ready: "Ready",
};
const GPU_GONE = new Set(["device_lost", "out_of_memory"]);
const NO_MODEL = new Set(["failed", "empty"]);
const RATE_WINDOW_MS = 1500;
const FOLLOW_PX = 48;

const $ = (id) => document.getElementById(id);
const page = {
  /** @type {{role: string, content: string}[]} */ messages: [],
  /** @type {object[]} */ models: [],
  /** @type {object | null} */ model: null,
  /** @type {"loading" | "ready" | "failed" | "empty"} */ phase: "loading",
  /** The answer being waited for or written. @type {{id: number | null, isStopped: boolean} | null} */ answer: null,
  /** A message sent before the model was ready. @type {string | null} */ queued: null,
  /** @type {[number, number][]} */ arrived: [],
  epoch: 0,
};

/** Begin: the composer works at once, the engine comes up behind it. */
async function main() {
  wire();
  update();
  if (new URLSearchParams(location.search).has("job")) {
    await runJob((text) => setStatus(text));
    return;
  }
  on("progress", showProgress);
  on("error", (event) => event.id === 0 && engineFailed(asFault(event)));
  start();
  const { models, model } = await bundled(new URLSearchParams(location.search).get("model"));
  page.models = model && !models.includes(model) ? [model, ...models] : models;
  page.model = model;
  listModels();
  if (model) await load(model);
  else {
    page.phase = "empty";
    if (page.queued !== null) takeBack();
    setStatus("Open a model file to begin");
    update();
  }
}

function wire() {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  $("text").addEventListener("input", fitComposer);
  $("stop").addEventListener("click", stop);
  $("new").addEventListener("click", newChat);
  $("retry").addEventListener("click", retry);
  $("model").addEventListener("change", () => load(page.models[$("model").selectedIndex]));
  $("file").addEventListener("change", openFile);
}

// The model

/** Load a model in place of the one that is there. @param {object} model */
async function load(model) {
  const epoch = ++page.epoch;
  page.model = model;
  page.phase = "loading";
  page.arrived = [];
  hideFault();
  showProgress({ stage: "Starting" });
  update();
  try {
    const device = await call("init", initArgs());
    const loaded = await call("load", loadArgs(model));
    if (epoch !== page.epoch) return;
    page.phase = "ready";
    $("progress").hidden = true;
    setStatus(`${loaded.title} on ${device.adapter}${loaded.notice ? `. ${loaded.notice}` : ""}`);
    update();
    if (page.queued !== null) answerQueued();
  } catch (error) {
    if (epoch === page.epoch) engineFailed(asAppError(error));
  }
}

function openFile() {
  const file = $("file").files[0];
  if (!file) return;
  $("file").value = "";
  const model = { file, name: file.name, title: file.name, bytes: file.size };
  page.models.push(model);
  listModels();
  $("model").selectedIndex = page.models.length - 1;
  load(model);
}

function listModels() {
  $("model").replaceChildren(...page.models.map((model) => new Option(model.title || model.name)));
  $("model").selectedIndex = Math.max(0, page.models.indexOf(page.model));
  $("model").hidden = page.models.length === 0;
}

/** Errors that leave no engine behind. @param {{code: string, message: string, hint: string}} error */
function engineFailed(error) {
  page.phase = "failed";
  page.epoch++;
  $("progress").hidden = true;
  setStatus("No model is loaded");
  if (page.queued !== null) takeBack();
  showFault(error);
  update();
}

/** Load again, with a new worker where the old one is gone. */
function retry() {
  hideFault();
  if (page.phase !== "failed") return;
  if (!isAlive()) restart();
  if (page.model) load(page.model);
}

// The conversation

function send() {
  const text = $("text").value.trim();
  if (!text || page.answer || NO_MODEL.has(page.phase)) return;
  hideFault();
  $("text").value = "";
  fitComposer();
  page.messages.push({ role: "user", content: text });
  addTurn("user", text);
  page.answer = { id: null, isStopped: false };
  if (page.phase === "ready") answer();
  else {
    page.queued = text;
    setStatus("Your message is sent when the model is ready");
  }
  update();
}

function answerQueued() {
  page.queued = null;
  answer();
}

async function answer() {
  const mine = page.answer;
  const turn = addTurn("assistant", "");
  turn.element.classList.add("running");
  turn.element.setAttribute("aria-busy", "true");
  $("figures").textContent = "";
  const begin = performance.now();
  const pace = { first: 0, count: 0 };
  const request = call("chat", { messages: page.messages }, (event) => {
    if (event.ev !== "token" || mine.isStopped) return;
    pace.first ||= performance.now();
    pace.count += event.count;
    turn.append(event.text);
    showPace(pace);
  });
  mine.id = request.id;
  try {
    const result = await request;
    page.messages.push({ role: "assistant", content: turn.text() });
    turn.note(summary(result, performance.now() - begin));
  } catch (error) {
    answerFailed(turn, asAppError(error));
  }
  turn.element.classList.remove("running");
  turn.element.removeAttribute("aria-busy");
  if (page.answer === mine) page.answer = null;
  $("figures").textContent = "";
  update();
}

/** @param {object} result @param {number} ms */
function summary(result, ms) {
  const parts = [`${result.ids.length} tokens in ${(ms / 1000).toFixed(1)} s`];
  if (result.decode_tok_s) parts.push(`${rate(result.decode_tok_s)} tok/s`);
  if (result.ttft_ms) parts.push(`first after ${(result.ttft_ms / 1000).toFixed(1)} s`);
  if (result.finish_reason === "abort") parts.push("stopped");
  if (result.finish_reason === "length") parts.push("ended at the length limit");
  return parts.join(" · ");
}

/** A failed answer leaves the conversation as it was before the message, which goes back into the composer. */
function answerFailed(turn, error) {
  if (turn.text()) {
    page.messages.push({ role: "assistant", content: turn.text() });
    turn.note("not finished");
  } else {
    turn.element.remove();
    takeBack();
  }
  if (GPU_GONE.has(error.code)) engineFailed(error);
  else if (page.phase !== "failed") showFault(error);
}

function takeBack() {
  page.queued = null;
  page.answer = null;
  const message = page.messages.pop();
  $("log").lastElementChild?.remove();
  $("empty").hidden = page.messages.length > 0;
  if (!$("text").value) $("text").value = message.content;
  fitComposer();
}

/** Stop the answer: nothing more of it is shown from here on. */
function stop() {
  if (!page.answer) return;
  page.answer.isStopped = true;
  if (page.queued !== null) {
    takeBack();
    setStatus("");
    update();
  } else if (page.answer.id !== null) {
    abort(page.answer.id).catch(() => {});
  }
}

function newChat() {
  stop();
  page.messages = [];
  page.queued = null;
  $("log").replaceChildren();
  $("empty").hidden = false;
  $("figures").textContent = "";
  if (page.phase !== "failed") hideFault();
  $("text").focus();
  update();
}

// What is seen

/** A turn in the log; text is gathered and drawn once a frame. @param {"user" | "assistant"} role @param {string} text */
function addTurn(role, text) {
  const element = document.createElement("div");
  element.className = `turn ${role}`;
  const who = document.createElement("span");
  who.className = "visually-hidden";
  who.textContent = role === "user" ? "You: " : "Model: ";
  const said = document.createElement("div");
  said.className = "said";
  const node = document.createTextNode(text);
  said.append(node);
  element.append(who, said);
  const scroll = $("scroll");
  $("empty").hidden = true;
  $("log").append(element);
  scroll.scrollTop = scroll.scrollHeight;
  let pending = "";
  const draw = () => {
    if (!pending) return;
    const isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < FOLLOW_PX;
    node.appendData(pending);
    pending = "";
    if (isAtEnd) scroll.scrollTop = scroll.scrollHeight;
  };
  return {
    element,
    text: () => node.data + pending,
    append(more) {
      if (!more) return;
      if (!pending) requestAnimationFrame(draw);
      pending += more;
    },
    note(words) {
      draw();
      const note = document.createElement("p");
      note.className = "note";
      note.textContent = words;
      const isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < FOLLOW_PX;
      element.append(note);
      if (isAtEnd) scroll.scrollTop = scroll.scrollHeight;
    },
  };
}

/** @param {{stage: string, done?: number, total?: number, unit?: string}} event */
function showProgress(event) {
  if (page.phase !== "loading") return;
  const { stage, bytes, total } = progressReport(event);
  $("progress").hidden = false;
  $("stage").textContent = STAGES[stage] ?? stage;
  if (total) {
    $("meter").max = total;
    $("meter").value = bytes;
    $("amount").textContent = `${mega(bytes)} of ${mega(total)} MB${byteRate(bytes)}`;
  } else if (event.total > 1) {
    $("meter").max = event.total;
    $("meter").value = event.done;
    $("amount").textContent = `${event.done} of ${event.total}`;
  } else {
    $("meter").removeAttribute("value");
    $("amount").textContent = "";
  }
  if (page.queued === null) setStatus(STAGES[stage] ?? stage);
}

/** Bytes a second over the last moments. @param {number} bytes */
function byteRate(bytes) {
  const now = performance.now();
  page.arrived.push([now, bytes]);
  while (page.arrived.length > 2 && now - page.arrived[0][0] > RATE_WINDOW_MS) page.arrived.shift();
  const [then, before] = page.arrived[0];
  return now - then > 100 && bytes > before ? `, ${mega((bytes - before) / ((now - then) / 1000))} MB/s` : "";
}

function showPace(pace) {
  const seconds = (performance.now() - pace.first) / 1000;
  const figure = pace.count > 1 && seconds > 0 ? `${rate((pace.count - 1) / seconds)} tok/s` : "";
  $("figures").textContent = `${pace.count} tokens ${figure}`;
}

function setStatus(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

/** @param {{message: string, hint: string, code: string}} error */
function showFault(error) {
  $("fault-message").textContent = sentence(error.message);
  $("fault-hint").textContent = error.hint;
  $("fault").dataset.code = error.code;
  $("retry").textContent = page.phase === "failed" ? "Try again" : "Dismiss";
  $("fault").hidden = false;
}

function hideFault() {
  $("fault").hidden = true;
  delete $("fault").dataset.code;
}

function update() {
  const isRunning = page.answer !== null;
  $("stop").hidden = !isRunning;
  $("send").hidden = isRunning;
  $("send").disabled = NO_MODEL.has(page.phase);
  $("model").disabled = $("file").disabled = isRunning || page.phase === "loading";
  document.body.dataset.phase = page.phase;
}

/** The composer grows with its text where the browser has no field-sizing. */
function fitComposer() {
  if (CSS.supports("field-sizing", "content")) return;
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

const mega = (bytes) => (bytes / 1e6).toFixed(1);
const rate = (value) => (value < 100 ? value.toFixed(1) : value.toFixed(0));
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const asFault = ({ code, message, hint }) => ({ code, message, hint });

main().catch((error) => engineFailed(asAppError(error)));
