// The page's end of the engine: owns the worker, sends requests, hands out events. `window.app` is this module.

/**
 * @typedef {{id: number, ev: string, [field: string]: any}} AppEvent
 * id 0: the worker itself speaks (boot, lost device); otherwise the request's.
 */

const BOOT_SILENCE_MS = 120_000;
const LAST = new Set(["result", "error"]);

const state = {
  /** @type {Worker | null} */ worker: null,
  isReady: false,
  /** @type {AppError | null} */ fault: null,
  nextId: 1,
  /** @type {Map<number, {resolve: Function, reject: Function, onEvent: Function | undefined}>} */ calls: new Map(),
  /** @type {object[]} */ waiting: [],
  /** @type {Map<string, Set<Function>>} */ listeners: new Map(),
  /** @type {ReturnType<typeof setTimeout> | undefined} */ bootTimer: undefined,
};

/** A failure with a code that stays and a hint that says what to do. */
export class AppError extends Error {
  /** @param {string} code @param {string} message @param {string} [hint] */
  constructor(code, message, hint = "") {
    super(message);
    this.name = "AppError";
    this.code = code;
    this.hint = hint;
  }
}

/** Any thrown value as an AppError. @param {any} error @returns {AppError} */
export function asAppError(error) {
  return error instanceof AppError ? error : new AppError("internal", String(error?.message ?? error));
}

/** Start the worker; calls made before it is ready wait for it. */
export function start() {
  state.fault = null;
  state.isReady = false;
  state.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module", name: "jird" });
  state.worker.onmessage = (message) => receive(message.data);
  state.worker.onmessageerror = () => fail(new AppError("worker_failed", "A message of the worker could not be read.", "Reload the page."));
  state.worker.onerror = (event) => {
    event.preventDefault?.();
    fail(new AppError("worker_failed", `The worker stopped: ${event.message || "it could not be started"}.`, "Reload the page."));
  };
  watchBoot();
}

/** Whether there is a worker, booting or ready. @returns {boolean} */
export function isAlive() {
  return state.worker !== null;
}

/** End the worker, failing what it was doing, and start a new one. */
export function restart() {
  fail(new AppError("aborted", "The engine was started anew."));
  start();
}

/**
 * Ask the engine for something.
 * @param {string} op  init, load, chat, generate, abort, info, unload, bench
 * @param {object} [args]
 * @param {(event: AppEvent) => void} [onEvent]  gets the request's progress and token events
 * @returns {Promise<any> & {id: number}}  the result's value; rejects with an AppError
 */
export function call(op, args = {}, onEvent = undefined) {
  const id = state.nextId++;
  const promise = new Promise((resolve, reject) => {
    if (state.fault) return reject(state.fault);
    state.calls.set(id, { resolve, reject, onEvent });
    const request = { id, op, args };
    if (state.isReady) post(request);
    else state.waiting.push(request);
  });
  return Object.assign(promise, { id });
}

/** Stop a request (all without an id). @param {number} [target] */
export function abort(target) {
  return call("abort", target === undefined ? {} : { target });
}

/** Hear every event of a kind. @param {string} ev @param {(event: AppEvent) => void} fn @returns {() => void} ends it */
export function on(ev, fn) {
  if (!state.listeners.has(ev)) state.listeners.set(ev, new Set());
  state.listeners.get(ev).add(fn);
  return () => state.listeners.get(ev).delete(fn);
}

function post(request) {
  try {
    state.worker.postMessage(request);
  } catch (error) {
    settle({ id: request.id, ev: "error", code: "bad_request", message: `${request.op}: ${error.message}`, hint: "" });
  }
}

/** Tokens come as [id, "token", text, count]; everything else as an object. @param {any} data */
function receive(data) {
  const event = Array.isArray(data) ? { id: data[0], ev: data[1], text: data[2], count: data[3] } : data;
  if (event.ev === "ready") ready();
  if (!state.isReady) watchBoot();
  if (!event.id && event.ev === "error" && !state.isReady) {
    fail(new AppError(event.code, event.message, event.hint));
    return;
  }
  if (LAST.has(event.ev)) settle(event);
  else state.calls.get(event.id)?.onEvent?.(event);
  tell(event);
}

function ready() {
  state.isReady = true;
  clearTimeout(state.bootTimer);
  for (const request of state.waiting.splice(0)) post(request);
}

/** @param {AppEvent} event */
function settle(event) {
  const waiting = state.calls.get(event.id);
  if (!waiting) return;
  state.calls.delete(event.id);
  if (event.ev === "result") waiting.resolve(event.value);
  else waiting.reject(new AppError(event.code, event.message, event.hint));
}

/** The worker is gone: end it and every call. @param {AppError} error */
function fail(error) {
  clearTimeout(state.bootTimer);
  state.worker?.terminate();
  state.worker = null;
  state.isReady = false;
  state.fault = error;
  state.waiting.length = 0;
  for (const id of [...state.calls.keys()]) settle({ id, ev: "error", code: error.code, message: error.message, hint: error.hint });
  tell({ id: 0, ev: "error", code: error.code, message: error.message, hint: error.hint });
}

function watchBoot() {
  clearTimeout(state.bootTimer);
  state.bootTimer = setTimeout(
    () => fail(new AppError("boot_failed", "Python did not start: the worker says nothing.", "Reload the page; another browser may help.")),
    BOOT_SILENCE_MS,
  );
}

/** @param {AppEvent} event */
function tell(event) {
  for (const fn of state.listeners.get(event.ev) ?? []) fn(event);
}

/**
 * The models that come with the page, and the one that is wanted (?model= or the first).
 * @param {string | null} wanted  a name in manifest.json, or a url
 * @returns {Promise<{models: object[], model: object | null}>}
 */
export async function bundled(wanted) {
  let models = [];
  try {
    const answer = await fetch(new URL("manifest.json", document.baseURI));
    if (answer.ok) models = (await answer.json()).models ?? [];
  } catch {
    models = []; // a page without a manifest still opens files
  }
  if (!wanted) return { models, model: models[0] ?? null };
  const named = models.find((m) => m.name === wanted || m.url === wanted);
  const title = wanted.split("/").filter(Boolean).pop() ?? wanted;
  return { models, model: named ?? { name: title, title, url: wanted } };
}

/** Arguments of `load` for an entry of the manifest or of a job. @param {object} model @returns {object} */
export function loadArgs(model) {
  const kept = ["file", "name", "title", "bytes", "sha256", "files", "parts", "context", "in_flight", "window"];
  const args = Object.fromEntries(kept.filter((key) => model[key] !== undefined && model[key] !== null).map((key) => [key, model[key]]));
  if (model.url) args.url = new URL(model.url, document.baseURI).href;
  return args;
}

/** Arguments of `init` from the page's address. @returns {object} */
export function initArgs() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(["limits", "store"].filter((key) => query.get(key)).map((key) => [key, query.get(key)]));
}

window.app = { call, on, abort, start, restart };
