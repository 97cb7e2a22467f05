// Starts a module worker that loads every part of dist/ under the server's policy; the worker reports.
const worker = new Worker("parts_worker.js", { type: "module" });
worker.onerror = (event) => report({ ev: "error", code: "worker", message: event.message || "the worker did not start", hint: "", done: true });
worker.onmessage = (event) => report(event.data);

function report(event) {
  return fetch("/report", { method: "POST", body: JSON.stringify(event) });
}
