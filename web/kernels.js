// kernels.html: starts the worker in kernel-test mode, shows a row a case, and reports to the runner with ?auto=1;
// ?limits=default, ?only=PREFIX, ?cases=first; ?tune=URL times what the file at URL lists.

import { Reporter } from "./report.js";

const query = new URLSearchParams(location.search);
const isAuto = query.get("auto") === "1";
const state = document.getElementById("state");
const rows = document.getElementById("rows");
const start = document.getElementById("start");
const reporter = new Reporter();

function report(message) {
    if (!isAuto) {
        return;
    }
    if (message.done) {
        reporter.end(message);
    } else {
        reporter.add(message);
    }
}

function row(cells, name) {
    const tr = rows.insertRow();
    tr.className = name;
    for (const text of cells) {
        tr.insertCell().textContent = text;
    }
}

function show(message) {
    if (message.ev === "case") {
        const error = message.max_err === null ? "" : message.max_err.toExponential(1);
        row([message.kernel, message.case, message.ok ? "ok" : "FAILED", error, message.message ?? ""], message.ok ? "ok" : "failed");
    } else if (message.ev === "time") {
        row([message.kernel, `${message.variant} ${message.params} ${message.consts ?? ""}`, message.ok ? `${message.us.toFixed(2)} us` : "FAILED", "", message.message], message.ok ? "ok" : "failed");
    } else if (message.ev === "skip") {
        row([message.kernel, message.case, "skipped", "", message.message], "skipped");
    } else if (message.ev === "progress") {
        state.textContent = message.stage;
    } else if (message.ev === "error") {
        state.textContent = `${message.message} ${message.hint}`;
    } else {
        state.textContent = `${message.passed} passed, ${message.failed} failed, ${message.skipped} skipped on ${message.adapter}`;
    }
}

function take(message, worker) {
    if (message.ev === "error") {
        message = { ...message, done: true };
    }
    show(message);
    report(message);
    if (message.done) {
        worker.terminate();
        start.disabled = false;
    }
}

/** ?tune=URL: a JSON list of {kernel, variant, params, consts} that are checked and timed instead of the cases. */
async function tuneList() {
    const url = query.get("tune");
    return url ? (await fetch(url)).text() : "";
}

async function run() {
    rows.replaceChildren();
    start.disabled = true;
    const worker = new Worker("worker.js?app=kernels_page", { type: "module" });
    worker.onmessage = (event) => take(event.data, worker);
    worker.onerror = (event) => {
        take({ ev: "error", code: "boot_failed", message: `The worker failed: ${event.message ?? "worker.js cannot be loaded"}`, hint: "Reload the page." }, worker);
    };
    worker.postMessage({ op: "kernels", limits: query.get("limits") ?? "adapter", only: query.get("only") ?? "", cases: query.get("cases") ?? "all", tune: await tuneList() });
}

start.addEventListener("click", run);
if (isAuto) {
    run();
}
